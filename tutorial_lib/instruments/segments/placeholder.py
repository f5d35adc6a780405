"""The placeholder of a tensor that a stage gives later, and what a model may do with it."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from tutorial_lib.instruments.segments.structure import list_leaves, map_leaves

SHAPE = ("shape", "ndim", "dim", "size")
_METADATA = (*SHAPE, "dtype", "requires_grad", "is_floating_point")
_VIEWS = ("T", "mT", "H", "mH", "real", "imag")
_OPERATORS = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "matmul", "pow", "and_", "or_", "xor"),
)
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_ALONE = ("neg", "invert", "abs")
# They return something other than a tensor, or as many tensors or numbers as values decide.
_VALUES = {"item", "tolist", "numpy", "nonzero", "argwhere", "unique", "unique_consecutive"}


Run = Any  # a `DeferredRun`, which imports this module


class NeedsValueError(RuntimeError):
    """The model asks for what only a value tells, while its stages are still being recorded."""

    def __init__(self, run: Run, what: str) -> None:
        super().__init__(f"{run.advice} (The model {what}.)")
        self.place = run.first + run.piece  # how many stages were called before


class DeferredTensor:
    """The placeholder of a tensor until the run has its value."""

    def __init__(self, run: Run, number: int, like: Tensor | None) -> None:
        self.run, self.number, self.like = run, number, like
        self.value: Tensor | None = None
        self.known: tuple[str, ...] = _METADATA  # what `like` tells

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Record an operation on placeholders, or do it when they have their values."""
        return _apply(func, args, kwargs or {})

    def touch(self) -> Tensor | None:
        """Return the value, and note that the model asked for it."""
        self.run.touched.add(self.number)
        return self.value

    def has_value(self) -> bool:
        """Tell whether there is a value, once all stages were called."""
        if self.value is None and self.run.is_complete:
            self.run.finish()
        return self.value is not None

    def _needed(self, why: str) -> Any:
        if self.has_value():
            return self.touch()
        raise NeedsValueError(self.run, why)

    def __getattr__(self, name: str) -> Any:
        if self.has_value():
            return getattr(self.touch(), name)
        if name in self.known and self.like is not None:
            self.run.shapes_asked_for.add(self.number)
            return getattr(self.like, name)
        if name == "device" and self.run.device is not None:
            return self.run.device
        method: Any = getattr(Tensor, name, None)
        if self.run.execute is None or method is None or name.startswith("_"):
            raise AttributeError(f"{self.run.advice} (The model asked for .{name}.)")
        if name in _VIEWS:
            return _apply(operator.attrgetter(name), (self,), {})
        if not callable(method) or name in _METADATA:
            return self._needed(f"asked for .{name}")
        return lambda *args, **kwargs: _apply(method, (self, *args), kwargs)

    def __getitem__(self, index: Any) -> Any:
        if self.run.execute is None and isinstance(index, int) and index == 0:
            return self  # of a stage that returns a tuple, the first element is handed on
        return _apply(operator.getitem, (self, index), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        self._needed("wrote into a tensor")[index] = with_values(value)

    def __bool__(self) -> bool:
        return bool(self._needed("asked whether a tensor is true"))

    def __float__(self) -> float:
        return float(self._needed("asked for a number"))

    def __int__(self) -> int:
        return int(self._needed("asked for a number"))

    def __index__(self) -> int:
        return operator.index(self._needed("asked for a number"))

    def __format__(self, form: str) -> str:
        return format(self._needed("printed a tensor"), form)

    def __len__(self) -> int:
        length: int = self.shape[0]
        return length

    def __iter__(self) -> Iterator[Any]:
        if self.has_value() or self.like is None:
            return iter(self._needed("took a tensor apart"))
        return self._rows()

    def _rows(self) -> Iterator[Any]:
        yield self[0]  # transformers looks at no further one, whatever the batch
        for index in range(1, len(self)):
            yield self[index]

    __hash__ = object.__hash__


def _dunder(name: str, swapped: bool) -> Callable[[Any, Any], Any]:
    function = getattr(operator, name)

    def operate(one: Any, other: Any) -> Any:
        return _apply(function, (other, one) if swapped else (one, other), {})

    return operate


def _alone(name: str) -> Callable[[Any], Any]:
    function = getattr(operator, name)
    return lambda one: _apply(function, (one,), {})


for _name in (*_OPERATORS, *_COMPARISONS):
    setattr(DeferredTensor, f"__{_name.strip('_')}__", _dunder(_name, swapped=False))
for _name in _OPERATORS:
    setattr(DeferredTensor, f"__r{_name.strip('_')}__", _dunder(_name, swapped=True))
for _name in _ALONE:
    setattr(DeferredTensor, f"__{_name}__", _alone(_name))


def _apply(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    placeholders = list_leaves(DeferredTensor, (args, kwargs))
    pending = [later for later in placeholders if not later.has_value()]
    if not pending:
        args, kwargs = with_values((args, kwargs))
        return function(*args, **kwargs)
    run, name = pending[0].run, getattr(function, "__name__", "")
    if run.execute is not None and (name in _VALUES or _writes(name)):
        raise NeedsValueError(run, f"called {name} on a tensor")
    return run.between(function, args, kwargs)


@contextlib.contextmanager
def deferring_functions() -> Iterator[None]:
    """Record a `torch.autograd.Function` on placeholders as one operation, with its own backward.

    Its forward would be recorded operation by operation else, and its backward would be lost.
    """
    plain = torch.autograd.Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        bound = plain.__get__(None, cls)
        if list_leaves(DeferredTensor, (args, kwargs)):
            return _apply(bound, args, kwargs)
        return bound(*args, **kwargs)

    with mock.patch.object(torch.autograd.Function, "apply", classmethod(apply)):
        yield


def _writes(name: str) -> bool:
    """Tell whether an operation writes into its tensor, by its name."""
    return name.endswith("_") and not name.endswith("__")


def with_values(output: Any) -> Any:
    """Return a model's output with its placeholders replaced by tensors."""
    for leaf in list_leaves(DeferredTensor, output):
        if leaf.value is None:
            leaf.run.finish()
    return map_leaves(DeferredTensor, DeferredTensor.touch, output)


def tensors_of(output: Any) -> list[Tensor]:
    """List the tensors of a stage's output."""
    return list_leaves(Tensor, output)
