"""Records of each update of a training, for `same_training` to compare."""

import copy
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tutorial_lib.checks.same_training.state import (
    Leaves,
    attributes,
    copied,
    gradient_sizes,
    leaves,
    norm,
    random_states,
    wide,
)

# Two-sided: with this many standard deviations a random walk of roundings exceeds the bound once
# in 1,500 sums (2 exp(-8)).
DEVIATIONS = 4
# A tolerance above it would let steps pass that leave out a micro-batch in ten.
_WORTHLESS = 0.1
# How an optimizer computes its update, and not which.
_NO_SETTINGS = ("params", "foreach", "fused", "capturable", "differentiable")
# A real difference may point elsewhere than the random one that the update was tried with.
_OTHER_DIRECTIONS = 4


def summation_tolerance(dtype: torch.dtype, num_terms: int) -> float:
    """Return the relative difference that two orders of summing the same numbers may make.

    Args:
        dtype: Type in which the sums are done.
        num_terms: Numbers in the longest sum.

    Returns:
        `2 * 4 * sqrt(num_terms) * u`, where the unit roundoff u is half of the type's epsilon.

    Raises:
        ValueError: When there is nothing to sum.

    Source:
        Higham and Mary (2019), A New Approach to Probabilistic Rounding Error Analysis, theorem
        2.4 with lambda = 4, once for each order. A rule of thumb: the theorem bounds one product of
        roundings, and a sum has num_terms of them. It assumes roundings that are independent with
        mean zero, and terms that do not cancel to far less than their size.
    """
    if num_terms < 1:
        raise ValueError(f"num_terms (={num_terms}) must be at least 1: count what is summed.")
    return 2 * DEVIATIONS * math.sqrt(num_terms) * torch.finfo(dtype).eps / 2


@dataclass
class Update:
    """One update: its gradients, its results, and how far rounding may move those."""

    optimizer: str  # its name
    gradients: dict[str, Tensor | None]  # by parameter's name; None where there was none
    tolerance: float  # relative difference allowed to the gradients
    after: Leaves = field(default_factory=dict)  # parameters and optimizer state, by name
    allowed: dict[str, float] = field(default_factory=dict)  # norm of the difference in each


@dataclass
class Call:
    """One call of a training step: its loss, its updates, and the state at its end."""

    loss: Any = None
    updates: list[Update] = field(default_factory=list)
    parameters: Leaves = field(default_factory=dict)
    buffers: Leaves = field(default_factory=dict)
    attributes: Leaves = field(default_factory=dict)
    settings: Leaves = field(default_factory=dict)
    others: Leaves = field(default_factory=dict)
    randomness: Leaves = field(default_factory=dict)

    def of(self, optimizer: str) -> list[Update]:
        """List the updates of one optimizer."""
        return [update for update in self.updates if update.optimizer == optimizer]


class Recorder:
    """Runs training steps on the models of a factory, and records every update.

    Args:
        made: Model, optimizer, and whatever else the step takes, as schedulers and scalers.
        dtype: Type of the arithmetic; None takes the coarsest of the model's parameters.
        num_terms: Length of the longest sum; None counts it from the model's inputs.
        bitwise: Whether no difference is allowed.
    """

    def __init__(
        self,
        made: tuple[Any, ...],
        *,
        dtype: torch.dtype | None,
        num_terms: int | None,
        bitwise: bool,
    ) -> None:
        self.made = made
        self.model: nn.Module = made[0]
        self.parts = dict(zip(_labels(made), made, strict=True))
        self.optimizers = {k: v for k, v in self.parts.items() if isinstance(v, Optimizer)}
        self.modules = {k: v for k, v in self.parts.items() if isinstance(v, nn.Module)}
        self.names: dict[int, str] = {}
        for label, module in self.modules.items():
            for name, p in module.named_parameters(prefix=label):
                self.names.setdefault(id(p), name)
        parameters = [p for module in self.modules.values() for p in module.parameters()]
        floats = [p.dtype for p in parameters if p.is_floating_point() or p.is_complex()]
        self.dtype = dtype or max(floats, key=lambda kind: torch.finfo(kind).eps)
        self.num_terms = num_terms
        self.bitwise = bitwise
        self.widest = max(max(p.shape, default=1) for p in parameters)

    def call(self, step: Callable[..., Any], leader: Call | None = None) -> Call:
        """Run a step once on what the factory made.

        After each update this training goes on from where the other step's stood (`leader`), so
        that one difference does not grow into the next.
        """
        record, seen = Call(), dict.fromkeys(self.optimizers, 0)
        twins: list[Optimizer] = []

        def entered(module: nn.Module, args: Any, kwargs: Any) -> None:
            tensors = [v for v in [*args, *kwargs.values()] if isinstance(v, Tensor)]
            most = max([0, *(tensor.numel() for tensor in tensors)])  # Dynamo knows no default=
            for label in seen:
                seen[label] += most

        def before(label: str, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            _refuse_closure(args, kwargs)
            update = Update(label, self._gradients(optimizer), self._tolerance(seen[label]))
            record.updates.append(update)
            seen[label] = 0
            if leader is None and not self.bitwise:
                twins.append(self._nudged(optimizer, update))

        def after(label: str, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            update, place = record.updates[-1], len(record.of(label)) - 1
            update.after = self._after(optimizer, optimizer)
            if twins:
                update.allowed = self._allowed(optimizer, update.after, twins.pop())
            if leader is not None and place < len(leader.of(label)):
                self._go_on_from(optimizer, leader.of(label)[place].after)

        with ExitStack() as hooks:
            for module in (one for whole in self.modules.values() for one in _entrances(whole)):
                handle = module.register_forward_pre_hook(entered, with_kwargs=True)
                hooks.callback(handle.remove)
            for label, optimizer in self.optimizers.items():
                pre = optimizer.register_step_pre_hook(functools.partial(before, label))
                post = optimizer.register_step_post_hook(functools.partial(after, label))
                hooks.callback(pre.remove), hooks.callback(post.remove)
            record.loss = _number(step(*self.made))
        self._read_end(record)
        return record

    def _read_end(self, record: Call) -> None:
        optimized = {id(p) for one in self.optimizers.values() for p, _ in _paired(one, one)}
        record.parameters = copied(dict(self.model.named_parameters()))
        record.buffers = copied(dict(self.model.named_buffers()))
        for label, part in list(self.parts.items())[1:]:
            if isinstance(part, Optimizer):
                continue
            state = dict(
                part.state_dict(keep_vars=True) if label in self.modules else part.state_dict()
            )
            moved = {k: state.pop(k) for k in list(state) if id(state[k]) in optimized}
            record.parameters |= copied({f"{label}.{k}": p for k, p in moved.items()})
            record.others |= copied(dict(leaves(state, label)))
        for label, module in self.modules.items():
            record.attributes |= attributes(module, label)
        for label, optimizer in self.optimizers.items():
            groups = [
                {k: v for k, v in group.items() if k not in _NO_SETTINGS}
                for group in optimizer.param_groups
            ]
            name = "param_groups" if len(self.optimizers) == 1 else f"{label}.param_groups"
            record.settings |= copied(dict(leaves(groups, name)))
        record.randomness = random_states()

    def _tolerance(self, num_inputs: int) -> float:
        if self.bitwise:
            return 0.0
        num_terms = self.num_terms or max(num_inputs, self.widest)
        tolerance = summation_tolerance(self.dtype, num_terms)
        if tolerance > _WORTHLESS:
            raise ValueError(
                f"in {self.dtype}, two orders of summing {num_terms} numbers may differ by "
                f"{tolerance:.2g} of their size, so a wrong step would pass too. Compare in "
                "float32, or say in num_terms how many additions round in that type."
            )
        return tolerance

    def _named(self, ours: Optimizer, theirs: Optimizer) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield each parameter's name, it, and its counterpart in the other optimizer."""
        for place, (our, their) in enumerate(_paired(ours, theirs)):
            yield self.names.get(id(our), f"parameter {place} of the optimizer"), our, their

    def _gradients(self, optimizer: Optimizer) -> dict[str, Tensor | None]:
        return {
            name: None if p.grad is None else p.grad.detach().clone()
            for name, p, _ in self._named(optimizer, optimizer)
        }

    def _nudged(self, optimizer: Optimizer, update: Update) -> Optimizer:
        """Copy the optimizer, and let the copy update with gradients wrong by the tolerance."""
        twin = copy.deepcopy(optimizer)
        generator = torch.Generator().manual_seed(0)
        sizes = gradient_sizes(update.gradients)
        for name, p, theirs in self._named(optimizer, twin):
            if p.grad is not None:
                noise = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.device)
                size = update.tolerance * sizes[name] / math.sqrt(max(1, p.numel()))
                theirs.grad = (wide(p.grad) + size * noise).to(p.grad.dtype)
        # By its class: a scheduler has put a step of its own on the optimizer itself.
        type(optimizer).step(twin)
        return twin

    def _after(self, optimizer: Optimizer, stepped: Optimizer) -> Leaves:
        found: Leaves = {}
        for name, _, p in self._named(optimizer, stepped):
            found[name] = p
            found |= dict(leaves(dict(stepped.state.get(p, {})), name))
        return copied(found)

    def _allowed(self, optimizer: Optimizer, after: Leaves, twin: Optimizer) -> dict[str, float]:
        roundoff = torch.finfo(self.dtype).eps
        moved = self._after(optimizer, twin)
        return {
            name: _OTHER_DIRECTIONS * norm(wide(moved[name]) - wide(value)) + roundoff * norm(value)
            for name, value in after.items()
            if isinstance(value, Tensor) and isinstance(moved.get(name), Tensor)
        }

    def _go_on_from(self, optimizer: Optimizer, after: Leaves) -> None:
        with torch.no_grad():
            for name, p, _ in self._named(optimizer, optimizer):
                p.copy_(after[name])
                for key, value in optimizer.state.get(p, {}).items():
                    theirs = after.get(f"{name}.{key}")
                    if isinstance(value, Tensor) and isinstance(theirs, Tensor):
                        value.copy_(theirs)


def _labels(made: tuple[Any, ...]) -> list[str]:
    """Name by its type each thing that the factory made; the model, the first, has no name."""
    kinds = ["", *(type(one).__name__ for one in made[1:])]
    repeated = {kind: 0 for kind in kinds if kinds.count(kind) > 1}
    for place, kind in enumerate(kinds):
        if kind in repeated:
            repeated[kind] += 1
            kinds[place] = f"{kind} {repeated[kind]}"
    return kinds


def _paired(ours: Optimizer, theirs: Optimizer) -> Iterator[tuple[Tensor, Tensor]]:
    first = (p for group in ours.param_groups for p in group["params"])
    second = (p for group in theirs.param_groups for p in group["params"])
    return zip(first, second, strict=True)


def _entrances(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that a step may call: of a container that can't be called, its parts."""
    if isinstance(module, nn.ModuleList | nn.ModuleDict):
        for part in module.children():
            yield from _entrances(part)
    else:
        yield module


def _refuse_closure(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    if any(map(callable, [*args[1:], kwargs.get("closure")])):
        raise ValueError(
            "the optimizer's step() was called with a closure, whose gradients can't be seen from "
            "outside. Call backward first, and step() without it."
        )


def _number(loss: Any) -> Any:
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return float(loss.detach())
    return float(loss) if isinstance(loss, int | np.floating) else loss
