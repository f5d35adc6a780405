"""The models of 1.1 and 1.2, built from a case, run for real, and metered.

No function here computes what the lab asks for: it builds what a case describes, runs it, and reads
the meter. A fault's number is the meter's number for the model that the fault believes in (the same
one untied, unfrozen, in float32).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib import memory
from tutorial_lib.checks import forbid
from tutorial_lib.checks.core import Case

OPTIMIZERS = ("sgd", "momentum", "adamw")
forbid_meter = partial(forbid.meter, "Account for the tensors yourself.")


def make_optimizer(name: str, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """Build one of `OPTIMIZERS` with CUDA's default, `foreach`, on any device."""
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=1e-4, foreach=True)
    momentum = {"sgd": 0.0, "momentum": 0.9}[name]
    return torch.optim.SGD(parameters, lr=1e-4, momentum=momentum, foreach=True)


class TiedEmbeddingModel(nn.Module):
    """An embedding, some linear layers, and a head: tied, frozen and typed as the case says.

    Args:
        case: `vocab`, `widths`, `dtype` of the layers, `tied`, `frozen` (indices of layers), and
            `norm`, for a BatchNorm with its buffers.
    """

    def __init__(self, case: Case) -> None:
        super().__init__()
        vocab, widths = case["vocab"], case["widths"]
        self.embedding = nn.Embedding(vocab, widths[0])
        dtype = getattr(torch, case["dtype"])
        pairs = itertools.pairwise(widths)
        self.layers = nn.ModuleList(nn.Linear(i, o, dtype=dtype) for i, o in pairs)
        self.norm = nn.BatchNorm1d(widths[-1]) if case["norm"] else nn.Identity()
        self.head = nn.Linear(widths[-1], vocab, bias=False)
        if case["tied"]:
            self.head.weight = self.embedding.weight
        for index in case["frozen"]:
            self.layers[index].requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens `(B,)` to scores `(B, vocab)`."""
        x = self.embedding(tokens)  # (B, widths[0])
        for layer in self.layers:
            x = layer(x.to(layer.weight.dtype))
        scores: Tensor = self.head(self.norm(x.float()))
        return scores


class Metered:
    """A case's model, read by the meter.

    Args:
        case: That of the model, and `optimizer` where it is to be trained.
    """

    def __init__(self, case: Case) -> None:
        self.case = case

    def but(self, **changed: Any) -> Metered:
        """Give the same with something changed in the case."""
        return Metered({**self.case, **changed})

    @cached_property
    def at_rest(self) -> Mapping[str, int]:
        """Bytes of each category in a model that nothing is done with."""
        with memory.watch(model=TiedEmbeddingModel(self.case)) as report:
            pass
        return report.at_peak

    @cached_property
    def after_step(self) -> Mapping[str, int]:
        """Bytes of each category after a real training step."""
        model = TiedEmbeddingModel(self.case)
        optimizer = make_optimizer(self.case["optimizer"], model.parameters())
        tokens = torch.arange(self.case["vocab"])

        def step() -> None:
            optimizer.zero_grad()
            model(tokens).sum().backward()
            optimizer.step()

        return memory.measure(step, model=model, optimizer=optimizer).curve()[-1]
