"""Lab 07's cached gradients on the course's models and on CLIP, and its checks' own parts.

Micro-batches of other sizes, several updates and a checkpoint in place of the cache are what check
7.6 and the lab's own cells compare.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from solutions.answers import solved
from tutorial_lib.checks import CheckError
from tutorial_lib.checks.given import observe, surroundings
from tutorial_lib.checks.lab07.expectations import times_in
from tutorial_lib.checks.lab07.given.towers import in_batch_loss
from tutorial_lib.checks.vocabulary import expect
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.vit import ViT, ViTConfig

LAB = solved("lab07")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


class LastToken(nn.Module):
    """A GPT whose last token's logits are the embedding."""

    def __init__(self, dropout):
        super().__init__()
        config = GPTConfig(vocab_size=16, seq_len=8, num_layers=2, num_heads=2, d_model=16)
        self.gpt = GPT(GPTConfig(**{**vars(config), "dropout": dropout}))

    def forward(self, tokens):
        return self.gpt(tokens)[:, -1]


def vit(dropout):
    return ViT(ViTConfig(num_classes=16, num_layers=2, num_heads=2, d_model=16, dropout=dropout))


def case(dropout, dtype):
    towers = [vit(dropout).to(dtype), LastToken(dropout).to(dtype)]
    inputs = [torch.randn(23, 1, 8, 8, dtype=dtype), torch.randint(16, (23, 8))]
    return towers, inputs, LAB.Contrastive().to(dtype)


def observed(backward, made):
    torch.manual_seed(1)
    towers, inputs, loss_of = made
    modules = nn.ModuleList([*towers, loss_of])
    modules.zero_grad()
    loss = backward(towers, inputs, loss_of, 5)
    gradients = [p.grad.flatten() for p in modules.parameters() if p.grad is not None]
    return loss, torch.cat(gradients), torch.get_rng_state()


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)], ids=str
)
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_gradients_of_one_large_graph(dropout, dtype, tolerance):
    made = case(dropout, dtype)
    loss, exact, state = observed(LAB.one_graph, made)
    seen = observed(LAB.cached_backward, made)
    assert expect.relative_error(seen[1], exact) < tolerance
    assert seen[0] == pytest.approx(loss, rel=tolerance)
    assert torch.equal(seen[2], state)


def test_clip():
    import transformers

    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    small |= {"num_attention_heads": 2, "projection_dim": 16}
    config = transformers.CLIPConfig(
        text_config={**small, "vocab_size": 50, "max_position_embeddings": 8},
        vision_config={**small, "image_size": 16, "patch_size": 8},
        projection_dim=16,
    )
    clip = transformers.CLIPModel(config).double().train()
    images, tokens = torch.randn(7, 3, 16, 16, dtype=torch.float64), torch.randint(50, (7, 8))
    wanted = clip(input_ids=tokens, pixel_values=images, return_loss=True).loss
    wanted.backward()
    names = [name for name, p in clip.named_parameters() if p.grad is not None]
    exact = {name: p.grad for name, p in clip.named_parameters() if p.grad is not None}
    clip.zero_grad()
    loss_of = LAB.Contrastive().double()
    loss_of.log_scale.data.copy_(clip.logit_scale)
    loss = LAB.cached_backward(LAB.halves_of(clip), [images, tokens], loss_of, 3)
    found = {name: p.grad for name, p in clip.named_parameters()}
    found["logit_scale"] = loss_of.log_scale.grad
    seen, all_exact = (torch.cat([g[name].flatten() for name in names]) for g in (found, exact))
    assert loss == pytest.approx(wanted.item(), rel=1e-12)
    assert expect.relative_error(seen, all_exact) < 1e-12


# the checks' own parts


def test_the_oracles_loss_is_pytorchs():
    a, b = torch.randn(2, 9, 5, dtype=torch.float64)
    log_scale, labels = torch.tensor(1.0, dtype=torch.float64), torch.arange(9)
    logits = math.e * F.normalize(a, dim=1) @ F.normalize(b, dim=1).T
    exact = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
    seen = in_batch_loss(a, b, log_scale.exp())
    assert seen.item() == pytest.approx(exact.item(), rel=1e-12)


def test_no_gradient_is_an_error_of_one_and_nan_is_infinite():
    ones = torch.ones(3)
    assert expect.relative_error([None], [ones]) == 1
    assert expect.relative_error([ones * math.nan], [ones]) == math.inf
    assert expect.relative_error([ones], [None]) == 1
    assert expect.relative_error([None], [None]) == 0


CHANGES = {
    "grad mode": lambda layers, rows: torch.set_grad_enabled(False),
    "modes": lambda layers, rows: layers[1].eval(),
    "requires_grad": lambda layers, rows: layers.requires_grad_(False),
    "weights": lambda layers, rows: layers[0].bias.data.add_(1),
    "gradients": lambda layers, rows: layers.zero_grad(),
    "buffers": lambda layers, rows: layers[1].num_batches_tracked.add_(1),
    "random state": lambda layers, rows: torch.rand(1),
    "inputs": lambda layers, rows: rows.zero_(),
    "marks": lambda layers, rows: rows.requires_grad_(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_an_answer_changes_is_named(name):
    layers, rows = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), torch.full((3, 2), math.nan)
    observe.fill_gradients(layers)
    before = surroundings.note([layers], [rows])
    assert surroundings.changed(before, surroundings.note([layers], [rows])) == []
    with torch.enable_grad():
        CHANGES[name](layers, rows)
        assert surroundings.changed(before, surroundings.note([layers], [rows])) == [name]
        assert surroundings.changed(before, surroundings.note([layers], [rows]), but=[name]) == []
    with pytest.raises(CheckError):
        expect.unchanged({"changed": [name]})


def test_how_many_times_each_part_is_in_a_sum():
    a, b, c = torch.randn(3, 2, 7, dtype=torch.float64).unbind()
    times = times_in(list(2 * a - b / 4), [list(a), list(b)])
    assert times == pytest.approx([2, -0.25])
    assert times_in(list(a + c), [list(a), list(b)]) == []
    assert times_in([None, a[1]], [list(a), list(b)]) == []
    assert times_in(list(a * math.nan), [list(a), list(b)]) == []
