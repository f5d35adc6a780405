"""Segments of one module, and segments of several blocks in a row."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.checkpoint import checkpoint

Forward = Callable[..., Any]

_BROKEN = (
    "The blocks of a segment must be called one right after the other, with the same further "
    "arguments, and this model does something between them, or skips one. Try per-block."
)


def checkpointed(forward: Forward, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run a forward now, keeping its inputs alone, and again during backward."""
    num_args, names = len(args), tuple(kwargs)  # not the values: a closure would keep them alive

    # All values go in by position: checkpoint looks there for the devices whose random state it
    # must keep. Keywords would be mistaken for its own.
    def run(*values: Any) -> Any:
        named = dict(zip(names, values[num_args:], strict=True))
        return forward(*values[:num_args], **named)

    return checkpoint(run, *args, *kwargs.values(), use_reentrant=False)


@dataclass(frozen=True, eq=False)
class Chain:
    """The blocks of one segment: the last one runs them all, those before it only pass on."""

    forwards: list[Forward]

    def call(self, index: int, *args: Any, **kwargs: Any) -> Any:
        """Stand for the forward of block `index`."""
        if not args:  # the state of the model may come as a keyword: it is the first parameter
            first = next(iter(inspect.signature(self.forwards[index]).parameters))
            kwargs = dict(kwargs)
            args = (kwargs.pop(first),)
        state, *rest = args
        if index == 0 and not isinstance(state, _Pending):
            pending = _Pending(self, 1, args, kwargs)
        elif self._expects(index, state, rest, kwargs):
            pending = _Pending(self, index + 1, state.args, state.kwargs)
        else:
            raise RuntimeError(_BROKEN)
        if index < len(self.forwards) - 1:
            return pending
        return checkpointed(self._run, pending.args, pending.kwargs)

    def _run(self, state: Any, *rest: Any, **kwargs: Any) -> Any:
        output = state
        for forward in self.forwards:
            output = forward(state, *rest, **kwargs)
            state = output[0] if isinstance(output, tuple) else output
        return output

    def _expects(self, index: int, state: Any, rest: list[Any], kwargs: dict[str, Any]) -> bool:
        return (
            isinstance(state, _Pending)
            and state.chain is self
            and state.next_block == index
            and _same(list(state.args[1:]), rest)
            and _same(state.kwargs, kwargs)
        )


def _same(one: Any, other: Any) -> bool:
    """Tell whether two arguments are the same; tensors must be one object, not equal in value."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool | int | float | str) and one == other


@dataclass(frozen=True)
class _Pending:
    """Stands for the output of a block inside a segment, which forward never computes.

    Whoever does more with it than hand it to the next block gets an error, not a wrong number.
    """

    chain: Chain
    next_block: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __getitem__(self, index: int) -> _Pending:
        if index != 0:
            raise RuntimeError(_BROKEN)
        return self  # of a block that returns a tuple, the first element is handed on

    def _refuse(self, other: Any) -> Any:
        raise RuntimeError(_BROKEN)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _refuse

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{_BROKEN} (The model asked for .{name}.)")

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(_BROKEN)
