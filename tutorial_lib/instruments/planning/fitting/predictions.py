"""The parts of a recipe's step, and the whole step, predicted on tensors without memory."""

from __future__ import annotations

import gc
import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tutorial_lib import memory
from tutorial_lib.instruments.planning.chain.plan import Plan
from tutorial_lib.instruments.planning.chain.profiled import WHOLE, Call, Profile
from tutorial_lib.instruments.planning.run.apply import apply
from tutorial_lib.instruments.planning.run.find_stages import replaced, without_work
from tutorial_lib.instruments.planning.run.roofline import Speed
from tutorial_lib.instruments.planning.run.samples import profile_samples
from tutorial_lib.instruments.segments.structure import hidden
from tutorial_lib.instruments.training import Recipe, Shard
from tutorial_lib.instruments.training.fields import COPYING, UNDIVIDED
from tutorial_lib.memory.storages import list_tensors


@dataclass(frozen=True)
class Update:
    """The bytes of an optimizer with its model."""

    resident_bytes: int  # parameters, buffers and states: held all the time
    peak_bytes: int  # peak of the update, gradients included
    touched_bytes: int  # read and written by the update, about
    is_lean: bool = False  # it makes no temporaries: one parameter of each kind tells of all


@dataclass(frozen=True, eq=False)
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
            stages = [*profile.stages]
            for place in [place for place, name in enumerate(profile.names) if name in names]:
                stages[place] = replace(stages[place], recomputable=False, selective=None)
            return replace(profile, stages=tuple(stages))

        return replace(self, one=marked(self.one), two=marked(self.two))


def taken_apart(
    recipes: Sequence[Recipe],
    take: Callable[[Recipe], Parts],
    not_tried: dict[str, str],
    *,
    is_chosen: bool,
) -> Iterator[Parts]:
    """Take a step apart in one precision after the other; note in which it fails, and why."""
    try:
        first = take(recipes[0])
    except RuntimeError as error:
        if is_chosen:
            raise
        first = take(replace(recipes[0], precision="fp32"))
        not_tried[str(recipes[0].precision)] = _first_line(error)
    yield first
    for recipe in recipes[1:]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", memory.MeterWarning)  # they came with the first
                parts = take(recipe)
        except Exception as error:
            not_tried[str(recipe.precision)] = _first_line(error)
        else:
            yield parts


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _update(model: nn.Module, recipe: Recipe) -> Update:
    """Predict an update: of one parameter of each kind, where it makes no temporaries."""
    gradients = sum(part.nbytes for part in list_tensors(_trained(model)))
    if recipe.shard != Shard.ZERO1:  # which deals whole parameters out to the ranks
        report, optimizer = _measured(nn.ParameterList(_one_of_each_kind(model)), recipe)
        if report.peak_bytes == report.baseline_bytes + report.at_peak["gradients"]:
            states = {id(part): part.nbytes for part in list_tensors([*optimizer.state.values()])}
            held = sum(p.nbytes for p in list_tensors([*model.parameters(), *model.buffers()]))
            held += sum(states.values()) + _bytes_of_other_states(optimizer, model)
            return Update(held, held + gradients, 2 * held + gradients, is_lean=True)
    report, _ = _measured(model, recipe)
    held = report.baseline_bytes
    return Update(held, report.peak_bytes, 2 * held + gradients)


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _kind(parameter: Tensor) -> tuple[Any, ...]:
    return type(parameter), parameter.shape, parameter.dtype


def _one_of_each_kind(model: nn.Module) -> list[nn.Parameter]:
    return list({_kind(parameter): parameter for parameter in _trained(model)}.values())


def _bytes_of_other_states(optimizer: Optimizer, model: nn.Module) -> int:
    """Count the states of those parameters for which one of their kind was updated."""
    kinds = Counter(map(_kind, _trained(model)))
    states = [(kinds[_kind(p)], list_tensors(state)) for p, state in optimizer.state.items()]
    owners = Counter(id(part) for _, parts in states for part in parts)
    alone = [(count, part) for count, parts in states for part in parts if owners[id(part)] == 1]
    return sum(part.nbytes * (count - 1) for count, part in alone)  # others share theirs


def _measured(model: nn.Module, recipe: Recipe) -> tuple[memory.MemoryReport, Optimizer]:
    optimizer = recipe.make_optimizer(model)
    gc.freeze()  # else the meter looks for garbage among all that a plan has made
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", memory.MeterWarning)  # that this is no whole step
            update = partial(update_once, optimizer)
            return memory.measure(update, model=model, optimizer=optimizer), optimizer
    finally:
        gc.unfreeze()


def update_once(optimizer: Optimizer) -> None:
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


def predicted_peak(recipe: Recipe, plan: Plan, update: Update) -> int:
    """Predict a whole step, with a plan at work; of a lean update no more than is needed."""
    least = replace(recipe, accumulation=min(2, recipe.accumulation))  # a third peaks as the second
    is_alone, others = recipe.shard is None, [0]

    def make_step() -> Any:
        step, model, optimizer = least.make_step()
        if is_alone:  # an update brings the states; ranks share gradients in a whole step alone
            if update.is_lean:
                few = set(_one_of_each_kind(model))
                for group in optimizer.param_groups:
                    group["params"] = [p for p in group["params"] if p in few]
            update_once(optimizer)
            others[0] = _bytes_of_other_states(optimizer, model) if update.is_lean else 0
        apply(model, plan)
        is_one_call = plan.names != (WHOLE,) and not any(call.is_between for call in plan.calls)
        if is_alone and least.accumulation > 1 and is_one_call:
            skip_first_backward(model)
        return step, model, optimizer

    with recipe.one_rank():
        report = memory.predict(make_step, warmup=0 if is_alone else 1)
    return report.peak_bytes + others[0]


def skip_first_backward(model: nn.Module) -> None:
    """Create the gradients without running the first micro-batch: the second peaks above it."""
    calls = itertools.count()

    def whole(_: str, module: nn.Module) -> Callable[..., Any]:
        forward = module.forward

        def run(*args: Any, **kwargs: Any) -> Any:
            if next(calls):
                return forward(*args, **kwargs)
            with torch.no_grad():
                output = forward(*args, **kwargs)
            if hidden(Tensor, output) is not None:  # as in a distribution
                return forward(*args, **kwargs)
            return without_work(Call.of("", module, output), *model.parameters())

        return run

    replaced({"": model}, whole, "forward")
