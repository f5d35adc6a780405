"""The check of 1.3: the bytes that autograd saves in a chain of layers."""

from __future__ import annotations

import random

import torch
from torch import nn

from tutorial_lib import memory
from tutorial_lib.checks import expect, forbid
from tutorial_lib.checks.core import Answer, Case, Check, Result
from tutorial_lib.checks.lab01.models import NO_METER
from tutorial_lib.instruments import private_torch

_ADVICE = "Go through the layers yourself."
_NO_HOOKS = forbid.Forbidden(
    "autograd's hooks lie below memory.saved, the oracle here, so your function may not use "
    f"them. {_ADVICE}",
    (
        "torch.autograd.graph:saved_tensors_hooks.__enter__",
        *private_torch.PUSHES_SAVED_TENSOR_HOOKS,
    ),
)
_LAYERS = {"relu": nn.ReLU, "gelu": nn.GELU}


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    a, b, c, d = draw.sample(range(6, 50), 4)
    rows, positions = draw.randint(3, 9), (3, 5, 6, 7)  # not 4, the bytes of an element
    free = [["relu"], ["gelu"], ["norm"], ["linear", b], ["linear", d]]
    chance = [["linear", a], *(draw.choice(free) for _ in range(7)), ["gelu"], ["linear", c]]
    return [
        {"layers": [["linear", b], ["relu"], ["linear", c]], "shape": [rows, a]},
        {"layers": [["linear", b], ["gelu"], ["linear", c]], "shape": [rows, a]},
        {"layers": [["linear", b], ["norm"], ["linear", c], ["relu"]], "shape": [rows, a]},
        {
            "layers": [["linear", d], ["gelu"], ["linear", b]],
            "shape": [rows, draw.choice(positions), c],
        },
        {"layers": chance, "shape": [rows, draw.choice(positions), d]},
    ]


def _make_chain(case: Case) -> nn.Sequential:
    """Build the layers of a case: each is a name, and for `linear` its output width."""
    width = case["shape"][-1]
    layers: list[nn.Module] = []
    for name, *sizes in case["layers"]:
        if name == "linear":
            layers.append(nn.Linear(width, sizes[0]))
            width = sizes[0]
        else:
            layers.append(nn.LayerNorm(width) if name == "norm" else _LAYERS[name]())
    return nn.Sequential(*layers)


def saved_by(case: Case, *, weights: bool = False) -> int:
    """Count what autograd saves in a chain, with or without the weights that it refers to."""
    chain, x = _make_chain(case), torch.randn(case["shape"])
    return memory.saved(lambda: chain(x), params_of=None if weights else chain).num_bytes


def output_bytes(case: Case) -> list[int]:
    """Run a chain and give the size of each layer's output."""
    x = torch.randn(case["shape"])
    sizes = []
    for layer in _make_chain(case):
        x = layer(x)
        sizes.append(x.nbytes)
    return sizes


def _run(answer: Answer, case: Case) -> Result:
    return {"bytes": answer(_make_chain(case), tuple(case["shape"]))}


def _judge(case: Case, result: Result, saved: int) -> None:
    layers = ", ".join(" ".join(map(str, layer)) for layer in case["layers"])
    name = f"chain_saved_bytes for [{layers}] on {tuple(case['shape'])}"
    expect.number_of_bytes(result.get("bytes"), saved, name, _faults(case, saved))


def _faults(case: Case, saved: int) -> expect.Faults:
    outputs, x = output_bytes(case), torch.empty(case["shape"]).nbytes
    one_position = [case["shape"][0], case["shape"][-1]]

    def saved_with(old: str, new: str) -> int:
        swapped = [[new] if layer == [old] else layer for layer in case["layers"]]
        return saved_by({**case, "layers": swapped})

    yield from {
        "It is the number of elements: float32 takes four bytes.": saved // 4,
        "The input of the first layer is missing: its weight's gradient needs it.": saved - x,
        "The weights are in it: they are parameters, resident whether autograd refers to them "
        "or not.": saved_by(case, weights=True),
        "A ReLU costs nothing here: it keeps its output, not its input, and that output is the "
        "very tensor that the next layer keeps. One storage counts "
        "once.": saved_with("relu", "gelu"),
        "A GELU is no ReLU: its slope cannot be read off its output, so it keeps its "
        "input.": saved_with("gelu", "relu"),
        "LayerNorm keeps two numbers for each row, and one of them is missing.": (
            (saved + saved_with("norm", "gelu")) // 2
        ),
        "LayerNorm keeps something beside its input: what did it compute for each row?": saved_with(
            "norm", "gelu"
        ),
        "It is the sum of all outputs: autograd does not keep what each layer makes, but what "
        "each backward needs.": sum(outputs),
        "It is the input and all outputs: who would need the output of the last layer?": x
        + sum(outputs),
        "The output of the last layer is in it: nothing in the chain keeps it.": saved
        + outputs[-1],
        "It is what one position of the sequence takes: all dimensions but the last are "
        "rows.": saved_by({**case, "shape": one_position}),
    }.items()


chain_saved_bytes = Check(
    "lab01.chain_saved_bytes",
    "1.3",
    "equal to autograd's own count, to the byte",
    _cases,
    _run,
    _judge,
    oracle=saved_by,
    forbidden=[forbid.saved(_ADVICE), _NO_HOOKS, NO_METER],
)
