"""Two training steps, one result: the check that finds silent bugs of a training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tutorial_lib.checks.core import CheckError
from tutorial_lib.checks.training_record import (
    Call,
    Leaves,
    Recorder,
    Update,
    gradient_sizes,
    norm,
    random_states,
    set_random_states,
)

PARTS = {
    "updates": "Is optimizer.step() called once a window, the last one included?",
    "loss": "Is the loss that is reported the one that the update minimises, of the whole window?",
    "gradients": "Is each micro-batch weighted by its share of the window, are gradients zeroed "
    "once a window, unscaled and clipped once, before the update?",
    "parameters": "The gradients agree: is the learning rate the same, and does nothing but the "
    "update touch the parameters?",
    "buffers": "Does a layer keep statistics of the batch, as BatchNorm does of each micro-batch?",
    "optimizer state": "Is the scheduler stepped once an update, after it?",
    "other state": "Are scheduler and scaler stepped once an update, and not in each micro-batch?",
    "random state": "Does one step draw more random numbers, or seed the generator?",
}


@dataclass(frozen=True)
class _Difference:
    part: str
    seen: str


def assert_same_training(
    step_a: Callable[..., Any],
    step_b: Callable[..., Any],
    *,
    make: Callable[[], tuple[Any, ...]],
    calls: int = 2,
    bitwise: bool = False,
    num_terms: int | None = None,
    dtype: torch.dtype | None = None,
    ignore: Sequence[str] = (),
) -> None:
    """Check that two training steps do the same to a model, up to the order of summation.

    Each step runs on a training of its own, from the same start; what its closure holds, as an
    iterator over data, is the caller's. Compared are the number of
    updates, the loss, the gradients that the optimizer got, parameters and optimizer state after
    each update, buffers, the state of schedulers and scalers, and the random states.

    Args:
        step_a: The step to trust, called as `step_a(*make())`. It updates through the optimizer
            that it is given, and returns its loss or None.
        step_b: The step in question, called in the same way.
        make: Builds everything anew: model, optimizer, and what else the steps take and has a
            `state_dict`, as schedulers and scalers. Called twice, with the same random state.
        calls: How often each step is called; a second call sees what the first left behind.
        bitwise: Whether nothing may differ at all.
        num_terms: Length of the longest sum in one update. `None` counts the numbers that
            entered the model for it (tokens, pixels), or the widest dimension of a parameter.
        dtype: Type of the arithmetic where it is coarser than the parameters', as under autocast.
        ignore: Parts not to compare, of `PARTS`.

    Raises:
        CheckError: When something differs, is not finite, or no update happens: what differs
            first and by how much, what else differs, and what to try.
        ValueError: When `calls`, `num_terms` or `ignore` cannot be.
        TypeError: When `make` gives no model and optimizer.
        Exception: What `make` or a step raises. The random states are put back in every case.

    Source:
        Gradients may differ, in norm, by `summation_tolerance`. How far parameters and optimizer
        state may is tried out: a copy of the optimizer updates with gradients wrong by just so
        much. After each update step_b goes on from where step_a stood. Checked for optimizers
        whose `step()` takes no closure.
    """
    _check_options(calls, num_terms, ignore)
    before = random_states()
    try:
        a, b = _two_trainings(make, dtype=dtype, num_terms=num_terms, bitwise=bitwise)
        for turn in range(1, calls + 1):
            wanted, seen = _one_call(a, step_a, b, step_b, turn)
            if found := [d for d in _differences(wanted, seen, bitwise) if d.part not in ignore]:
                raise CheckError(_message(found, turn, wanted.updates[0].tolerance))
    finally:
        set_random_states(before)
    left_out = f" (not compared: {', '.join(ignore)})" if ignore else ""
    print(f"the same training, {'bit for bit' if bitwise else 'within rounding'}{left_out}")


def _check_options(calls: int, num_terms: int | None, ignore: Sequence[str]) -> None:
    if calls < 1:
        raise ValueError(f"calls (={calls}) must be at least 1: with none nothing is compared.")
    if num_terms is not None and num_terms < 1:
        raise ValueError(f"num_terms (={num_terms}) must be at least 1: count what is summed.")
    for part in set(ignore) - set(PARTS):
        raise ValueError(f"ignore names {part!r}, which is none of {', '.join(PARTS)}.")


def _two_trainings(make: Callable[[], tuple[Any, ...]], **options: Any) -> list[Recorder]:
    start, recorders = random_states(), []
    for _ in range(2):
        set_random_states(start)
        made = make()
        kinds = [type(part).__name__ for part in made] if isinstance(made, tuple) else made
        if not (
            isinstance(made, tuple)
            and len(made) > 1
            and isinstance(made[0], nn.Module)
            and isinstance(made[1], Optimizer)
        ):
            raise TypeError(f"make() gave {kinds!r}: it must return (model, optimizer, ...).")
        recorders.append(Recorder(made, **options))
    a, b = recorders
    if a.optimizer is b.optimizer or {*map(id, a.model.modules())} & {*map(id, b.model.modules())}:
        raise ValueError("make() gave the same layer or optimizer twice: build new ones in it.")
    state = b.model.state_dict()
    for name, value in a.model.state_dict().items():
        if name not in state or not torch.equal(value, state[name]):
            raise ValueError(f"make() gave two models whose {name} differs: seed inside it.")
    return recorders


def _one_call(
    a: Recorder, step_a: Callable[..., Any], b: Recorder, step_b: Callable[..., Any], turn: int
) -> tuple[Call, Call]:
    start = random_states()
    wanted = a.call(step_a)
    _check_reference(wanted, turn)
    after = random_states()
    set_random_states(start)
    seen = b.call(step_b, leader=wanted)
    set_random_states(after)
    return wanted, seen


def _check_reference(wanted: Call, turn: int) -> None:
    if not wanted.updates:
        raise CheckError(
            f"call {turn}: step_a made no update, so there is nothing to compare with. "
            "Does it call step() of the optimizer that it is given?"
        )
    values = {"loss": wanted.loss} | {
        f"gradient of {name}": norm(grad)
        for update in wanted.updates
        for name, grad in update.gradients.items()
        if grad is not None
    }
    for name, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise CheckError(
                f"call {turn}: step_a's {name} is {value}, and must be finite to compare with. "
                "Is a batch empty, or are all its targets masked?"
            )


def _differences(wanted: Call, seen: Call, bitwise: bool) -> Iterator[_Difference]:
    """List the parts that differ, each with its worst case in words, the first cause first."""
    if len(seen.updates) != len(wanted.updates):
        counts = f"{len(seen.updates)} with its optimizer, and step_a {len(wanted.updates)}"
        yield _Difference("updates", f"step_b made {counts}")
    tolerance = max(update.tolerance for update in wanted.updates)
    if words := _loss(wanted.loss, seen.loss, tolerance):
        yield _Difference("loss", words)
    pairs = list(zip(wanted.updates, seen.updates, strict=False))
    if words := next(filter(None, (_gradients(*pair) for pair in pairs)), ""):
        yield _Difference("gradients", words)
    allowed = dict(wanted.updates[-1].allowed)
    moved = [(a.after, b.after, a.allowed) for a, b in pairs]
    moved.append((wanted.parameters, seen.parameters, allowed))
    for part in ("parameters", "optimizer state"):
        cases = [tuple(_only(part, found, wanted.parameters) for found in case) for case in moved]
        if part == "optimizer state":
            cases.append((wanted.settings, seen.settings, {}))
        if words := next(filter(None, (_worst(*case) for case in cases)), ""):
            yield _Difference(part, words)
    rounding = {} if bitwise else _of_their_size(wanted.buffers, tolerance)
    if words := _worst(wanted.buffers, seen.buffers, rounding):
        yield _Difference("buffers", words)
    if words := _worst(wanted.others, seen.others, {}):
        yield _Difference("other state", words)
    for source, state in wanted.randomness.items():
        if not _equal(state, seen.randomness.get(source)):
            yield _Difference("random state", f"{source}'s generator is elsewhere after step_b")


def _message(found: list[_Difference], turn: int, tolerance: float) -> str:
    found = sorted(found, key=lambda difference: list(PARTS).index(difference.part))
    first, rest = found[0], {difference.part: difference.seen for difference in found[1:]}
    also = ""
    if rest:
        gradients = rest.get("gradients")
        names = [f"{n} ({gradients})" if n == "gradients" else n for n in rest]
        also = f" Different too: {', '.join(names)}."
    # A wrong loss with wrong gradients is one fault, and it is that of the gradients.
    cause = "gradients" if first.part == "loss" and "gradients" in rest else first.part
    exact = f"allowed relative difference: {tolerance:.1e}" if tolerance else "bit for bit"
    return f"call {turn}, {first.part}: {first.seen} ({exact}).{also} {PARTS[cause]}"


def _loss(wanted: Any, seen: Any, tolerance: float) -> str:
    if not (isinstance(wanted, float) and isinstance(seen, float)):
        same = wanted is None and seen is None
        return "" if same else f"step_b returned {seen!r}, step_a {wanted!r}"
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
            pairs[name] = grad.double(), theirs.double()
    off = {name: norm(b - a) for name, (a, b) in pairs.items()}
    sizes = gradient_sizes(wanted.gradients)
    if all(off[name] <= wanted.tolerance * sizes[name] for name in off):
        return ""
    size_a = math.hypot(*(norm(a) for a, _ in pairs.values()))
    size_b = math.hypot(*(norm(b) for _, b in pairs.values()))
    if not math.isfinite(size_b):
        return f"their norm is {size_b} in step_b"
    if not size_a or not size_b:
        return f"their norm is {size_b:.3g} in step_b and {size_a:.3g} in step_a"
    cosine = sum(float((a * b).sum()) for a, b in pairs.values()) / (size_a * size_b)
    if cosine > 1 - 1e-6 and abs(size_b / size_a - 1) > 1e-3:
        return f"all of them are {size_b / size_a:.4g} times those of step_a"
    worst = max(off, key=lambda name: off[name] / sizes[name] if sizes[name] else math.inf)
    error = math.hypot(*off.values()) / size_a
    return f"off by {error:.2g} of their norm, cosine {cosine:.4f}, worst in {worst}"


def _only(part: str, found: Mapping[str, Any], parameters: Leaves) -> Leaves:
    return {k: v for k, v in found.items() if (k in parameters) == (part == "parameters")}


def _of_their_size(found: Leaves, tolerance: float) -> dict[str, float]:
    return {k: tolerance * norm(v) for k, v in found.items() if v.is_floating_point()}


def _worst(wanted: Leaves, seen: Leaves, allowed: Mapping[str, float]) -> str:
    """Say in words which leaf differs most of those that differ by more than they may."""
    worst, words = 0.0, ""
    for name in [*wanted, *(key for key in seen if key not in wanted)]:
        a, b = wanted.get(name), seen.get(name)
        if isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape:
            off, size = norm(b.double() - a.double()), norm(a)
            if off <= allowed.get(name, 0.0):
                continue
            share = off / size if size else math.inf
            said = f"off by {share:.2g} of its norm" if size else f"off by {off:.2g} from zero"
        elif _equal(a, b):
            continue
        else:
            share, said = math.inf, f"is {_written(b)} in step_b and {_written(a)} in step_a"
        if not words or share > worst:
            worst, words = share, f"{name} {said}"
    return words


def _written(leaf: Any) -> str:
    return f"{leaf:.6g}" if isinstance(leaf, float) else repr(leaf)[:60]


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    return bool(a == b)
