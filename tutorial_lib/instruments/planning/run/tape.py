"""Run the stages of a model later than the model calls them, all together.

While the model's own forward runs, each stage only notes that it was called and returns stand-ins
for its output. What the model does with stand-ins between two stages (join a skip, double the
resolution) is noted too. The last stage then runs everything, segment by segment: so a segment may
hold whatever lies between stages, and the values that go in and out of it are known.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tutorial_lib.instruments.planning.chain.profiled import Call
from tutorial_lib.instruments.private_torch import tree_flatten, tree_map_only

_METADATA = ("shape", "dtype", "device", "ndim", "requires_grad", "is_cuda")
_OPERATORS = ("add", "sub", "mul", "truediv", "matmul", "pow")
_HOW = "Name stages that are called one after the other with `stages=`, or larger ones."


@dataclass(frozen=True)
class Value:
    """A tensor of a tape, by number."""

    number: int


@dataclass(frozen=True)
class Note:
    """One thing to run: a stage, or what the model does between two of them."""

    piece: int
    function: Callable[..., Any]
    args: Any
    kwargs: Any
    results: tuple[int, ...]
    call: Call | None

    def inputs(self) -> Iterator[int]:
        """List the values that it takes."""
        for leaf in tree_flatten((self.args, self.kwargs))[0]:
            if isinstance(leaf, Value):
                yield leaf.number


class Tape:
    """What one forward of a model asked for, in order.

    Piece k is the call of stage k and all that the model did since the call before it.

    Args:
        calls: What is to be called, in order.
        run: Gets the tape once it is complete, and gives the values of `wanted`.
    """

    def __init__(self, calls: Sequence[Call], run: Run) -> None:
        self.calls, self._run = calls, run
        self.notes: list[Note] = []
        self.piece = 0
        self.made_by: list[int] = []  # the piece, for each value
        self.touched: set[int] = set()  # what the model asked for after the last stage
        self._handed_out: list[weakref.ref[Later]] = []

    @property
    def is_complete(self) -> bool:
        """Whether all stages were called."""
        return self.piece == len(self.calls)

    @property
    def wanted(self) -> set[int]:
        """Values whose stand-ins are still there: the model holds them and may ask for them."""
        return {number for number, later in enumerate(self._handed_out) if later() is not None}

    def finish(self) -> None:
        """Run everything, and give the stand-ins that are still there their values."""
        values = self._run(self)
        for number, reference in enumerate(self._handed_out):
            if (later := reference()) is not None:
                later.value = values[number]
        self._handed_out = []

    def stage(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Note the call of a stage, and give stand-ins in the form of its output.

        Raises:
            RuntimeError: When another stage is next, or none.
        """
        call = None if self.is_complete else self.calls[self.piece]
        if call is None or call.name != name:
            expected = "no further one" if call is None else call.name
            raise RuntimeError(
                f"The model calls the stage {name}, and the plan has {expected} as number "
                f"{self.piece}: the plan was made for other inputs. Profile and solve again."
            )
        results = [self._new(like if call.is_profiled else None) for like in call.tensors]
        self._note(function, args, kwargs, results, call)
        self.piece += 1
        return call.filled(results)

    def between(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Later:
        """Note what the model does with stand-ins, and give one for its result."""
        result = self._new(None)
        self._note(function, args, kwargs, [result], None)
        return result

    def _note(
        self,
        function: Callable[..., Any],
        args: Any,
        kwargs: Any,
        results: list[Later],
        call: Call | None,
    ) -> None:
        args, kwargs = tree_map_only(Later, _value_or_number, (args, kwargs))
        numbers = tuple(later.number for later in results)
        self.notes.append(Note(self.piece, function, args, kwargs, numbers, call))

    def _new(self, like: Tensor | None) -> Later:
        later = Later(self, len(self.made_by), like)
        self.made_by.append(self.piece)
        self._handed_out.append(weakref.ref(later))
        return later


class Later:
    """Stands for a tensor of a tape until the tape has run."""

    def __init__(self, tape: Tape, number: int, like: Tensor | None) -> None:
        self.tape, self.number, self._like = tape, number, like
        self.value: Tensor | None = None

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Note an operation on stand-ins, or do it when they have their values."""
        return _apply(func, args, kwargs or {})

    def touch(self) -> Tensor | None:
        """Give the value, and note that the model asked for it."""
        self.tape.touched.add(self.number)
        return self.value

    def _has_value(self) -> bool:
        if self.value is None and self.tape.is_complete:
            self.tape.finish()
        return self.value is not None

    def __getattr__(self, name: str) -> Any:
        if self._has_value():
            return getattr(self.touch(), name)
        if name in _METADATA and self._like is not None:
            return getattr(self._like, name)
        if name in ("size", "dim", "is_floating_point") and self._like is not None:
            return getattr(self._like, name)
        method = getattr(Tensor, name, None)
        if not callable(method) or name.startswith("_") or name in ("size", "dim"):
            raise AttributeError(
                f"The model asks between two stages for .{name} of a tensor that is computed "
                f"later. {_HOW}"
            )
        return lambda *args, **kwargs: _apply(method, (self, *args), kwargs)

    def __getitem__(self, index: Any) -> Any:
        return _apply(operator.getitem, (self, index), {})

    def __bool__(self) -> bool:
        if self._has_value():
            return bool(self.touch())
        raise RuntimeError(f"The model asks between two stages whether a tensor is true. {_HOW}")

    def __iter__(self) -> Iterator[Any]:
        if self._has_value():
            rows: Any = self.touch()
            return iter(rows)
        raise TypeError(f"The model takes a tensor apart between two stages. {_HOW}")


Run = Callable[[Tape], dict[int, Tensor]]


def _dunder(name: str, swapped: bool) -> Callable[[Any, Any], Any]:
    function = getattr(operator, name)

    def operate(one: Any, other: Any) -> Any:
        return _apply(function, (other, one) if swapped else (one, other), {})

    return operate


for _name in _OPERATORS:
    setattr(Later, f"__{_name}__", _dunder(_name, swapped=False))
    setattr(Later, f"__r{_name}__", _dunder(_name, swapped=True))
setattr(Later, "__neg__", lambda self: _apply(operator.neg, (self,), {}))  # noqa: B010


def _apply(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    leaves = tree_flatten((args, kwargs))[0]
    pending = [leaf for leaf in leaves if isinstance(leaf, Later) and leaf.value is None]
    if not pending:
        args, kwargs = tree_map_only(Later, Later.touch, (args, kwargs))
        return function(*args, **kwargs)
    tape = pending[0].tape
    if tape.is_complete:
        tape.finish()
        return _apply(function, args, kwargs)
    return tape.between(function, args, kwargs)


def _value_or_number(later: Later) -> Any:
    return Value(later.number) if later.value is None else later.value


def in_place_of_stand_ins(output: Any) -> Any:
    """Give what a model returned with tensors in the place of stand-ins."""
    for leaf in tree_flatten(output)[0]:
        if isinstance(leaf, Later) and leaf.value is None:
            leaf.tape.finish()
    return tree_map_only(Later, Later.touch, output)


def filled_in(note: Note, values: dict[int, Tensor]) -> tuple[Any, Any]:
    """Give the arguments of a note, with their tensors."""
    args, kwargs = tree_map_only(Value, lambda v: values[v.number], (note.args, note.kwargs))
    return args, kwargs


def tensors_of(output: Any) -> list[Tensor]:
    """List the tensors of a stage's output."""
    return [leaf for leaf in tree_flatten(output)[0] if isinstance(leaf, Tensor)]
