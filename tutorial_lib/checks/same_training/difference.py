"""Differences of two calls of a training step: part by part, in words, the first cause first."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tutorial_lib.checks.same_training.record import Call, Update
from tutorial_lib.checks.same_training.state import Leaves, gradient_sizes, norm, wide

# What makes every gradient wrong by one factor.
_TOO_SMALL = (
    "Is there a second division: by the number of micro-batches, which the trainer does already, "
    "by a count of more than this update, or by a clip of gradients that aren't unscaled yet?"
)
_TOO_LARGE = (
    "Is a division missing, such as by the number of micro-batches? Or are gradients not zeroed "
    "often enough?"
)


@dataclass(frozen=True)
class Difference:
    """A part that differs between two calls, how it differs in words, and a likely cause."""

    part: str
    seen: str
    hint: str = ""


def differences(wanted: Call, seen: Call, bitwise: bool) -> Iterator[Difference]:
    """List the parts that differ, each with its worst case in words, the first cause first."""
    labels = list(dict.fromkeys(update.optimizer for update in (*wanted.updates, *seen.updates)))
    for label in labels:
        counts = [len(call.of(label)) for call in (seen, wanted)]
        if counts[0] != counts[1]:
            owner = "its optimizer" if len(labels) == 1 else label
            words = f"step_b made {counts[0]} with {owner}, and step_a {counts[1]}"
            yield Difference("updates", words)
            break
    tolerance = max(update.tolerance for update in wanted.updates)
    if words := _loss(wanted.loss, seen.loss, tolerance):
        yield Difference("loss", words)
    left = {label: iter(seen.of(label)) for label in labels}
    matched = [(ours, next(left[ours.optimizer], None)) for ours in wanted.updates]
    pairs = [(ours, theirs) for ours, theirs in matched if theirs is not None]
    for update, theirs in pairs:
        if (wrong := _gradients(update, theirs)) is not None:
            where = f"of {update.optimizer}, " if len(labels) > 1 else ""
            yield replace(wrong, seen=where + wrong.seen)
            break
    allowed = {k: v for update in wanted.updates for k, v in update.allowed.items()}
    moved = [(a.after, b.after, a.allowed) for a, b in pairs]
    moved.append((wanted.parameters, seen.parameters, allowed))
    for part in ("parameters", "optimizer state"):
        cases = [tuple(_only(part, found, wanted.parameters) for found in case) for case in moved]
        if part == "optimizer state":
            cases.append((wanted.settings, seen.settings, {}))
        if words := next(filter(None, (_worst(*case) for case in cases)), ""):
            yield Difference(part, words)
    kept: list[tuple[str, Leaves, Leaves]] = [
        ("buffers", wanted.buffers, seen.buffers),
        ("attributes", *_of_one_shape(wanted.attributes, seen.attributes)),
        ("other state", wanted.others, seen.others),
    ]
    for part, a, b in kept:
        if words := _worst(a, b, {} if bitwise else _of_their_size(a, tolerance)):
            yield Difference(part, words)
    for source, state in wanted.randomness.items():
        if not equal(state, seen.randomness.get(source)):
            yield Difference("random state", f"{source}'s random state differs after step_b")


def _loss(wanted: Any, seen: Any, tolerance: float) -> str:
    if not (isinstance(wanted, float) and isinstance(seen, float)):
        return "" if equal(wanted, seen) else f"step_b returned {seen!r}, step_a {wanted!r}"
    if abs(seen - wanted) <= tolerance * abs(wanted):
        return ""
    ratio = f", {seen / wanted:.4g} times as much" if wanted else ""
    return f"step_b returned {seen:.6g}, step_a {wanted:.6g}{ratio}"


def _of_one_shape(wanted: Leaves, seen: Leaves) -> tuple[Leaves, Leaves]:
    """Leave out tensors whose shapes differ: kept of a batch, such as a mask, they are no state."""
    other = {
        name
        for name, leaf in wanted.items()
        if isinstance(leaf, Tensor) and getattr(seen.get(name), "shape", leaf.shape) != leaf.shape
    }
    ours, theirs = ({k: v for k, v in one.items() if k not in other} for one in (wanted, seen))
    return ours, theirs


def _gradients(wanted: Update, seen: Update) -> Difference | None:
    """Say how an update's gradients differ: all by one factor, or which one by how much."""
    words, factor = _gradients_in_words(wanted, seen)
    hint = "" if factor == 1 else _TOO_SMALL if factor < 1 else _TOO_LARGE
    return Difference("gradients", words, hint) if words else None


def _gradients_in_words(wanted: Update, seen: Update) -> tuple[str, float]:
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    for name, grad in wanted.gradients.items():
        theirs = seen.gradients.get(name)
        if (grad is None) != (theirs is None):
            return f"only step_{'b' if grad is None else 'a'} has a gradient for {name}", 1.0
        if grad is not None and theirs is not None:
            pairs[name] = wide(grad), wide(theirs)
    differences = {name: norm(b - a) for name, (a, b) in pairs.items()}
    sizes = gradient_sizes(wanted.gradients)
    if all(differences[name] <= wanted.tolerance * sizes[name] for name in differences):
        return "", 1.0
    size_a = math.hypot(*(norm(a) for a, _ in pairs.values()))
    size_b = math.hypot(*(norm(b) for _, b in pairs.values()))
    if not math.isfinite(size_b):
        return f"their norm is {size_b} in step_b", 1.0
    if not size_a or not size_b:
        return f"their norm is {size_b:.3g} in step_b and {size_a:.3g} in step_a", 1.0
    products = (torch.vdot(a.flatten(), b.flatten()).real for a, b in pairs.values())
    cosine = float(sum(products)) / (size_a * size_b)
    if cosine > 1 - 1e-6 and abs(size_b / size_a - 1) > 1e-3:
        factor = size_b / size_a
        return f"all of them are {factor:.4g} times step_a's", factor
    worst = max(
        differences, key=lambda name: differences[name] / sizes[name] if sizes[name] else math.inf
    )
    error = math.hypot(*differences.values()) / size_a
    return f"off by {error:.2g} of their norm, cosine {cosine:.4f}, worst in {worst}", 1.0


def _only(part: str, found: Mapping[str, Any], parameters: Leaves) -> Leaves:
    return {k: v for k, v in found.items() if (k in parameters) == (part == "parameters")}


def _of_their_size(found: Leaves, tolerance: float) -> dict[str, float]:
    sizes = {name: abs(leaf) for name, leaf in found.items() if isinstance(leaf, float)}
    for name, leaf in found.items():
        if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            sizes[name] = norm(leaf.masked_fill(~leaf.isfinite(), 0))
    return {name: tolerance * size for name, size in sizes.items()}


def _worst(wanted: Leaves, seen: Leaves, allowed: Mapping[str, float]) -> str:
    """Say in words which leaf differs most of those that differ by more than they may."""
    worst, words = 0.0, ""
    for name in [*wanted, *(key for key in seen if key not in wanted)]:
        a, b = wanted.get(name), seen.get(name)
        if isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape:
            difference, size = _distance(a, b)
            if difference <= allowed.get(name, 0.0):
                continue
            share = difference / size if size else math.inf
            said = (
                f"off by {share:.2g} of its norm" if size else f"off by {difference:.2g} from zero"
            )
        elif equal(a, b) or _are_close(a, b, allowed.get(name, 0.0)):
            continue
        else:
            share, said = math.inf, f"is {_written(b)} in step_b and {_written(a)} in step_a"
        if not words or share > worst:
            worst, words = share, f"{name} {said}"
    return words


def _distance(a: Tensor, b: Tensor) -> tuple[float, float]:
    """Return the norms of the difference and of the first; numbers not finite must be the same."""
    rest = ~a.isfinite()
    if not equal(a[rest], b[rest]):
        return math.inf, norm(a.masked_fill(rest, 0))
    a, b = a.masked_fill(rest, 0), b.masked_fill(rest, 0)
    return norm(wide(b) - wide(a)), norm(a)


def _are_close(a: Any, b: Any, allowed: float) -> bool:
    return isinstance(a, float) and isinstance(b, float) and abs(b - a) <= allowed


def _written(leaf: Any) -> str:
    return f"{leaf:.6g}" if isinstance(leaf, float) else repr(leaf)[:60]


def equal(a: Any, b: Any) -> bool:
    """Compare two leaves of any type; nan equals nan in a tensor."""
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        same_kind = (a.shape, a.dtype) == (b.shape, b.dtype)
        return same_kind and bool(torch.isclose(a, b, rtol=0, atol=0, equal_nan=True).all())
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    return bool(a == b)
