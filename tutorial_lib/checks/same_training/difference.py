"""Differences of two calls of a training step: part by part, in words, the first cause first."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tutorial_lib.checks.same_training.record import Call, Update, gradient_sizes
from tutorial_lib.checks.same_training.state import Leaves, norm, wide


@dataclass(frozen=True)
class Difference:
    """A part of two calls that differs, and how, in words."""

    part: str
    seen: str


def differences(wanted: Call, seen: Call, bitwise: bool) -> Iterator[Difference]:
    """List the parts that differ, each with its worst case in words, the first cause first."""
    if len(seen.updates) != len(wanted.updates):
        counts = f"{len(seen.updates)} with its optimizer, and step_a {len(wanted.updates)}"
        yield Difference("updates", f"step_b made {counts}")
    tolerance = max(update.tolerance for update in wanted.updates)
    if words := _loss(wanted.loss, seen.loss, tolerance):
        yield Difference("loss", words)
    pairs = list(zip(wanted.updates, seen.updates, strict=False))
    if words := next(filter(None, (_gradients(*pair) for pair in pairs)), ""):
        yield Difference("gradients", words)
    allowed = dict(wanted.updates[-1].allowed)
    moved = [(a.after, b.after, a.allowed) for a, b in pairs]
    moved.append((wanted.parameters, seen.parameters, allowed))
    for part in ("parameters", "optimizer state"):
        cases = [tuple(_only(part, found, wanted.parameters) for found in case) for case in moved]
        if part == "optimizer state":
            cases.append((wanted.settings, seen.settings, {}))
        if words := next(filter(None, (_worst(*case) for case in cases)), ""):
            yield Difference(part, words)
    for part, ours, theirs in (
        ("buffers", wanted.buffers, seen.buffers),
        ("other state", wanted.others, seen.others),
    ):
        if words := _worst(ours, theirs, {} if bitwise else _of_their_size(ours, tolerance)):
            yield Difference(part, words)
    for source, state in wanted.randomness.items():
        if not equal(state, seen.randomness.get(source)):
            yield Difference("random state", f"{source}'s generator is elsewhere after step_b")


def _loss(wanted: Any, seen: Any, tolerance: float) -> str:
    if not (isinstance(wanted, float) and isinstance(seen, float)):
        return "" if equal(wanted, seen) else f"step_b returned {seen!r}, step_a {wanted!r}"
    if abs(seen - wanted) <= tolerance * abs(wanted):
        return ""
    ratio = f", {seen / wanted:.4g} times as much" if wanted else ""
    return f"step_b returned {seen:.6g}, step_a {wanted:.6g}{ratio}"


def _gradients(wanted: Update, seen: Update) -> str:
    """Say how an update's gradients differ: all by one factor, or which one by how much."""
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    for name, grad in wanted.gradients.items():
        theirs = seen.gradients.get(name)
        if (grad is None) != (theirs is None):
            return f"{name} has a gradient in step_{'b' if grad is None else 'a'} alone"
        if grad is not None and theirs is not None:
            pairs[name] = wide(grad), wide(theirs)
    differences = {name: norm(b - a) for name, (a, b) in pairs.items()}
    sizes = gradient_sizes(wanted.gradients)
    if all(differences[name] <= wanted.tolerance * sizes[name] for name in differences):
        return ""
    size_a = math.hypot(*(norm(a) for a, _ in pairs.values()))
    size_b = math.hypot(*(norm(b) for _, b in pairs.values()))
    if not math.isfinite(size_b):
        return f"their norm is {size_b} in step_b"
    if not size_a or not size_b:
        return f"their norm is {size_b:.3g} in step_b and {size_a:.3g} in step_a"
    products = (torch.vdot(a.flatten(), b.flatten()).real for a, b in pairs.values())
    cosine = float(sum(products)) / (size_a * size_b)
    if cosine > 1 - 1e-6 and abs(size_b / size_a - 1) > 1e-3:
        return f"all of them are {size_b / size_a:.4g} times those of step_a"
    worst = max(
        differences, key=lambda name: differences[name] / sizes[name] if sizes[name] else math.inf
    )
    error = math.hypot(*differences.values()) / size_a
    return f"off by {error:.2g} of their norm, cosine {cosine:.4f}, worst in {worst}"


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
    """Give the norms of the difference and of the first; numbers not finite must be the same."""
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
