"""Two training steps, one result: what finds silent bugs of a training loop."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from tutorial_lib.checks.given.values import CheckError
from tutorial_lib.checks.same_training.difference import Difference, differences, equal
from tutorial_lib.checks.same_training.record import Call, Recorder
from tutorial_lib.checks.same_training.state import norm, random_states, set_random_states

PARTS = {
    "updates": "Is optimizer.step() called once per window, including the last one?",
    "loss": "Is the reported loss the one that the update minimises, over the whole window?",
    "gradients": "Is each micro-batch weighted by its share of the window, are gradients zeroed "
    "once per window, unscaled and clipped once, before the update? Does the recomputation see "
    "what forward saw?",
    "parameters": "The gradients agree: is the learning rate the same, and does nothing but the "
    "update touch the parameters?",
    "buffers": "Does a layer's forward change state with each micro-batch, such as BatchNorm's "
    "statistics or a codebook?",
    "attributes": "Does forward count or keep something in an attribute, once more for each "
    "micro-batch or recomputation? If training never reads it, pass ignore=['attributes'].",
    "optimizer state": "Is the scheduler stepped once per update, after it?",
    "other state": "Are scheduler and scaler stepped once per update, not once per micro-batch?",
    "random state": "Does one step draw more random numbers, or seed the generator?",
}


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

    Each step trains its own copy, from the same start; what its closure holds, such as an iterator
    over data, is up to the caller. It compares the number of updates, the loss, the gradients
    that each optimizer got, parameters and optimizer state after each update, buffers and plain
    attributes of modules, the state of schedulers and scalers, and the random states.

    Args:
        step_a: The step to trust, called as `step_a(*make())`. It updates through the optimizer
            that it is given, or several, and returns its loss or None.
        step_b: The step in question, called in the same way.
        make: Builds everything anew: model, optimizer, and what else the steps take and has a
            `state_dict`, as more models and optimizers, schedulers and scalers. Called twice, with
            the same random state.
        calls: How often each step is called; a second call sees what the first left behind.
        bitwise: Whether nothing may differ at all.
        num_terms: Length of the longest sum in one update. `None` counts the numbers that
            entered the model for it (tokens, pixels), or the widest dimension of a parameter.
        dtype: Type of the arithmetic where it is coarser than the parameters', as under autocast.
        ignore: Parts not to compare, of `PARTS`.

    Raises:
        CheckError: When something differs, is not finite, or no update happens: what differs
            first and by how much, what else differs, and what to try.
        ValueError: When `calls`, `num_terms` or `ignore` is invalid, when rounding in `dtype` may
            be so large that a wrong step would pass, or when an update has a closure.
        TypeError: When `make` returns no model and optimizer.
        Exception: What `make` or a step raises. The random states are put back in every case.

    Source:
        Gradients may differ, in norm, by `summation_tolerance`. How far parameters and optimizer
        state may is tried out: a copy of the optimizer updates with gradients wrong by just that
        much. After each update step_b goes on from where step_a stood. Which implementation an
        optimizer takes (`foreach`, `fused`) is not compared.
    """
    _check_options(calls, num_terms, ignore)
    before = random_states()
    try:
        a, b = _two_trainings(make, dtype=dtype, num_terms=num_terms, bitwise=bitwise)
        for turn in range(1, calls + 1):
            wanted, seen = _one_call(a, step_a, b, step_b, turn)
            if found := [d for d in differences(wanted, seen, bitwise) if d.part not in ignore]:
                raise CheckError(
                    _message(found, turn, max(update.tolerance for update in wanted.updates))
                )
    finally:
        set_random_states(before)
    left_out = f" (not compared: {', '.join(ignore)})" if ignore else ""
    print(f"the same training, {'bit for bit' if bitwise else 'within rounding'}{left_out}")


def _check_options(calls: int, num_terms: int | None, ignore: Sequence[str]) -> None:
    if calls < 1:
        raise ValueError(f"calls (={calls}) must be at least 1: with 0 nothing is compared.")
    if num_terms is not None and num_terms < 1:
        raise ValueError(f"num_terms (={num_terms}) must be at least 1: count what is summed.")
    for part in set(ignore) - set(PARTS):
        raise ValueError(f"ignore names {part!r}, which isn't one of {', '.join(PARTS)}.")


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
            raise TypeError(f"make() returned {kinds!r}: it must return (model, optimizer, ...).")
        recorders.append(Recorder(made, **options))
    a, b = recorders
    ours, theirs = (
        {id(one) for module in made.modules.values() for one in module.modules()}
        | {*map(id, made.optimizers.values())}
        for made in recorders
    )
    if ours & theirs:
        raise ValueError("make() returned the same layer or optimizer twice: build new ones in it.")
    state = b.model.state_dict()
    for name, value in a.model.state_dict().items():
        if name not in state or not equal(value, state[name]):
            raise ValueError(f"make() returned two models whose {name} differs: seed inside it.")
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
            "Does it call step() on the optimizer that it is given?"
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
                f"call {turn}: step_a's {name} is {value}, but must be finite to compare with. "
                "Is a batch empty, or are all its targets masked?"
            )


def _message(found: list[Difference], turn: int, tolerance: float) -> str:
    found = sorted(found, key=lambda difference: list(PARTS).index(difference.part))
    first, rest = found[0], {difference.part: difference.seen for difference in found[1:]}
    also = ""
    if rest:
        gradients = rest.get("gradients")
        names = [f"{n} ({gradients})" if n == "gradients" else n for n in rest]
        also = f" Also different: {', '.join(names)}."
    exact = f"allowed relative difference: {tolerance:.1e}" if tolerance else "bit for bit"
    return f"call {turn}, {first.part}: {first.seen} ({exact}).{also} {_hint(found)}"


def _hint(found: list[Difference]) -> str:
    """Return a question about the likely cause of the first difference, given the others."""
    parts = {difference.part: difference for difference in found}
    first, moved = found[0].part, [part for part in ("buffers", "attributes") if part in parts]
    if first not in ("loss", "gradients"):
        return PARTS[first]
    # A wrong loss with wrong gradients is one fault: the gradients' cause explains both.
    if "gradients" in parts:
        return parts["gradients"].hint or " ".join(PARTS[p] for p in ["gradients", *moved[:1]])
    return PARTS[moved[0] if moved else first]


def verdict(
    step_a: Callable[..., Any],
    step_b: Callable[..., Any],
    *,
    make: Callable[[], tuple[Any, ...]],
    differs: str | None = None,
    **options: Any,
) -> None:
    """Print in one line how two training steps differ, and raise where that is not as expected.

    Args:
        step_a: The step to trust.
        step_b: The step in question.
        make: Builds model, optimizer and so on, anew, as for `assert_same_training`.
        differs: The first part, of `PARTS`, in which the two must differ, such as "gradients".
            `None` if they must be the same training.
        options: Passed on to `assert_same_training`.

    Raises:
        CheckError: When another part differs first, or none does.
        ValueError: When `differs` names no part.
    """
    if differs not in (None, *PARTS):
        raise ValueError(f"differs (={differs!r}) must be None, or one of {', '.join(PARTS)}.")
    try:
        assert_same_training(step_a, step_b, make=make, **options)
    except CheckError as refusal:
        seen = str(refusal).partition(" (")[0]
        if differs is None or not seen.split(":")[0].endswith(f", {differs}"):
            raise
        print(seen)
    else:
        if differs:
            raise CheckError(f"The two steps must differ in their {differs}, but they do not.")
