"""A loss with a batch that can be replaced: what it reads from outside, and its gradient."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.device import seed_everything
from tutorial_lib.instruments.private_torch import operations
from tutorial_lib.memory.private_torch import TorchDispatchMode, storage_keys
from tutorial_lib.memory.storages import list_tensors

Make = Callable[[int], tuple[Callable[[], Tensor], nn.Module]]

SAMPLES = 4
_MOST_NUMBERS = 2**16  # of a parameter's gradient, evenly taken
_BATCH_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm


@dataclass(frozen=True)
class Shared:
    """A tensor of the batch: its dimension of samples, and its place among all that was read."""

    dim: int
    in_more: int
    in_some: int

    @property
    def places(self) -> dict[int, int]:
        """Its place by the number of samples."""
        return {SAMPLES: self.in_some, 2 * SAMPLES: self.in_more}


def freeze_batch_norms(model: nn.Module) -> None:
    """Make BatchNorm take its running averages, so that it compares no samples."""
    for module in model.modules():
        if isinstance(module, _BATCH_NORMS):
            module.eval()


class Loss:
    """A loss with so many samples, and its gradient with some of them replaced."""

    def __init__(self, make: Make, samples: int, has_state: bool, like: Loss | None = None) -> None:
        self._make, self._samples, self._has_state, self._like = make, samples, has_state, like
        self._others: dict[Shared, Tensor] = {}
        self._build()

    def _build(self) -> None:
        seed_everything(0)
        self._loss, self._model = self._make(self._samples)
        found = _Outside(self._model)
        with found:
            self.value = float(self._loss())  # what a first forward prepares is there from now on
        self.outside, self.dtypes = found.outside, found.dtypes
        if self._like is not None:
            self._copy(self._like)
        self._first = [tensor.detach().clone() for tensor in self.outside]
        freeze_batch_norms(self._model)

    def _copy(self, other: Loss) -> None:
        """Take over all numbers but the batch: its size has moved those drawn after it."""
        free = [*other._held()]
        with torch.no_grad():
            for mine in self._held():
                for place, theirs in enumerate(free):
                    if _form(mine) == _form(theirs):
                        with contextlib.suppress(RuntimeError):  # it is one number, expanded
                            mine.copy_(free.pop(place))
                        break

    def _held(self) -> list[Tensor]:
        return [*self._model.parameters(), *self._model.buffers(), *self.outside]

    def rows(self, shared: Shared) -> Tensor:
        """Return what a tensor of the batch held at first, samples first."""
        return self._first[shared.places[self._samples]].movedim(shared.dim, 0)

    def put(self, shared: Shared, rows: Tensor) -> None:
        """Put other samples into a tensor of the batch, for the next gradient."""
        self._others[shared] = rows

    def gradient(self) -> Tensor:
        """Return the gradient, or a part of it if it is long."""
        if self._has_state:
            self._build()
        with torch.no_grad():
            for shared, rows in self._others.items():
                self.outside[shared.places[self._samples]].movedim(shared.dim, 0).copy_(rows)
        for parameter in self._model.parameters():
            parameter.grad = None
        seed_everything(1)
        self._loss().backward()  # type: ignore[no-untyped-call]
        return torch.cat([_some(p) for p in self._model.parameters() if p.requires_grad])


def _some(parameter: Tensor) -> Tensor:
    gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    flat = gradient.detach().flatten().double()
    return flat[:: 1 + len(flat) // _MOST_NUMBERS]


class _Outside(TorchDispatchMode):
    """Collect the tensors that operations read and that neither they nor the model made."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.outside: list[Tensor] = []
        self.dtypes: set[torch.dtype] = set()
        self._held: list[Any] = list_tensors([*model.parameters(), *model.buffers()])
        self._known = {*storage_keys(self._held)}

    def run_operation(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run the operation."""
        given = list_tensors((args, kwargs))
        for tensor in given:
            if tensor.layout is torch.strided and self._is_new(tensor):
                self.outside.append(tensor)
        out = func(*args, **kwargs)
        for tensor in list_tensors(out):
            if tensor.is_floating_point():
                self.dtypes.add(tensor.dtype)
            if tensor.layout is torch.strided:
                self._is_new(tensor)
        return out

    def _is_new(self, tensor: Tensor) -> bool:
        (key,) = storage_keys([tensor])
        is_new = key not in self._known
        self._known.add(key)
        if is_new:
            self._held.append(tensor.untyped_storage() if key else tensor)
        return is_new


class Forms(TorchDispatchMode):
    """List the shapes of all results of operations, views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def run_operation(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run the operation."""
        out = func(*args, **kwargs)
        if not operations.gives_view(func):
            self.shapes += [tuple(tensor.shape) for tensor in list_tensors(out)]
        return out


def find_batch(more: Sequence[Tensor], some: Sequence[Tensor]) -> list[Shared]:
    """Find the tensors that hold twice as much in one dimension for twice as many samples."""
    found, free = list[Shared](), _rest(some, more)
    for place in _rest(more, some):
        for other in free:
            one, two = more[place], some[other]
            pairs = [*enumerate(zip(one.shape, two.shape, strict=False))]
            differing = [dim for dim, (a, b) in pairs if a != b]
            if (one.dtype, one.dim()) == (two.dtype, two.dim()) and len(differing) == 1:
                dim = differing[0]
                if one.shape[dim] == 2 * two.shape[dim] and two.shape[dim] % SAMPLES == 0:
                    found.append(Shared(dim, place, other))
                    free.remove(other)
                    break
    return found


def _rest(some: Sequence[Tensor], others: Sequence[Tensor]) -> list[int]:
    """List the places of what has no counterpart of the same form."""
    same, left = Counter(map(_form, others)), list[int]()
    for place, tensor in enumerate(some):
        same[_form(tensor)] -= 1
        left += [place] if same[_form(tensor)] < 0 else []
    return left


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tuple(tensor.shape)
