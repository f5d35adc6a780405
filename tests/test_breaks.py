"""What the chapters say, on settings that they do not choose."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tutorial_lib.school import authoring


@pytest.fixture(scope="module")
def chapter04(root):
    return authoring.load_definitions(root / "course/04_checkpoint_from_scratch.ipynb")


class TwoOutputs(nn.Module):
    """A block that returns its two results in `form`."""

    def __init__(self, form):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.form = form

    def forward(self, x):
        return self.form(self.first(x).tanh(), self.second(x).tanh())


FORMS = {
    "list": (lambda y, k: [y, k], lambda out: out),
    "dict": (lambda y, k: {"y": y, "k": k}, lambda out: out.values()),
    "tuple within": (lambda y, k: (y, (k, None)), lambda out: (out[0], out[1][0])),
    "dict within": (
        lambda y, k: {"all": {"y": [y], "k": k}},
        lambda out: (out["all"]["y"][0], out["all"]["k"]),
    ),
}


def gradients_through(checkpoint, block, read):
    block.zero_grad()
    y, k = read(checkpoint(block, torch.ones(4, 8)))
    (y.sum() + k.square().sum()).backward()
    return [parameter.grad for parameter in block.parameters()]


@pytest.mark.parametrize("name", FORMS)
def test_04_tensors_inside_an_output_get_their_gradients(chapter04, name):
    form, read = FORMS[name]
    block = TwoOutputs(form)
    expected = gradients_through(lambda function, x: function(x), block, read)
    seen = gradients_through(chapter04.checkpoint, block, read)
    assert all(map(torch.equal, seen, expected))


def test_04_an_output_that_cannot_be_looked_into_is_refused(chapter04):
    block = TwoOutputs(lambda y, k: SimpleNamespace(y=y, k=k))
    with pytest.raises(TypeError, match="would get no gradient"):
        chapter04.checkpoint(block, torch.ones(4, 8))


class OneBlock(nn.Module):
    """A model of one block, as `compare` wants it."""

    def __init__(self, *layers):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(*layers)])

    def loss(self):
        return self.blocks[0](torch.arange(32.0).view(4, 8)).square().sum()


def test_04_compare_does_not_look_at_the_statistics_of_batch_norm(chapter04):
    torch.manual_seed(0)
    model = OneBlock(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))
    assert chapter04.compare(chapter04.checkpoint, model, model.loss).startswith("equal")
    assert model.blocks[0][1].num_batches_tracked == 3  # once plain, twice checkpointed


def test_04_the_dummy_runs_a_block_that_needs_no_backward_again(chapter04):
    runs = []
    block = nn.Linear(8, 8).requires_grad_(False)
    block.register_forward_pre_hook(lambda *_: runs.append(1))
    head = nn.Linear(8, 1)
    head(chapter04.checkpoint(block, torch.ones(4, 8))).sum().backward()
    assert len(runs) == 2
