"""Accumulated gradients: a window's micro-batches, their weights, and the faults of a loop."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.checks.given.values import CheckError, Result
from tutorial_lib.checks.vocabulary import expect, read

OLD_GRADIENT = "the .grad from before your call was added to the window: zero the gradients first."
LAST_ALONE = "only the last micro-batch is in the gradient: zero once, at the start."
MEAN_OF_MEANS = "it is the mean of the micro-batches' means."
_FLOAT32 = 1e-6  # a sum of float32 numbers is off by less
SUM_OF_MEANS = "it is the sum of the micro-batches' means."


@dataclass(frozen=True)
class Window:
    """The micro-batches of one update."""

    sums: Sequence[Any]  # of each, the gradient of the sum of its losses, as a vector, or that sum
    counts: Sequence[int]  # of each, the number of terms in that sum

    @property
    def count(self) -> int:
        """The number of terms in the whole window."""
        return sum(self.counts)

    def weighted(self, weights: Sequence[float]) -> Any:
        """Add up the sums, each multiplied by a weight."""
        return sum(w * s for w, s in zip(weights, self.sums, strict=True))

    @property
    def total(self) -> Any:
        """The sum over the window."""
        return self.weighted([1.0] * len(self.sums))

    @property
    def mean(self) -> Any:
        """The mean of one batch with all terms."""
        return self.total / self.count

    @property
    def sum_of_means(self) -> Any:
        """The sum of means, divided by no number of micro-batches."""
        return self.weighted([1 / max(1, n) for n in self.counts])

    @property
    def mean_of_means(self) -> Any:
        """The mean of means, where each micro-batch counts the same."""
        return self.sum_of_means / len(self.sums)

    @property
    def last_alone(self) -> Any:
        """The last micro-batch's share, where gradients are zeroed in the loop."""
        return self.sums[-1] / self.count


def faults(
    window: Window, what: str, change: Callable[[Any], Any] = lambda gradient: gradient
) -> expect.Faults:
    """Yield each usual fault of a loop, and a window's gradient under it, changed as by clipping.

    `what` names the unit that counts, as in `images`.
    """
    yield (
        f"the micro-batches' means were added up: divide by the {what} of the whole window.",
        change(window.sum_of_means),
    )
    yield (
        f"each micro-batch counts the same, however many {what} it has, here {window.counts}: "
        f"divide by the {what} of the whole window.",
        change(window.mean_of_means),
    )
    yield f"nothing is divided: it is the sum over all {what}.", change(window.total)
    yield LAST_ALONE, change(window.last_alone)
    yield OLD_GRADIENT, change(window.mean + 1)


def expect_gradient(seen: Tensor, wanted: Tensor, faults: expect.Faults) -> None:
    """Expect the gradient of a whole window."""
    if not bool(torch.isfinite(seen).all()):
        raise CheckError("a gradient is nan or infinite: was there a division by nothing?")

    def otherwise() -> str:
        error = expect.relative_error(seen, wanted)
        if error < _FLOAT32:
            return (
                f"the gradient is off by {error:.2g} times its norm, which is float32's rounding, "
                "but everything here is float64: is a weight or a count a float32 tensor?"
            )
        ratio = float(seen.norm() / wanted.norm())
        return (
            f"the gradient is off by {error:.2g} times the norm of the window's gradient "
            f"({ratio:.4g} times as long, with cosine {_cosine(seen, wanted):.4f}), and it "
            "is none of the usual faults. Write out the sum for two micro-batches."
        )

    expect.close(seen, wanted, faults, otherwise=otherwise)


def _cosine(one: Tensor, other: Tensor) -> float:
    return float(one @ other) / max(float(one.norm() * other.norm()), 1e-300)


def clipped(gradient: Tensor, limit: float, seen: Tensor) -> Tensor:
    """Clip a gradient with PyTorch's 1e-6 added to its norm, or without: whichever is nearer."""
    norm = float(gradient.norm())
    both = [gradient * min(1.0, limit / divisor) for divisor in (norm + 1e-6, norm)]
    return min(both, key=lambda wanted: expect.relative_error(seen, wanted))


def expect_clipped(
    seen: Tensor,
    gradient: Tensor,
    limit: float,
    faults: Sequence[tuple[str, Tensor]],
    limits: Sequence[float] = (),
) -> Tensor:
    """Expect the gradient of a window, clipped as a whole to norm `limit`; return the right one.

    `limits` are other norms that a faulty clipping may have left.
    """
    wanted = clipped(gradient, limit, seen)
    at_limit = any(math.isclose(float(seen.norm()), n, rel_tol=1e-3) for n in (limit, *limits))
    along = _cosine(seen, wanted)
    known = any(expect.is_close(seen, fault) for _, fault in faults)
    if at_limit and along < 1 - 1e-9 and not known:
        raise CheckError(
            "the gradient's norm is the limit, but its direction differs from the window's "
            f"(cosine {along:.4f}): clip once, after the last backward, not each micro-batch."
        )
    expect_gradient(seen, wanted, faults)
    return wanted


def expect_rows_at_most(result: Result, sizes: Sequence[int]) -> None:
    """Expect that no forward saw more rows than the largest micro-batch has."""
    rows = read.integers(result.get("rows"), "rows")
    if rows and max(rows) > max(sizes):
        raise CheckError(
            f"the model saw {max(rows)} rows at once, but the largest micro-batch has "
            f"{max(sizes)}: one micro-batch is all that fits into memory here."
        )


def expect_one_graph(result: Result, allowed: int) -> None:
    """Expect that no more than one micro-batch's graph was alive at once."""
    peak = read.integer(result.get("peak"), "the peak")
    expect.fact(
        peak <= allowed,
        f"the peak is {peak:,} bytes, but {allowed:,} are plenty for one micro-batch's graph at a "
        "time: call backward in the loop, it frees the graph. Added losses keep all graphs.",
    )


def expect_window(
    result: Result,
    update: Tensor,
    *,
    gradients: Window,
    losses: Window,
    sizes: Sequence[int],
    faults: expect.Faults,
    loss_faults: expect.Faults,
    optional: Sequence[int] = (),
    allowed: int | None = None,
) -> None:
    """Expect one update by the mean over a window, of which one micro-batch fits into memory.

    Args:
        result: With `rows`, `returned` (the loss), `changed`, and `peak` where it is judged.
        update: The gradient that the optimizer got.
        gradients: Those of the window; `losses` are its losses.
        sizes: Rows of each micro-batch; `optional` are those of parts that add nothing.
        allowed: Bytes of the peak; None where it is not judged.
    """
    expect_rows_at_most(result, sizes)
    expect_gradient(update, gradients.mean, faults)
    expect.loss(result.get("returned"), losses.mean, loss_faults)
    expect_each_once(result, sizes, optional)
    if allowed is not None:
        expect_one_graph(result, allowed)
    expect.unchanged(result)


def expect_each_once(result: Result, sizes: Sequence[int], optional: Sequence[int] = ()) -> None:
    """Expect that the model saw each micro-batch, of these rows, by itself and once.

    Those of optional rows add nothing, and may be left out.
    """
    rows = read.integers(result.get("rows"), "rows")
    missing, added = Counter(sizes) - Counter(rows), Counter(rows) - Counter(sizes)
    if added or missing - Counter(optional):
        raise CheckError(
            f"the model saw micro-batches of {rows} rows, but was given {list(sizes)}: run each "
            "once."
        )
