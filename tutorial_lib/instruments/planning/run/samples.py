"""A step with one sample and with two: what a straight line through both continues."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from tutorial_lib.instruments.planning.chain.profiled import Profile
from tutorial_lib.instruments.planning.run.find_stages import CannotPlanError
from tutorial_lib.instruments.planning.run.profile import profile
from tutorial_lib.instruments.planning.run.recording import Loss

Make = Callable[[int], tuple[Loss, nn.Module]]


def profile_samples(
    make_loss: Make, stages: Sequence[str] | None = None, **asked: Any
) -> tuple[Profile, Profile, nn.Module]:
    """Profile a step with one sample and with two, as a whole where no plan can take it apart.

    `make_loss` returns loss and model for so many samples; `stages` and `asked` are `profile`'s.
    Returns both profiles, and the second model.
    """

    def both(stages: Sequence[str] | None) -> tuple[Profile, Profile, nn.Module]:
        loss, model = make_loss(1)
        one = profile(model, loss, stages=stages, **asked)
        loss, model = make_loss(2)
        return one, profile(model, loss, stages=stages, like=one, **asked), model

    try:
        one, two, model = both(stages)
    except CannotPlanError as error:
        why = str(error)
    else:
        if _form(one) == _form(two):
            return one, two, model
        why = (
            f"The loss runs other stages with two samples ({len(two.calls)}) than with one "
            f"({len(one.calls)}), or chains them differently, so the bytes of more samples "
            "can't be told. Call the same stages for every micro-batch."
        )
    one, two, model = both(())
    return replace(one, why_whole=why), replace(two, why_whole=why), model


def _form(made: Profile) -> Any:
    given = [([t.dim() for t in call.tensors], call.constants) for call in made.calls]
    return made.names, given, [(skip.source, skip.target) for skip in made.skips]
