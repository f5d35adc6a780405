"""Deferred calls: a model's stages run later than the model calls them, all together.

While the model's own forward runs, the call of a stage is only recorded, and returns placeholders,
`DeferredTensor`s, in the place of its output. What the model does with them between two stages
(join a skip, double the resolution) is recorded as well, where that is allowed. Once all stages
were called, `execution` runs them, segment by segment: a segment may hold whatever lies between
its stages, and all values that go in and out of it are known.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.instruments.private_torch import without_modes
from tutorial_lib.instruments.segments.modes import Modes
from tutorial_lib.instruments.segments.placeholder import (
    SHAPE,
    DeferredTensor,
    NeedsValueError,
    tensors_of,
)
from tutorial_lib.instruments.segments.structure import hidden, list_leaves, map_leaves

# Autocast gives their results 16 bits.
_MATMULS = {"linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum"}
# They give several tensors.
_SEVERAL = {"split", "chunk", "unbind", "tensor_split", "topk", "sort", "max", "min", "meshgrid"}
_MATMULS |= {"conv1d", "conv2d", "conv3d", "scaled_dot_product_attention"}


@dataclass(frozen=True)
class Value:
    """A tensor of a run, by number."""

    number: int


@dataclass(frozen=True)
class Operation:
    """A stage's call, or what the model does between two of them."""

    name: str  # what it is, as the first words of an error
    piece: int  # the number of the stage that it belongs to
    function: Callable[..., Any]
    args: Any  # with a `Value` in the place of each tensor that is no parameter
    kwargs: Any
    results: tuple[int, ...]  # numbers of its results
    read: Read  # takes as many results from what the function returns
    modes: Modes  # under which the model calls it

    def inputs(self) -> list[int]:
        """List the values that it takes."""
        return [value.number for value in list_leaves(Value, (self.args, self.kwargs))]

    def arguments(self, values: dict[int, Any]) -> tuple[Any, Any]:
        """Return its arguments with their tensors."""
        given = (self.args, self.kwargs)
        args, kwargs = map_leaves(Value, lambda value: values[value.number], given)
        return args, kwargs


class DeferredRun:
    """The operations of one forward, in order.

    Piece k is the call of stage k and all that the model did since the call before it. `execute`
    gets the run once all stages were called, and gives the values of `wanted`. With `None`, the
    model may do no more with a placeholder than hand it, or the first element of it, to the next
    stage. `first` is the place of the first stage among those of all runs of a loss.
    """

    def __init__(
        self, num_pieces: int, execute: Execute | None, advice: str, first: int = 0
    ) -> None:
        self.num_pieces, self.execute, self.advice, self.first = num_pieces, execute, advice, first
        self.operations: list[Operation] = []
        self.piece = 0
        self.given: dict[int, Tensor] = {}  # tensors from outside the stages
        self.made_by: list[int] = []  # the piece, for each value; -1 for those given
        # of the values made here whose shapes are known
        self.num_bytes, self.shapes = dict[int, int](), dict[int, torch.Size]()
        self.touched: set[int] = set()  # what the model asked for after the last stage
        self.shapes_asked_for: set[int] = set()  # before it
        self.device: torch.device | None = None
        self.is_finished = False
        self._handed_out: dict[int, weakref.ref[DeferredTensor]] = {}

    @property
    def is_complete(self) -> bool:
        """Whether all stages were called."""
        return self.piece == self.num_pieces

    @property
    def wanted(self) -> set[int]:
        """Values that the model may ask for: it still holds their placeholders."""
        if self.execute is None:
            return set(self.operations[-1].results)
        return {number for number, later in self._handed_out.items() if later() is not None}

    def finish(self) -> None:
        """Run everything, and give the placeholders that are still there their values."""
        if self.is_finished:
            return
        self.is_finished = True
        assert self.execute is not None
        values = self.execute(self)
        for number, reference in self._handed_out.items():
            if (later := reference()) is not None:
                later.value = values[number]
        self._handed_out = {}

    def call(
        self,
        name: str,
        function: Callable[..., Any],
        args: Any,
        kwargs: Any,
        likes: Sequence[Tensor | None],
        read: Read,
        *,
        is_stage: bool = True,
    ) -> list[DeferredTensor]:
        """Record the call of the next stage, or what the model does before that.

        For each result `likes` has a tensor with its shape, or `None` where that is not known, and
        a placeholder is returned; `read` takes the results from what the function returns.
        """
        if (holder := hidden(DeferredTensor, (args, kwargs))) is not None:
            raise RuntimeError(
                f"{name} gets the output of a stage inside a {holder}. {self.advice} Or pass it "
                "on as a tensor, or in a tuple, dict or dataclass."
            )
        if self.device is None:
            self.device = next((t.device for t in list_leaves(Tensor, (args, kwargs))), None)
        numbered = map_leaves(DeferredTensor, self._numbered, (args, kwargs))
        # a dataclass without placeholders goes in as it is: a stage may write into it
        args, kwargs = map_leaves(Tensor, self._numbered, numbered, dataclasses=False)
        made = [DeferredTensor(self, self._new(self.piece), like) for like in likes]
        self._handed_out |= {one.number: weakref.ref(one) for one in made}
        known = [(one.number, one.like) for one in made if one.like is not None]
        self.num_bytes |= {number: like.nbytes for number, like in known}
        self.shapes |= {number: like.shape for number, like in known}
        results = tuple(one.number for one in made)
        what = name, self.piece, function, args, kwargs, results, read
        self.operations.append(Operation(*what, Modes.now()))
        self.piece += is_stage
        return made

    def between(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Record what the model does with placeholders, and give one for each result."""
        if self.execute is None:
            raise RuntimeError(self.advice)
        name, form = "What the model does between two stages", _form_of(function, args, kwargs)
        if form is None and getattr(function, "__name__", "") in _SEVERAL:
            raise NeedsValueError(self, f"called {function.__name__}")
        likes: Sequence[Tensor | None] = tensors_of(form) or [None]
        if form is not None and not tensors_of(form):  # as a number of elements
            self.shapes_asked_for |= {x.number for x in list_leaves(DeferredTensor, (args, kwargs))}
            return form
        made = self.call(name, function, args, kwargs, likes, tensors_of, is_stage=False)
        for one in made:
            one.known = (*SHAPE, "dtype") if _keeps_dtype(function, one.like) else SHAPE
        rest = iter(made)
        return map_leaves(Tensor, lambda _: next(rest), form) if tensors_of(form) else made[0]

    def _numbered(self, leaf: DeferredTensor | Tensor) -> Value | nn.Parameter:
        if isinstance(leaf, DeferredTensor):
            run: Any = leaf.run
            is_ours = run.made_by is self.made_by
            if not is_ours and (self.execute is None or not leaf.has_value()):
                raise RuntimeError(self.advice)
            if leaf.value is None:
                return Value(leaf.number)
            tensor = leaf.value if is_ours else leaf.touch()
            assert tensor is not None
            leaf = tensor
        if isinstance(leaf, nn.Parameter):
            return leaf
        number = next((n for n, tensor in self.given.items() if tensor is leaf), None)
        if number is None:
            self.given[number := self._new(-1)] = leaf
        return Value(number)

    def _new(self, piece: int) -> int:
        self.made_by.append(piece)
        return len(self.made_by) - 1


Execute = Callable[[DeferredRun], dict[int, Any]]
Read = Callable[[Any], Sequence[Any]]


def _form_of(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Return an operation's results without memory; `None` where their shapes are not known."""

    def form(leaf: Any) -> Tensor:
        if isinstance(leaf, DeferredTensor):
            leaf = leaf.like if leaf.value is None else leaf.value  # None: an AttributeError below
        return torch.empty(leaf.shape, dtype=leaf.dtype, device="meta")

    try:
        with without_modes(), torch.no_grad():
            args, kwargs = map_leaves((DeferredTensor, Tensor), form, (args, kwargs))
            return function(*args, **kwargs)
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None  # a shape is not known, values decide, or autocast would change a dtype


def _keeps_dtype(function: Callable[..., Any], like: Tensor | None) -> bool:
    """Say whether a result surely has the dtype of its form, under autocast too."""
    is_cast = torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")
    is_float = like is not None and like.dtype == torch.float32
    return not is_cast or (is_float and getattr(function, "__name__", "") not in _MATMULS)
