"""What the judges of lab 10 share: a loss and its gradients in one graph, and their faults."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tutorial_lib.checks.vocabulary import Case, Draw, Faults, Result, expect, read

from . import given

_NARROW = 1e-6  # relative, about what float32 makes of float64
_NARROWED = (
    ", and what came is float64: did you cast down (.float() narrows float64, too), or "
    "approximate, by finite differences or by adding a small number?"
)
_FAULT = 1e-6  # relative, where a fault's own value is compared


def draw_sizes(draw: Draw) -> dict[str, Any]:
    """Draw a case of float64 whose last chunk is smaller than the others."""
    size, number = draw.randint(3, 6), draw.randint(3, 5)
    tokens = size * number + draw.randint(1, size - 1)
    case = {"seed": draw.randrange(10**6), "dtype": "float64", "chunk": size, "tokens": tokens}
    return {**case, "vocab": draw.randint(20, 30), "width": draw.randint(4, 7)}


def draw_large(draw: Draw) -> dict[str, Any]:
    """Draw a case of float32, whose logits are far more bytes than all else."""
    case = {"seed": draw.randrange(10**6), "tokens": 512, "vocab": draw.choice([2000, 2048])}
    return {**case, "width": 16, "chunk": draw.choice([12, 16])}


def usual_loss(hidden: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
    """Add up the losses of all tokens."""
    return F.cross_entropy(hidden @ weight.T, targets, reduction="sum")


def by_chunks(hidden: Tensor, targets: Tensor, weight: Tensor, size: int) -> Tensor:
    """Add up the same, with the logits of one chunk in memory."""
    pairs = zip(torch.split(hidden, size), torch.split(targets, size), strict=True)
    parts = [checkpoint(usual_loss, *pair, weight, use_reentrant=False) for pair in pairs]
    return torch.stack(parts).sum()


class Right:
    """Loss and gradients of a case in one graph, the loss of rows, targets, matrix and bias."""

    def __init__(
        self, case: Case, loss_of: Callable[..., Tensor] = lambda h, t, w, _: usual_loss(h, t, w)
    ) -> None:
        self.scene, self.loss_of = given.Scene(case), loss_of
        self.loss, self.gradients = self.of(slice(None))

    def of(self, part: slice) -> tuple[float, list[Tensor]]:
        """Return loss and gradients of some of the tokens."""
        scene = self.scene
        leaves = [scene.hidden, scene.weight, scene.bias]
        loss = self.loss_of(scene.hidden[part], scene.targets[part], scene.weight, scene.bias)
        found = torch.autograd.grad(loss, leaves, allow_unused=True)
        pairs = zip(found, leaves, strict=True)
        return loss.item(), [torch.zeros_like(p) if g is None else g for g, p in pairs]


def expect_loss(
    seen: Any,
    wanted: float,
    faults: Faults = (),
    tolerance: float = 1e-9,
    beside: str = "F.cross_entropy",
) -> None:
    """Expect the loss, as a number; `beside` says what a learner compares it with."""
    found = read.number(seen, "the value")
    ratio = found / wanted if wanted else 0.0
    otherwise = f"{found:.9g} is {ratio:.9g} times the right one: compare it with {beside}."
    if abs(ratio - 1) < _NARROW:
        otherwise = f"it is off by {abs(ratio - 1):.1g} of the loss{_NARROWED}"
    more: Any = {"otherwise": otherwise, "tolerance": tolerance, "where": "the value: "}
    expect.close(found, wanted, faults, **more)


def expect_gradients(
    result: Result,
    wanted: Sequence[Tensor],
    names: Sequence[str],
    faults: Faults = (),
    tolerance: float = expect.EXACT,
    advice: str = "take two tokens, a vocabulary of 3, and compare each entry with autograd's.",
) -> None:
    """Expect one gradient after the other; faults are those of all of them."""
    seen = [
        torch.zeros_like(right) if mine is None and not right.any() else mine
        for mine, right in zip(
            read.tensors(result["gradients"], len(wanted), "the gradients"), wanted, strict=True
        )
    ]
    shapes = [(name, s, w) for name, s, w in zip(names, seen, wanted, strict=True)]
    for name, mine, right in shapes:
        expect.fact(
            mine is not None and mine.shape == right.shape,
            f"the gradient of {name} is {'None' if mine is None else tuple(mine.shape)}, and it is "
            f"shaped as {name}, {tuple(right.shape)}.",
        )
    alike = [g if g is None else g.to(w.dtype) for g, w in zip(seen, wanted, strict=True)]
    error = expect.relative_error(alike, wanted)
    off = [name for name, s, w in shapes if not expect.is_close(s, w, tolerance)]
    expect.close(
        alike,
        wanted,
        faults,
        otherwise=f"the gradient of {' and of '.join(off)} is "
        + (f"off by {error:.1g} of its norm{_NARROWED}" if error < _NARROW else f"wrong: {advice}"),
        tolerance=tolerance,
        fault_tolerance=max(_FAULT, tolerance),
    )


def expect_late(result: Result) -> None:
    """Expect that no gradient was written before backward began."""
    expect.fact(
        not read.flag(result, "early"),
        ".grad was written before backward began: then even a forward whose loss is never used "
        "trains the weights. backward returns the gradients, and autograd adds them to .grad.",
    )


def expect_no_whole(result: Result, case: Case, tokens: int, allowed: int) -> None:
    """Expect a peak in which the logits of all tokens cannot be, and chunks of the given size."""
    whole, of_chunk = (number * case["vocab"] * 4 for number in (tokens, case["chunk"]))
    keys = {"largest": "the largest tensor", "peak": "the peak"}
    largest, peak = (read.integer(result[key], name) for key, name in keys.items())
    faults = {
        f"a tensor of {largest} bytes was made, but the logits of all {tokens} tokens take "
        f"{whole}: make those of one chunk at a time.": largest >= whole,
        f"no tensor has more than {largest} bytes, and the logits of {case['chunk']} tokens take "
        f"{of_chunk}: make each chunk as long as chunk says, and its logits, for the whole "
        "vocabulary, one tensor.": 2 * largest <= of_chunk,
        f"{peak} bytes were in memory at once, but {allowed} are enough for the gradients and one "
        f"chunk. The logits of all tokens take {whole}: what of a chunk is still held when the "
        "next one is made?": peak > allowed,
    }
    expect.no_fault(faults)


def allowed_bytes(case: Case, chunks: int = 6, matrices: int = 5) -> int:
    """Return the bytes of some chunks' logits, and of some gradients of everything."""
    of_all: int = (case["tokens"] + case["vocab"]) * case["width"] + case["vocab"]
    of_chunk: int = case["chunk"] * case["vocab"]
    return 4 * (chunks * of_chunk + matrices * of_all)
