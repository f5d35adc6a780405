"""Lab 07's cached gradients on the course's models and on CLIP, and its checks' own parts.

Micro-batches of other sizes, several updates and a checkpoint in place of the cache are what check
7.6 and the lab's own cells compare.
"""

import math

import pytest
import torch
from torch import nn

from solutions.answers import solved
from tutorial_lib.checks import CheckError
from tutorial_lib.checks.given import observe, surroundings
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


# the checks' own parts


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
