"""The parts of a recipe's step, and the whole step, predicted on tensors without memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from tutorial_lib import memory
from tutorial_lib.instruments.planning.chain.plan import Plan
from tutorial_lib.instruments.planning.chain.profiled import Profile
from tutorial_lib.instruments.planning.run.apply import apply
from tutorial_lib.instruments.planning.run.roofline import Speed
from tutorial_lib.instruments.planning.run.samples import profile_samples
from tutorial_lib.instruments.segments.sameness import Sameness
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.instruments.training.fields import COPYING, UNDIVIDED
from tutorial_lib.memory.storages import list_tensors


@dataclass(frozen=True)
class Update:
    """The bytes of an optimizer with its model."""

    resident_bytes: int  # parameters, buffers and states: held all the time
    peak_bytes: int  # peak of the update, gradients included
    touched_bytes: int  # read and written by the update, about


@dataclass(frozen=True)
class Parts:
    """A step taken apart."""

    recipe: Recipe  # with its precision
    one: Profile  # the model's stages with one sample
    two: Profile  # the same with two
    updates: dict[str, Update]  # by optimizer

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        optimizers: Sequence[str],
        speed: Speed,
        stages: Sequence[str] | None = None,
    ) -> Parts:
        """Profile the stages with one and with two samples, and each update by itself."""
        recipes = {name: replace(recipe, optimizer=name) for name in optimizers}
        with recipe.one_rank(), memory.predicting():
            settings: dict[str, Any] = {"gradients": "made", "speed": speed, "selective": True}
            settings["is_judged"] = True  # who calls this keeps what cannot run again
            one, two, model = profile_samples(
                lambda samples: replace(recipe, micro_batch=samples).make_loss(), stages, **settings
            )
            is_complex = any(parameter.is_complex() for parameter in model.parameters())
            able = [name for name in optimizers if not (is_complex and name in UNDIVIDED)]
            updates = {name: _update(model, recipes[name]) for name in able or optimizers}
        if recipe.shard in COPYING:  # DDP's buckets hold all gradients, all the time
            extra = sum(p.nbytes for p in model.parameters() if p.requires_grad)
            updates = {
                name: replace(update, resident_bytes=update.resident_bytes + extra)
                for name, update in updates.items()
            }
        return cls(recipe, one, two, updates)

    def kept(self, names: Container[str]) -> Parts:
        """Keep these stages in every plan."""

        def marked(profile: Profile) -> Profile:
            pairs = zip(profile.names, profile.stages, strict=True)
            stages = (
                replace(s, recomputable=False, selective=None) if n in names else s
                for n, s in pairs
            )
            return replace(profile, stages=tuple(stages))

        return replace(self, one=marked(self.one), two=marked(self.two))


def taken_apart(
    recipes: Sequence[Recipe],
    take: Callable[[Recipe], Parts],
    look: Callable[[], Sameness],
    *,
    is_chosen: bool,
) -> tuple[list[Parts], dict[str, str], Sameness]:
    """Take a step apart in each precision, and say why one was not tried, and what was seen."""
    same, found, not_tried = look(), list[Parts](), dict[str, str]()
    try:
        found.append(take(recipes[0]))
    except RuntimeError as error:
        if is_chosen:
            raise
        found.append(take(replace(recipes[0], precision="fp32")))
        not_tried[str(recipes[0].precision)] = _first_line(error)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", memory.MeterWarning)  # they came with the first
        for recipe in recipes[1:]:
            try:
                found.append(take(recipe))
            except Exception as error:
                not_tried[str(recipe.precision)] = _first_line(error)
    return [parts.kept(same.unlike) for parts in found], not_tried, same


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _update(model: nn.Module, recipe: Recipe) -> Update:
    """Predict an update by itself."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = sum(part.nbytes for part in list_tensors(trained))
    optimizer = recipe.make_optimizer(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", memory.MeterWarning)  # that this is no whole step
        report = memory.measure(lambda: _update_once(optimizer), model=model, optimizer=optimizer)
    held = report.baseline_bytes
    return Update(held, report.peak_bytes, 2 * held + gradients)


def _update_once(optimizer: Optimizer) -> None:
    """Create an optimizer's states by an update alone, without forward and backward."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


def predicted(recipe: Recipe, kernels: Literal["cuda", "cpu"] = "cuda") -> memory.MemoryReport:
    """Predict a recipe's step with at most two micro-batches: a third peaks like the second."""
    least = replace(recipe, accumulation=min(2, recipe.accumulation))
    return memory.predict(least.make_step, kernels=kernels)


def predicted_peak(recipe: Recipe, plan: Plan) -> int:
    """Predict a step in whole, with a plan at work."""
    least = replace(recipe, accumulation=min(2, recipe.accumulation))  # a third peaks as the second
    is_alone = recipe.shard is None

    def make_step() -> Any:
        step, model, optimizer = least.make_step()
        if is_alone:  # an update brings the states; ranks share gradients in a whole step alone
            _update_once(optimizer)
        return step, apply(model, plan), optimizer

    with recipe.one_rank():
        return memory.predict(make_step, warmup=0 if is_alone else 1).peak_bytes
