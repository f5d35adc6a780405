"""One look at a forward: which of its stages would compute something else when they run again."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from tutorial_lib.instruments import segments
from tutorial_lib.instruments.private_torch import CALL, in_transform, without_modes
from tutorial_lib.instruments.random_states import python_random_states, set_python_random_states
from tutorial_lib.instruments.segments.modes import Modes
from tutorial_lib.instruments.segments.one_module import refuses_hooks
from tutorial_lib.instruments.segments.sameness import state
from tutorial_lib.instruments.segments.sameness.value_numbers import ValueNumbers, keys_of
from tutorial_lib.instruments.segments.structure import list_leaves

_OWN_INPUT = "its own input"
_PYTHONS = "random numbers of Python or NumPy"
_WEIGHTS = "weights from functional_call"
_SOMETHING = "something that it keeps"


@dataclass
class Seen:
    """What was seen of a forward."""

    # stages that compute something else when they run again, and what they had changed
    unlike: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # stages that run under `torch.func`, where no checkpoint can run them again
    transformed: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()  # what running a stage again changes, without a stage that reads it
    # what one forward changes so that the next one computes something else
    moves: tuple[str, ...] = ()
    # whether it changes anything that the model holds, BatchNorm's averages left out
    writes: bool = False
    draws: set[str] = field(default_factory=set)  # operations that drew random numbers
    batch_norms: int = 0  # how many normalisations were by statistics of the batch
    flops: int = 0  # of one forward
    made_bytes: int = 0  # bytes of all results of one forward


@dataclass
class _Call:
    """A call of a stage: all that a checkpoint would run it again with, and what it computed."""

    name: str
    module: nn.Module
    run: Callable[[], Any]
    given: Any
    arguments: list[Any]
    weights: list[int]
    position: int
    random_state: Tensor
    modes: Modes
    computed: list[tuple[list[int], Any]] = field(default_factory=list)
    drew_of_python: bool = False


def look(
    model: nn.Module,
    run: Callable[[], Any],
    stages: Mapping[str, nn.Module],
    *,
    beside_model: bool = True,
) -> Seen:
    """Run a forward, then each stage again as a checkpoint does, then the forward again.

    Works on tensors without memory, and on others. What the model holds moves on with each of these
    runs, so look at one that was made for it, or put it back. If nothing but the model may keep
    state (not `beside_model`), and it keeps none, nothing is run a second time.
    """
    values = ValueNumbers()
    watch = _Watch(values, stages)
    with contextlib.ExitStack() as undo:
        segments.stop_caching(model, undo)
        undo.callback(watch.calls.clear)  # with their graphs, whose hooks hold them in turn
        undo.enter_context(values)
        for name, module in stages.items():
            segments.replace_method(module, watch.recorded(name, module), undo, CALL)
        states = python_random_states(), _random_state()
        before = state.held_by(model.named_modules(), values.number)
        first = watch.numbers(run())
        after = state.held_by(model.named_modules(), values.number)
        drew = {_PYTHONS} if states[0] != python_random_states() else set[str]()
        seen = Seen(
            transformed=tuple(watch.transformed),
            draws=values.draws | drew,
            batch_norms=values.batch_norms,
            flops=values.flops,
            made_bytes=values.made_bytes,
        )
        moving, averages = state.changed(before, after), _averages(model, values)
        if not (beside_model or moving or drew):
            return seen
        moving = [name for name in moving if name not in averages]
        seen.writes = bool(moving)
        watch.run_again(seen, moving)
        # from the same random numbers, Python's too
        set_python_random_states(states[0])
        _set_random_state(states[1])
        values.position = 0
        if first != watch.numbers(run()):
            seen.moves = tuple(moving) or (_SOMETHING,)
    return seen


class _Watch:
    """Records the calls of stages, and runs them again."""

    def __init__(self, values: ValueNumbers, stages: Mapping[str, nn.Module]) -> None:
        self.values, self.stages, self.calls = values, stages, list[_Call]()
        self.transformed = dict[str, None]()
        self._again = False

    def recorded(self, name: str, module: nn.Module) -> Callable[..., Any]:
        """Return the method that replaces a stage's."""
        forward = getattr(module, CALL)

        def call(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled() or self._again or name in self.transformed:
                return forward(*args, **kwargs)
            if in_transform():
                self.transformed[name] = None
                return forward(*args, **kwargs)
            noted = _Call(
                name,
                module,
                lambda: forward(*args, **kwargs),
                (args, kwargs),
                self.numbers((args, kwargs)),
                _weights_of(module),
                self.values.position,
                _random_state(),
                Modes.now(),
            )
            before = python_random_states()
            try:
                with self._saved(noted.computed):
                    out = forward(*args, **kwargs)
            except RuntimeError as error:
                if not refuses_hooks(error):
                    raise
                self.transformed[name] = None
                return forward(*args, **kwargs)
            noted.computed += [([], number) for number in self.numbers(out)]
            noted.drew_of_python = before != python_random_states()
            self.calls.append(noted)
            return out

        return call

    def run_again(self, seen: Seen, moving: list[str]) -> None:
        """Run the last stage first, as backward does, and note what differs and what moves."""
        self._again, moved, unlike = True, dict[str, None](), dict[str, dict[str, None]]()
        for call in reversed(self.calls):
            own = [
                (f"{call.name}.{path}" if path else call.name, part)
                for path, part in call.module.named_modules()
            ]
            before, computed = state.held_by(own, self.values.number), list[tuple[list[int], Any]]()
            changes_input = call.arguments != self.numbers(call.given)
            self.values.position = call.position
            _set_random_state(call.random_state)
            with call.modes.restored(), self._saved(computed):
                try:
                    computed += [([], number) for number in self.numbers(call.run())]
                except Exception as error:
                    raise ValueError(
                        f"{call.name} raises {type(error).__name__} when it runs again, as if "
                        "it changed a list that it was given: it can be neither recomputed nor "
                        "planned. `predict` shows the step as it is; --stages names other stages."
                    ) from error
            moves = state.changed(before, state.held_by(own, self.values.number))
            moved |= dict.fromkeys(moves)
            if self._read(call.computed) != self._read(computed) or call.drew_of_python:
                causes = [name for name in moves if name in moving]
                causes += [n for n in moving if n.startswith(f"{call.name}.") and n not in causes]
                causes += [_PYTHONS] * call.drew_of_python + [_OWN_INPUT] * changes_input
                causes += [_WEIGHTS] * (call.weights != _weights_of(call.module))
                unlike.setdefault(call.name, {}).update(dict.fromkeys(causes or [_SOMETHING]))
        self._again = False
        self.calls.clear()
        seen.unlike = {name: tuple(unlike[name]) for name in self.stages if name in unlike}
        named = {name for causes in seen.unlike.values() for name in causes}
        seen.moved = tuple(name for name in moved if name not in named)

    def numbers(self, value: Any) -> list[Any]:
        """Return the numbers of an output's tensors."""
        return [*map(self.values.number, list_leaves(Tensor, value))]

    def _read(self, computed: list[tuple[list[int], Any]]) -> list[Any]:
        """Leave out the running averages, which autograd keeps and never reads."""
        return [one for keys, one in computed if self.values.statistics.isdisjoint(keys)]

    def _saved(self, computed: list[tuple[list[int], Any]]) -> saved_tensors_hooks:
        """Note what autograd keeps."""

        def save(tensor: Tensor) -> Tensor:
            computed.append((keys_of(tensor), self.values.number(tensor)))
            return tensor.detach()  # itself would be a cycle, where it is the result

        return saved_tensors_hooks(save, lambda kept: kept)


def _averages(model: nn.Module, values: ValueNumbers) -> set[str]:
    """Name the running averages of BatchNorm, and its count of batches."""
    found = set()
    for path, module in model.named_modules():
        buffers = dict(module.named_buffers(recurse=False))
        if not values.statistics.isdisjoint(key for b in buffers.values() for key in keys_of(b)):
            found |= {f"{path}.{name}" if path else name for name in buffers}
    return found


def _weights_of(module: nn.Module) -> list[int]:
    return [id(parameter) for parameter in module.parameters()]


def _random_state() -> Tensor:
    with without_modes():
        return torch.get_rng_state()


def _set_random_state(before: Tensor) -> None:
    with without_modes():
        torch.set_rng_state(before)
