"""Values of predicted tensors: known where they follow from constants, else a stand-in.

A fake tensor has a shape and no values. Some steps look at values all the same: a constructor makes
a list of drop rates, an attention mask is asked whether it hides anything, a loop logs its loss.
`Values` computes what is small and follows from constants, and gives a stand-in for the rest.
"""

import sys
import traceback
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.instruments import private_torch
from tutorial_lib.instruments.predicting import refusals
from tutorial_lib.instruments.predicting.placement import without_gpu
from tutorial_lib.instruments.private_torch import fakes, operations, tree_map_only
from tutorial_lib.memory.lines import line_in_words
from tutorial_lib.memory.private_torch import TorchDispatchMode, is_fake, storage_key
from tutorial_lib.memory.storages import list_tensors

# A batch of token ids and its mask are known; a weight, and what is computed with it, is not.
_MOST_FLOATS, _MOST_OTHERS = 2**16, 2**20
_MOST_TO_LOOK_AT = 2**26

_aten = torch.ops.aten
_OVERWRITES = {
    *(_aten.fill_.Scalar, _aten.fill_.Tensor, _aten.zero_.default, _aten.copy_.default),
    *operations.overloads("random_"),
}


@dataclass(slots=True)
class _Known:
    storage: torch.UntypedStorage
    assumed: bool
    alive: weakref.ref[torch.UntypedStorage]


class Values(TorchDispatchMode):
    """Know or assume the values of fake tensors that a step looks at.

    A tensor is known when constants, ranges and random integers made it. Where an operation turns
    unknown numbers into integers or truth values (a choice of experts, a check for infinity), it
    gets random numbers between 0 and 1 in their place, and its result is assumed. `decisions` say
    by line which truth value to assume there.
    """

    def __init__(self, decisions: Mapping[str, bool] | None = None) -> None:
        super().__init__()
        self.assumptions: dict[str, str] = {}
        self.decided: dict[str, bool] = {}
        self.counts = [0, 0, 0]  # operations, looks at values, results that were computed
        self._decisions = decisions or {}
        self.known: dict[int, _Known] = {}  # by a storage's key

    def run_operation(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run the operation on fake tensors, and on values where all are known."""
        self.counts[0] += 1
        if "device" in kwargs:
            kwargs = {**kwargs, "device": without_gpu(kwargs["device"])}
        if func is _aten.index.Tensor:
            args = args[0], [one for index in args[1] for one in self._positions(index)]
        try:
            out = func(*args, **kwargs)
        except private_torch.LOOKS_AT_VALUES:
            return self._looked_at(func, args, kwargs)
        except Exception as error:
            real = refusals.in_real_words(func, args, kwargs, error, self._certain)
            return tree_map_only(Tensor, lambda tensor: self._as_fake(tensor, None), real)
        self.follow(func, args, kwargs, out)
        return out

    # ---- what is known ----

    def follow(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Compute an operation's result for real, if it is small and its inputs are known."""
        inputs, outputs = list_tensors((args, kwargs)), list_tensors(out)
        if any(tensor.layout is not torch.strided for tensor in (*inputs, *outputs)):
            return
        if func in refusals.TYPED:
            refusals.check_types(func, args, kwargs, inputs)
        written = operations.written_arguments(func, args, kwargs)
        keys = {_key(tensor) for tensor in inputs}
        fresh = [tensor for tensor in outputs if _key(tensor) not in keys]
        if not fresh and not written:
            return
        known = [self.knows(tensor) for tensor in inputs]
        whole = func in _OVERWRITES and args[0].nbytes == args[0].untyped_storage().nbytes()
        if whole and all(known[1:]) and _is_small(args[0]):
            self._keep(args[0], None, assumed=False)
            known[0] = True
        if operations.is_uninitialised(func):  # integers are zeros, whatever is in memory
            for unset in (one for one in fresh if _is_small(one) and not one.is_floating_point()):
                self._keep(unset, None, assumed=True)
            return
        followed = all(known) and all(map(_is_small, fresh))
        if not followed:
            self.forget(written)
            fresh = [] if written else self._discrete(func, inputs, fresh)
        if not followed and not fresh:
            return
        assumed = not all(known) or any(map(self._is_assumed, inputs))
        assumed &= not operations.ignores_values(func)
        if operations.is_random(func):  # drawn floats decide by chance, as LayerDrop does
            assumed |= any(tensor.is_floating_point() for tensor in fresh)
        try:
            result = self._compute(func, args, kwargs)
        except RuntimeError:  # a GPU's kernel, as of fused attention: its values stay unknown
            return
        self.counts[2] += 1
        kept, reals = {_key(tensor) for tensor in fresh}, list_tensors(result)
        if len(reals) < len(outputs):  # the kernel leaves a gradient away: batch norm's
            return
        for fake, real in zip(outputs, reals, strict=True):
            if _key(fake) in kept and fake.shape == real.shape:  # else a size was assumed
                self._keep(fake, real, assumed=assumed)

    def _discrete(self, func: Any, inputs: list[Tensor], fresh: list[Tensor]) -> list[Tensor]:
        """List the results whose values are taken to be known; of `topk` and `sort` the indices."""
        if operations.ignores_values(func):
            return fresh if all(map(_is_small, fresh)) else []
        discrete = [one for one in fresh if not one.is_floating_point() and not one.is_complex()]
        followed = (
            (len(discrete) == len(fresh) or operations.gives_indices(func))
            and not operations.is_random(func)
            and all(map(_is_small, discrete))
            and all(tensor.numel() <= _MOST_OTHERS for tensor in inputs)
        )
        return discrete if followed else []

    def number(self, tensor: Tensor) -> float | None:
        """Return the one number in a tensor where it follows from constants, else None."""
        with fakes.asking_no_mode():
            found = self._certain(tensor)
            return None if found is None else found.item()

    def knows(self, tensor: Tensor) -> bool:
        """Tell whether a tensor's values are known, or assumed."""
        return not is_fake(tensor) or _key(tensor) in self.known

    def _is_assumed(self, tensor: Tensor) -> bool:
        found = self.known.get(_key(tensor))
        return is_fake(tensor) and found is not None and found.assumed

    def _certain(self, tensor: Tensor) -> Tensor | None:
        """Values of a tensor that follow from constants alone; no mode may be active."""
        found = self.known.get(_key(tensor)) if is_fake(tensor) else None
        self.counts[1] += found is not None
        return None if found is None or found.assumed else _view(tensor, found.storage)

    def _keep(self, fake: Tensor, real: Any, *, assumed: bool) -> None:
        """Remember the values of a fake tensor until its storage dies."""
        key, storage = _key(fake), fake.untyped_storage()
        with fakes.asking_no_mode():
            held = torch.zeros(storage.nbytes(), dtype=torch.uint8).untyped_storage()
            if real is not None:
                _view(fake, held).copy_(real)
        alive = weakref.ref(storage, lambda _: self.known.pop(key, None))
        self.known[key] = _Known(held, assumed, alive)

    def fill(self, fake: Tensor, number: float, inputs: list[Tensor]) -> None:
        """Know a tensor to be full of one number, as if its operation had been computed."""
        with fakes.asking_no_mode():
            self._keep(fake, torch.full((), number, dtype=fake.dtype), assumed=False)
            for tensor in inputs:
                self._value(tensor)  # draws the stand-in of one that is unknown

    def forget(self, tensors: Iterable[Tensor]) -> None:
        """Know the values of these tensors no longer."""
        for tensor in tensors:
            self.known.pop(_key(tensor), None)

    def _value(self, tensor: Tensor, *, zeros: bool = False) -> Tensor:
        """Values of a tensor, or a stand-in for them; no mode may be active."""
        if not is_fake(tensor):
            return tensor
        shape, dtype = tensor.shape, tensor.dtype
        if (found := self.known.get(_key(tensor))) is not None:
            value = _view(tensor, found.storage)
            if not zeros or not found.assumed:
                return value
            return ~value if dtype == torch.bool else torch.zeros_like(value)
        if zeros:
            return torch.zeros((), dtype=dtype).expand(shape)
        if not tensor.is_floating_point():
            return torch.ones((), dtype=dtype).expand(shape)
        if tensor.numel() > _MOST_OTHERS:
            return torch.full((), 0.5, dtype=dtype).expand(shape)
        return torch.rand(shape, dtype=torch.float32).to(dtype)

    def _compute(self, func: Any, args: Any, kwargs: Any, *, zeros: bool = False) -> Any:
        self.counts[1] += 1
        with fakes.asking_no_mode(), torch.no_grad():
            seen: dict[int, Tensor] = {}  # a tensor that is compared with itself is equal

            def real(one: Any) -> Any:
                if isinstance(one, list | tuple):
                    return [*map(real, one)]
                if isinstance(one, Tensor) and id(one) not in seen:
                    seen[id(one)] = self._value(one, zeros=zeros)
                return seen.get(id(one), one)

            return func(*map(real, args), **{name: real(one) for name, one in kwargs.items()})

    # ---- looks at values ----

    def _looked_at(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Answer an operation whose result, or whose shape, depends on values."""
        inputs = list_tensors((args, kwargs))
        looked_at = inputs[1:] if func is operations.PACK else inputs  # lengths, of what is packed
        assumed = [t for t in looked_at if not self.knows(t) or self._is_assumed(t)]
        if sum(tensor.numel() for tensor in inputs) > _MOST_TO_LOOK_AT:
            raise refusals.CannotPredictError(
                f"{_calling_line()} looks at the values of {inputs[0].numel():,} numbers "
                f"({func}), but a predicted tensor has none: predict a smaller micro-batch, or "
                "count the real step with memory.measure."
            )
        args = refusals.with_safe_labels(func, args)
        try:
            real = self._compute(func, args, kwargs)
        except Exception as error:
            if not assumed:
                raise
            raise refusals.CannotPredictError(
                f"{_calling_line()} looks at values ({func}), but a predicted tensor has none. It "
                f"refused its inputs: {error} Either they are wrong in a real step too, or the "
                "assumed values don't suit it: then count the real step with memory.measure."
            ) from error
        if assumed and not isinstance(real, int | float):
            if self._shapes_of_zeros(func, args, kwargs) != _shapes(real):
                self._note(f"makes a tensor whose shape depends on values: {_shapes(real)}")
        elif assumed:
            real = self._assume(real)
        out = tree_map_only(Tensor, lambda tensor: self._as_fake(tensor, bool(assumed)), real)
        self.forget(out[:1] if looked_at is not inputs else ())
        return out

    def _shapes_of_zeros(self, func: Any, args: Any, kwargs: Any) -> str:
        try:
            return _shapes(self._compute(func, args, kwargs, zeros=True))
        except Exception:  # it doesn't take zeros, such as lengths, so its values matter
            return "none"

    def _assume(self, number: float) -> float:
        if not isinstance(number, bool):
            self._note(f"asks for the value of a tensor: {number:.3g}")
            return number
        number = self._decisions.get(line := _calling_line(), number)
        self.decided.pop(line, None)
        self.decided[line] = number  # the last one decided is the last one here
        self._note(f"decides by the value of a tensor: {number}")
        return number

    def _as_fake(self, real: Tensor, assumed: bool | None) -> Tensor:
        fake = torch.empty_strided(real.size(), real.stride(), dtype=real.dtype)
        if assumed is not None:  # its values mean something
            self._keep(fake, real, assumed=assumed)
        return fake

    def _positions(self, index: Tensor | None) -> list[Tensor | None]:
        """Return a mask as the positions where it is true, as its kernel does."""
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            return [index]
        return list(self._looked_at(_aten.nonzero.default, (index,), {}).unbind(1))

    def _note(self, said: str) -> None:
        line = _calling_line()
        self.assumptions.setdefault(line, f"{line} {said} was assumed.")


def _shapes(value: Any) -> str:
    return ", ".join(str(tuple(tensor.shape)) for tensor in list_tensors(value))


def _key(tensor: Tensor) -> int:
    return storage_key(tensor.untyped_storage())


def _is_small(tensor: Tensor) -> bool:
    most = _MOST_FLOATS if tensor.is_floating_point() else _MOST_OTHERS
    return tensor.device.type == "cpu" and not tensor.is_complex() and tensor.numel() <= most


def _view(like: Tensor, storage: torch.UntypedStorage) -> Tensor:
    empty = torch.empty(0, dtype=like.dtype)
    return empty.set_(storage, like.storage_offset(), like.size(), like.stride())


def _calling_line() -> str:
    return line_in_words(traceback.walk_stack(sys._getframe(1)))
