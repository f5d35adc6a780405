"""How recomputing and accumulating change a recipe's training."""

import contextlib
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from tutorial_lib import memory
from tutorial_lib.instruments.planning.run.find_stages import find_stages
from tutorial_lib.instruments.predicting.placement import on_cpu
from tutorial_lib.instruments.private_torch import without_modes
from tutorial_lib.instruments.segments.sameness import Sameness, Seen, Tried, look
from tutorial_lib.instruments.segments.sameness import judge as judge_loss
from tutorial_lib.instruments.training import Recipe, step, user_function

_JUDGED: dict[str, Sameness] = {}  # published models; a user's function may change


def judge(recipe: Recipe | str) -> Sameness:
    """Look at a recipe's model and loss: what forward changes and reads, whether samples matter.

        print(planning.judge("train.py:make_loss"))

    It looks at the losses of one to four samples, in float32 and of one rank. How the loss of a
    published model treats samples is known. A small function of your own is tried for real. Of a
    whole step, only the first forward is looked at.

    Args:
        recipe: The model and its sizes. A name is enough.

    Raises:
        ValueError: When the model or a size is not known.
    """
    recipe = Recipe(recipe) if isinstance(recipe, str) else recipe
    plain = replace(recipe, precision="fp32", optimizer="adamw", checkpointing="none")
    plain = replace(plain, accumulation=1, ranks=1, shard=None)
    compares = step.compared_samples(plain)
    if compares is None:
        with memory.predicting():
            is_whole = len(user_function.build(replace(plain, micro_batch=1), "cpu")) == 3
        if is_whole:
            return Sameness.of(_seen_of_step(replace(recipe, checkpointing="none")), Tried())
    name = repr(replace(plain, micro_batch=1))
    if name in _JUDGED:
        return _JUDGED[name]
    known = None if compares is None else Tried(bool(compares), alone=compares != "pairs")
    names_gpu = compares is None and not torch.cuda.is_available()
    with without_modes(), on_cpu() if names_gpu else contextlib.nullcontext():
        found = judge_loss(
            lambda n: replace(plain, micro_batch=n).make_loss(), _stages_of, known=known
        )
    if compares is not None:
        _JUDGED[name] = found
    return found


def possible_micro_batches(samples: int, same: Sameness) -> list[int]:
    """List the divisors, without 1 if a single sample's loss has no gradient.

    Raises:
        ValueError: When that leaves none.
    """
    if samples == 1 and not same.alone:
        raise ValueError(
            "The loss compares samples, but one alone has no gradient: raise effective_batch."
        )
    return [n for n in range(1, samples + 1) if samples % n == 0 and (n > 1 or same.alone)]


def _stages_of(model: nn.Module) -> dict[str, nn.Module]:
    """Name the stages, or the innermost modules of a model in which no stages are found."""
    try:
        return find_stages(model)
    except ValueError:
        return {name: m for name, m in model.named_modules() if name and not [*m.children()]}


class _UpdatedError(Exception):
    """A step has come to its first update."""


def _seen_of_step(recipe: Recipe) -> Seen:
    with memory.predicting():
        run, model, optimizer = recipe.make_step()

        def stop(*_: Any) -> None:
            raise _UpdatedError

        def until_update() -> None:
            with contextlib.suppress(_UpdatedError):
                run()

        optimizer.register_step_pre_hook(stop)
        return look(model, until_update, _stages_of(model))
