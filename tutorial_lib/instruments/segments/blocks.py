"""Segments of several blocks in a row."""

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

from tutorial_lib.instruments.private_torch import tree_flatten
from tutorial_lib.instruments.segments.deferred import DeferredRun, Operation, Value
from tutorial_lib.instruments.segments.execution import Execution
from tutorial_lib.instruments.segments.placeholder import DeferredTensor

_BROKEN = (
    "The blocks of a segment must be called one right after the other, with the same further "
    "arguments, but this model does something between them, or skips one. Try per-block."
)


class BlocksInARow:
    """The blocks of one segment: the last one runs them all, those before it only pass on."""

    def __init__(self, forwards: Sequence[Callable[..., Any]]) -> None:
        self.forwards = forwards

    def call(self, index: int, *args: Any, **kwargs: Any) -> Any:
        """Take the place of the forward of block `index`."""
        forward, count = self.forwards[index], len(self.forwards)
        if not args:  # the state of the model may come as a keyword: it is the first parameter
            first = next(iter(inspect.signature(forward).parameters))
            args = (kwargs.pop(first),)
        state = args[0]
        if index == 0 and not isinstance(state, DeferredTensor):
            run = DeferredRun(count, None, _BROKEN)
        elif self._expects(index, state):
            run = copy.copy(cast(DeferredRun, state.run))  # it may be called twice with one state
            run.operations, run.piece = run.operations[:index], index
        else:
            raise RuntimeError(_BROKEN)
        is_last = index == count - 1
        read = _whole if is_last else _state_alone
        (made,) = run.call(f"Block {index}", forward, args, kwargs, [None], read)
        if _further(run.operations[0]) != _further(run.operations[-1]):
            raise RuntimeError(_BROKEN)
        return Execution(run).all((tuple(range(count)),))[made.number] if is_last else made

    def _expects(self, index: int, state: Any) -> bool:
        if index == 0 or not isinstance(state, DeferredTensor):
            return False
        operations = cast(DeferredRun, state.run).operations[:index]
        made_here = [op.function for op in operations] == list(self.forwards[:index])
        return made_here and operations[-1].results == (state.number,)


def _whole(output: Any) -> list[Any]:
    return [output]


def _state_alone(output: Any) -> list[Any]:
    return [output[0] if isinstance(output, tuple) else output]


def _further(operation: Operation) -> Any:
    """Arguments after the state, so that those of two blocks can be compared.

    Numbers, words and tensors that were numbered compare by value, all else as objects.
    """
    leaves, form = tree_flatten((operation.args[1:], operation.kwargs))
    by_value = (Value, bool, int, float, str)
    return form, [(type(x), x if isinstance(x, by_value) else id(x)) for x in leaves]
