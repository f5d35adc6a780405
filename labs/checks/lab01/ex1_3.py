"""The check of 1.3: the bytes that autograd saves in a chain of layers."""

import torch

from tutorial_lib import memory
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect

from . import given

_PASSED = "equal to autograd's own count, to the byte"


def _cases(draw: Draw) -> Cases:
    a, b, c, d = draw.sample(range(6, 50), 4)
    rows, positions = draw.randint(3, 9), (3, 5, 6, 7)  # not 4, the bytes of an element
    free = [["relu"], ["gelu"], ["norm"], ["linear", b], ["linear", d]]
    chance = [["linear", a], *(draw.choice(free) for _ in range(7)), ["gelu"], ["linear", c]]
    for inner, end in (("relu", []), ("gelu", []), ("norm", [["relu"]])):
        yield {"layers": [["linear", b], [inner], ["linear", c], *end], "shape": [rows, a]}
    layers = [["linear", d], ["gelu"], ["linear", b]]
    yield {"layers": layers, "shape": [rows, draw.choice(positions), c]}
    yield {"layers": chance, "shape": [rows, draw.choice(positions), d]}


def saved_by(case: Case, *, weights: bool = False) -> int:
    """Count the bytes that autograd saves in a chain, with or without its weights."""
    chain, x = given.make_chain(case), torch.randn(case["shape"])
    return memory.saved(lambda: chain(x), params_of=None if weights else chain).num_bytes


def output_bytes(case: Case) -> list[int]:
    """Run a chain and give the size of each layer's output."""
    x = torch.randn(case["shape"])
    sizes = []
    for layer in given.make_chain(case):
        x = layer(x)
        sizes.append(x.nbytes)
    return sizes


@check(given.chain_saved_bytes, _PASSED, _cases, oracle=saved_by)
def chain_saved_bytes(case: Case, result: Result, saved: int) -> None:
    layers = ", ".join(" ".join(map(str, layer)) for layer in case["layers"])
    name = f"chain_saved_bytes for [{layers}] on {tuple(case['shape'])}"
    expect.number_of_bytes(result["bytes"], saved, name, _faults(case, saved))


def _faults(case: Case, saved: int) -> Faults:
    outputs, x = output_bytes(case), torch.empty(case["shape"]).nbytes
    one_position = [case["shape"][0], case["shape"][-1]]

    def saved_with(old: str, new: str) -> int:
        swapped = [[new] if layer == [old] else layer for layer in case["layers"]]
        return saved_by({**case, "layers": swapped})

    rows, width, by_feature = torch.Size(case["shape"][:-1]).numel(), case["shape"][-1], saved
    for kind, *features in case["layers"]:
        width = features[0] if features else width
        by_feature += 4 * 2 * (width - rows) * (kind == "norm")

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
        "LayerNorm's two numbers were counted for each feature: it normalises over a row's "
        "features, so each row has its own two.": by_feature,
        "It is the sum of all outputs: autograd does not keep what each layer makes, but what "
        "each backward needs.": sum(outputs),
        "It is the input and all outputs: who would need the output of the last layer?": x
        + sum(outputs),
        "It is what one position of the sequence takes: all dimensions but the last are "
        "rows.": saved_by({**case, "shape": one_position}),
    }.items()
