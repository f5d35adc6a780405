"""One line for a notebook on two training steps, also where they are expected to differ."""

from collections.abc import Callable
from typing import Any

from tutorial_lib.checks.given.values import CheckError
from tutorial_lib.checks.same_training.compare import PARTS, assert_same_training


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
