"""Errors of the real step that fake tensors don't raise, or raise in other words.

A fake tensor has a shape and a type. Its kernels check shapes, in their own words, but many check
no types. So the real operation is asked, on tensors that take little memory, and a step that cannot
run is refused in the real step's words. Indices, which are values, are not looked at.
"""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.instruments.private_torch import operations, tree_map_only, without_modes
from tutorial_lib.memory.private_torch import is_fake
from tutorial_lib.memory.storages import list_tensors

_MOST_BYTES = 2**28  # more than that is not made for an error's words
# What says that an operation cannot run here at all, and nothing about its inputs.
_NO_VERDICT = ("Could not run", "can't allocate memory", "Storage size calculation overflowed")


class CannotPredictError(RuntimeError, ValueError):
    """The step is sound, but does what no tensor without memory can."""


def in_real_words(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    error: Exception,
    certain: Callable[[Tensor], Tensor | None],
) -> Any:
    """Return what the real operation returns where fake tensors refused, or raise what it says.

    `certain` returns a tensor's values where they follow from constants, else None. Where the
    operation cannot be asked, `error` is raised, which is what fake tensors said.
    """
    tensors = list_tensors((args, kwargs))
    plain = all(is_fake(one) and one.layout is torch.strided for one in tensors)
    if not (tensors and plain and func.namespace == "aten") or operations.is_random(func):
        raise error
    size = sum(tensor.untyped_storage().nbytes() for tensor in tensors)
    device = "cpu" if size <= _MOST_BYTES else "meta"

    def real(tensor: Tensor) -> Tensor:
        known = certain(tensor) if device == "cpu" else None
        made = torch.zeros(tensor.untyped_storage().nbytes(), dtype=torch.uint8, device=device)
        strided = (tensor.size(), tensor.stride(), tensor.storage_offset())
        return made.view(tensor.dtype).as_strided(*strided) if known is None else known.clone()

    with without_modes(), torch.no_grad():
        try:
            given, named = tree_map_only(Tensor, real, (args, kwargs))
            out = func(*given, **named)
        except Exception as said:
            if _says_nothing(said):
                raise error from None
            # Its own words, which a fake tensor's are where the inputs are too large to be made.
            raise (said if device == "cpu" else error).with_traceback(None) from None
    if device == "meta" or not operations.makes_new(func):
        raise error
    return out


def _says_nothing(error: Exception) -> bool:
    return any(words in str(error) for words in _NO_VERDICT)


# ---- types ----

# Operations whose fake kernels take types that the real ones refuse.
_LISTS = tomllib.loads(Path(__file__).with_name("operations.toml").read_text("utf-8"))["refusals"]
TYPED = {func for name in _LISTS["typed"].split() for func in operations.overloads(name)}


def check_types(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]
) -> None:
    """Raise the real operation's error if it refuses the types of its tensors.

    It refuses them if a few numbers raise in these types, but not in each type alone. A CPU's
    kernels are asked. A GPU's norms take even fewer mixtures, which is unchecked.
    """
    kinds = tuple([tensor.dtype for tensor in tensors])
    if len({*kinds}) == 1 and kinds[0].is_floating_point and "embedding" not in str(func):
        return
    if (error := _error_of_types(func, kinds, (args, kwargs))) is not None:
        raise type(error)(*error.args)


_OF_TYPES = ("type", "implemented", "long tensor")  # words of such an error
_refused: dict[Any, Exception | None] = {}


def _error_of_types(func: Any, kinds: tuple[torch.dtype, ...], given: Any) -> Exception | None:
    if (func, kinds) not in _refused:
        with without_modes(), torch.no_grad():
            errors = (_error_at(most, func, kinds, given) for most in (1, 3))
            _refused[func, kinds] = next((error for error in errors if error is not None), None)
    return _refused[func, kinds]


def _error_at(most: int, func: Any, kinds: tuple[torch.dtype, ...], given: Any) -> Exception | None:
    """Return the error of a mixture whose types alone do, or of indices; no side above `most`."""

    def run(change: Callable[[torch.dtype], torch.dtype]) -> Exception | None:
        def tiny(value: Any) -> Any:
            if isinstance(value, Tensor):
                sides = [min(side, most) for side in value.shape]
                return torch.zeros(sides, dtype=change(value.dtype))
            return value if isinstance(value, bool) else min(value, most)

        args, kwargs = tree_map_only((Tensor, int), tiny, given)
        try:
            func(*args, **kwargs)
        except Exception as error:
            return None if _says_nothing(error) else error.with_traceback(None)
        return None

    def does(kind: torch.dtype) -> bool:
        def as_index(dtype: torch.dtype) -> torch.dtype:
            is_short = dtype in (torch.int8, torch.int16, torch.int32)
            return kind if dtype.is_floating_point else torch.int64 if is_short else dtype

        return run(as_index) is None or run(lambda _: kind) is None

    error = run(lambda kind: kind)
    floats = {kind for kind in kinds if kind.is_floating_point} or {torch.float32}
    of_types = error is not None and any(word in str(error) for word in _OF_TYPES)
    return error if of_types and ("'indices'" in str(error) or all(map(does, floats))) else None


def with_safe_labels(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a CTC loss's arguments with labels of 0, and all others as they came.

    Its kernel does not check labels: out of range, they make it read beyond the scores.
    """
    if func not in operations.overloads("_ctc_loss"):
        return args
    with without_modes():
        return args[0], torch.zeros(args[1].shape, dtype=args[1].dtype), *args[2:]
