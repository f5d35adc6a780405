"""Value numbers: two tensors with the same number hold the same values, known without computing.

A number is made from an operation and from the numbers of what it reads, as compilers do it (value
numbering: Cocke and Schwartz, 1970). It works on tensors without memory, too: a forward that gives
the same numbers twice has computed the same twice.
"""

import functools
import weakref
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.instruments import private_torch
from tutorial_lib.instruments.private_torch import operations
from tutorial_lib.memory.private_torch import TorchDispatchMode, is_fake, sparse_parts, storage_keys
from tutorial_lib.memory.private_torch_unseen import flops_of
from tutorial_lib.memory.storages import list_tensors

# Running these twice in place changes nothing more: an inplace ReLU may be recomputed.
_IDEMPOTENT = ("relu_", "hardtanh_", "clamp_", "clamp_min_", "clamp_max_", "abs_")
_EXTREMES = ("minimum", "maximum")  # of a range and what it has seen already, the range
_COPYING = {"copy_": 1, "clone": 0, "_to_copy": 0}  # the argument that is copied
# In place, and what was there before doesn't matter.
_OVERWRITING = ("copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "exponential_")
_STATISTICS = ("running_mean", "running_var")
_MOMENTA = ("momentum", "exponential_average_factor")
_MOST_BYTES = 2**22  # of a constant whose values are looked at


class ValueNumbers(TorchDispatchMode):
    """Number the values of all tensors while the mode is active, and note what operations do.

    `draws` has the operations that drew random numbers, `flops` and `made_bytes` what was computed.
    `batch_norms` counts normalisations by statistics of the batch; `statistics` are the storages of
    their running averages, which their output ignores.
    """

    def __init__(self) -> None:
        super().__init__()
        self.draws: set[str] = set()
        self.statistics: set[int] = set()
        self.batch_norms, self.flops, self.made_bytes = 0, 0, 0
        self.position = 0  # among the random operations: the state that they draw from
        self._numbers: dict[int, tuple[int, Any]] = {}
        self._made_by: dict[tuple[Any, ...], set[int]] = {}
        self._seen: dict[int, set[int]] = {}
        self._last_new = 0
        self._held: list[Any] = []

    def run_operation(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run the operation, and number what it makes and writes."""
        norm = self._statistics(func, args, kwargs)
        written = [*operations.written_arguments(func, args, kwargs), *norm]
        again = self._again(func, args, kwargs)
        if again is not None and self.number(args[0]) in again:
            return func(*args, **kwargs)  # once more changes nothing
        call = self._call(func, args, kwargs, norm)
        read = {key for tensor in list_tensors((args, kwargs)) for key in keys_of(tensor)}
        same = self._same(_name(func), args)
        out = self.run_below(func, args, kwargs)
        made = list_tensors(out)
        for place, tensor in enumerate(made):
            self._make(tensor, hash((call, place)), read)
        for place, tensor in enumerate(written):
            moves = self.number(tensor) if place >= len(written) - len(norm) else None
            self._write(tensor, hash((call, "written", place, moves)))
        if again is not None:
            again.add(self.number(args[0]))
        if same is not None and _layout(made[0]) == same[0]:
            self._keep(made[0], same[1])
        elif _name(func) in _EXTREMES:
            self._seen[self._whole(made[0])] = {*map(self.number, args)}
        self._count(func, args, kwargs, out, made)
        return out

    def number(self, tensor: Tensor) -> int:
        """Return the number of a tensor's values, form included."""
        if tensor.layout is not torch.strided:
            return hash(tuple(map(self.number, sparse_parts(tensor))))
        return hash((self._whole(tensor), _layout(tensor)))

    # ---- numbers ----

    def _whole(self, tensor: Tensor) -> int:
        """Return the number of a storage; of one that no operation here made, a new one."""
        (key,) = storage_keys([tensor])
        if key in self._numbers:
            return self._numbers[key][0]
        number = self._of_constant(tensor) or self._new()
        self._keep(tensor, number)
        return number

    def _of_constant(self, tensor: Tensor) -> int | None:
        """Return the number of a tensor that Python made from numbers, or that holds none."""
        storage = tensor.untyped_storage()
        if not storage.nbytes():  # what a cache begins with
            return hash("empty")
        on_cpu = tensor.device.type == "cpu" and not is_fake(tensor)
        if tensor.requires_grad or not on_cpu or storage.nbytes() > _MOST_BYTES:
            return None
        with private_torch.without_modes():
            return hash(bytes(torch.tensor([], dtype=torch.uint8).set_(storage).numpy()))

    def _new(self) -> int:
        self._last_new += 1
        return hash(("new", self._last_new))

    def _keep(self, tensor: Tensor, number: int) -> None:
        (key,) = storage_keys([tensor])
        if not key:  # it has no storage, as those that vmap wraps
            self._held.append(tensor)
            return
        storage = tensor.untyped_storage()
        self._numbers[key] = number, weakref.ref(storage, lambda _: self._numbers.pop(key, None))

    def _same(self, name: str, args: Any) -> tuple[Any, int] | None:
        """Return layout and number of the argument that equals the result, if there is one."""
        if name in _COPYING and _is_whole(args[_COPYING[name]]):
            source = args[_COPYING[name]]
            return _layout(source), self._whole(source)
        if name in _EXTREMES:
            for one, other in (args, args[::-1]):
                if _is_whole(one) and self.number(other) in self._seen.get(self._whole(one), ()):
                    return _layout(one), self._whole(one)
        return None

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.number(value)
        if isinstance(value, list | tuple):
            return tuple(map(self._argument, value))
        if isinstance(value, torch.Generator):  # no checkpoint puts its state back
            self.draws.add("a generator of its own")
            return self._new()
        return type(value).__name__, repr(value)

    def _call(self, func: Any, args: Any, kwargs: Any, norm: list[Tensor]) -> int:
        """Return a number for everything that a call's results depend on."""
        ignored, left_out = {id(tensor) for tensor in norm}, _MOMENTA if norm else ()
        name = _name(func)
        if name in _OVERWRITING or name.endswith(".out"):
            ignored |= {id(one) for one in operations.written_arguments(func, args, kwargs)}
        named = [*zip(operations.argument_names(func), args, strict=False), *kwargs.items()]
        given = [
            (key, None if id(value) in ignored else self._argument(value))
            for key, value in named
            if key not in left_out
        ]
        if operations.is_random(func) and self._is_drawn(func, args, kwargs):
            self.draws.add(name)
            given.append(("draw", self.position))
            self.position += 1
        return hash((func, tuple(given)))

    def _again(self, func: Any, args: Any, kwargs: Any) -> set[int] | None:
        """Return what an operation has made before, if repeating it changes nothing."""
        if (name := _name(func)) not in _IDEMPOTENT:
            return None
        form = name, self._argument(args[1:]), self._argument(list(kwargs.items()))
        return self._made_by.setdefault(form, set())

    @staticmethod
    def _is_drawn(func: Any, args: Any, kwargs: Any) -> bool:
        """Tell whether a kernel that may draw does so: fused attention may have no dropout."""
        names = operations.argument_names(func)
        given = dict(zip(names, args, strict=False)) | kwargs
        chances = {"dropout_p", "dropout"} & {*names}
        return not chances or any(given.get(name) for name in chances)

    def _make(self, tensor: Tensor, number: int, read: set[int]) -> None:
        if tensor.layout is torch.strided:
            parts = [tensor] if read.isdisjoint(keys_of(tensor)) else []
        else:
            parts = sparse_parts(tensor)
        for place, part in enumerate(parts):
            self._keep(part, hash((number, place)))

    def _write(self, tensor: Tensor, number: int) -> None:
        if tensor.layout is not torch.strided:
            return
        if not _is_whole(tensor):
            number = hash((self.number(tensor), self._whole(tensor), number))
        self._keep(tensor, number)

    # ---- what operations do ----

    def _statistics(self, func: Any, args: Any, kwargs: Any) -> list[Tensor]:
        """List the running averages that a normalisation by the batch moves, and does not read."""
        name = _name(func)
        if "batch_norm" not in name or "backward" in name or "elemt" in name:
            return []
        given = dict(zip(operations.argument_names(func), args, strict=False)) | kwargs
        if not given.get("training", True):
            return []
        if len(given["input"]) > 1:  # instance norm puts samples among the channels of one
            self.batch_norms += 1
        found = [given[key] for key in _STATISTICS if given.get(key) is not None]
        self.statistics |= {*storage_keys(found)}
        return found

    def _count(self, func: Any, args: Any, kwargs: Any, out: Any, made: list[Tensor]) -> None:
        if not operations.gives_view(func):
            self.made_bytes += sum(tensor.numel() * tensor.element_size() for tensor in made)
        if (count := flops_of(func)) is not None:
            self.flops += int(count(*args, **kwargs, out_val=out))


def keys_of(tensor: Tensor) -> list[int]:
    """Return the key of a tensor's storage, in a list; a sparse tensor has none."""
    return storage_keys([tensor]) if tensor.layout is torch.strided else []


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    if tensor.layout is not torch.strided:
        return (None,)
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


def _is_whole(tensor: Tensor) -> bool:
    """Tell whether a tensor is all of its storage."""
    if tensor.layout is not torch.strided:
        return False
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


@functools.cache
def _name(func: Any) -> str:
    """Name an operation: `relu_`, and `add.out` where it writes to what is given."""
    name = func.name().removeprefix("aten::")
    base, _, overload = name.partition(".")
    return f"{base}.out" if "out" in overload.split("_") else base
