"""What a recipe's step is added up from, and the step in whole: both on tensors without memory."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from tutorial_lib import memory
from tutorial_lib.memory.kernels import as_on_cuda
from tutorial_lib.memory.storages import list_tensors
from tutorial_lib.plan.apply import apply
from tutorial_lib.plan.profile import Profile, profile
from tutorial_lib.plan.roofline import Speed
from tutorial_lib.plan.schedule import Plan
from tutorial_lib.training import Recipe, Shard
from tutorial_lib.training.choices import COPYING


@dataclass(frozen=True)
class Update:
    """The bytes of an optimizer with its model.

    Args:
        resident_bytes: Parameters, buffers and states: held all the time.
        peak_bytes: Peak of the update, gradients included.
        touched_bytes: Read and written by the update, about.
    """

    resident_bytes: int
    peak_bytes: int
    touched_bytes: int


@dataclass(frozen=True)
class Parts:
    """A step taken apart.

    Args:
        recipe: With its precision.
        one: The model's stages with one sample.
        two: The same with two.
        updates: By optimizer.
    """

    recipe: Recipe
    one: Profile
    two: Profile
    updates: dict[str, Update]

    @classmethod
    def of(cls, recipe: Recipe, optimizers: Sequence[str], speed: Speed) -> Parts:
        """Profile the stages with one and with two samples, and each update by itself."""
        recipes = {name: replace(recipe, optimizer=name) for name in optimizers}
        with recipe.one_rank(), memory.predicting():
            profiles = []
            for samples in (1, 2):
                loss, model = replace(recipe, micro_batch=samples).make_loss()
                found = profile(model, loss, gradients="made", speed=speed, selective=True)
                profiles.append(found)
            updates = {name: _update(model, recipes[name]) for name in optimizers}
        if recipe.shard in COPYING:  # DDP's buckets hold all gradients, all the time
            extra = sum(p.nbytes for p in model.parameters() if p.requires_grad)
            updates = {
                name: replace(update, resident_bytes=update.resident_bytes + extra)
                for name, update in updates.items()
            }
        return cls(recipe, profiles[0], profiles[1], updates)


def _update(model: nn.Module, recipe: Recipe) -> Update:
    """Predict an update: of one parameter of each kind, where it makes no temporaries."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    kinds = Counter(map(_kind, trained))
    few = list({_kind(parameter): parameter for parameter in trained}.values())
    gradients = sum(part.nbytes for part in list_tensors(trained))
    if recipe.shard != Shard.ZERO1:  # which deals whole parameters out to the ranks
        report, optimizer = _measured(nn.ParameterList(few), recipe)
        states = [(kinds[_kind(p)], list_tensors([optimizer.state[p]])) for p in few]
        owners = Counter(id(part) for _, parts in states for part in parts)
        sizes = {id(part): part.nbytes for _, parts in states for part in parts}
        held = sum(part.nbytes for part in list_tensors([*model.parameters(), *model.buffers()]))
        held += sum(
            part.nbytes * count for count, parts in states for part in parts if owners[id(part)] < 2
        )
        held += sum(sizes[shared] for shared, count in owners.items() if count > 1)
        if report.peak_bytes == report.baseline_bytes + report.at_peak["gradients"]:
            return Update(held, held + gradients, 2 * held + gradients)
    report, _ = _measured(model, recipe)
    held = report.baseline_bytes
    return Update(held, report.peak_bytes, 2 * held + gradients)


def _kind(parameter: nn.Parameter) -> tuple[Any, ...]:
    return type(parameter.data), parameter.shape, parameter.dtype


def _measured(model: nn.Module, recipe: Recipe) -> tuple[memory.MemoryReport, Optimizer]:
    optimizer = recipe.make_optimizer(model)
    as_on_cuda(optimizer)

    def update() -> None:
        _make_gradients(model)
        optimizer.step()
        optimizer.zero_grad()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", memory.MeterWarning)  # that this is no whole step
        return memory.measure(update, model=model, optimizer=optimizer), optimizer


def _make_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter)


def predicted_peak(recipe: Recipe, plan: Plan) -> int:
    """Predict a step in whole, with a plan at work."""
    least = replace(recipe, accumulation=min(2, recipe.accumulation))  # a third peaks as the second
    is_alone = recipe.shard is None

    def make_step() -> Any:
        step, model, optimizer = least.make_step()
        if is_alone:  # an update brings the states; ranks share gradients in a whole step alone
            _make_gradients(model)
            optimizer.step()
            optimizer.zero_grad()
        apply(model, plan)
        return step, model, optimizer

    with recipe.one_rank():
        return memory.predict(make_step, warmup=0 if is_alone else 1).peak_bytes
