"""Find stages that give another output when they are run again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.plan.calls import replaced
from tutorial_lib.plan.later import tensors_of


def check_repeatable(
    stages: dict[str, nn.Module], loss: Callable[[], Tensor], keep: Sequence[str]
) -> None:
    """Run every stage twice with the same input and random numbers, and compare, bit for bit.

    Args:
        stages: By name.
        loss: Runs the model.
        keep: Stages that may differ, since they are never recomputed.

    Raises:
        ValueError: When one differs; the message names it.
    """

    def twice(name: str, module: nn.Module) -> Callable[..., Any]:
        forward = module.forward

        def run(*args: Any, **kwargs: Any) -> Any:
            if name in keep:
                return forward(*args, **kwargs)
            before = _random_states()
            first = forward(*args, **kwargs)
            after = _random_states()
            _set_random_states(before)
            again = forward(*args, **kwargs)
            _set_random_states(after)
            if not _equal(first, again):
                raise ValueError(
                    f"The stage {name} ({type(module).__name__}) gave another output when it was "
                    "run again with the same input and the same random numbers, so that it cannot "
                    f"be recomputed. Make it deterministic, or say keep=[{name!r}] to have it kept."
                )
            return first

        return run

    with replaced(stages, twice), torch.no_grad():
        loss()


def _equal(one: Any, other: Any) -> bool:
    pairs = list(zip(tensors_of(one), tensors_of(other), strict=True))
    return all(bool(((a == b) | ((a != a) & (b != b))).all()) for a, b in pairs)


def _random_states() -> list[Tensor]:
    gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return [torch.get_rng_state(), *gpu]


def _set_random_states(states: Sequence[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(states[1:])
