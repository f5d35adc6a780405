"""Operations that were asked before: their results anew, without asking fake tensors again.

A model repeats itself. What an operation returns on fake tensors follows from the shapes, types,
strides and sharing of its arguments, unless it looked at a value. So its answer is remembered with
all of these, and where they are equal it is made anew. What cannot be described so is asked each
time, as if nothing were remembered.
"""

from typing import Any

import torch
from torch import Tensor

from tutorial_lib.instruments.predicting.values import Values
from tutorial_lib.instruments.private_torch import operations
from tutorial_lib.instruments.private_torch.fakes import FakeMaker, asking_no_mode
from tutorial_lib.memory.private_torch import (
    FakeTensor,
    FakeTensorMode,
    TorchDispatchMode,
    storage_key,
    storage_keys,
)

_MOST_ANSWERS = 20_000  # of some 2 kB each
_CPU = torch.device("cpu")
_PLAIN = {int, float, bool, str, type(None)}
_PLAIN |= {torch.dtype, torch.device, torch.layout, torch.memory_format}
_REAL = {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool}
_REAL |= {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint64}

_OF_NUMBERS = {operations.READ_NUMBER, operations.LIFT, operations.DETACH, operations.CLONE}
_OF_NUMBERS |= {operations.ADD_TO, operations.SET_TO_ZERO}

# By all that decides: the results, each as the number of an argument or as what is made.
_answers: dict[Any, Any] = {}


class _NotCompared(Exception):  # noqa: N818 - no error of a user's
    """An argument has something that is not compared here."""


class Repeats(TorchDispatchMode):
    """Answer operations on fake tensors from memory, where shapes alone decide.

    Below are the mode whose tensors they are, and maybe modes of kernels and values.
    """

    def __init__(
        self, mode: FakeTensorMode, kernels: str = "", values: Values | None = None
    ) -> None:
        super().__init__()
        self._mode, self._kernels, self._values = mode, kernels, values
        self._maker = FakeMaker(mode)

    def run_operation(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run the operation, or make anew what it returned before."""
        if func in _OF_NUMBERS and (out := self._of_number(func, args, kwargs)) is not None:
            return out
        tensors: list[Tensor] = []
        key = self._key_or_none(func, args, kwargs, tensors)
        if key is None:
            return func(*args, **kwargs)
        answer = _answers.get(key)
        if answer is None and operations.is_foreach(func) and not self._values:
            answer = self._answer_of_few(func, args, kwargs, tensors)
            _remember(key, answer)
        if answer is not None:
            return self._again(answer, func, args, kwargs, tensors, key[-1])
        before = [*self._values.counts] if self._values else []
        out = func(*args, **kwargs)
        how = self._how(func, args, kwargs, out, before)
        if how is not None:
            answer = self._answer_of(out, tensors, how)
            if answer and key[:-1] == self._key(func, args, kwargs, [])[:-1]:
                _remember(key, answer)
        return out

    def _how(self, func: Any, args: Any, kwargs: Any, out: Any, before: Any) -> str | None:
        """Say what became of values: nothing, `filled`, `followed`; None where they decided."""
        if self._values is None:
            return ""
        filled = operations.fills_with(func, args) is not None and self._values.knows(out)
        if filled and out.nbytes == out.untyped_storage().nbytes():  # no part of more
            return "filled"
        more = [now - then for now, then in zip(self._values.counts, before, strict=True)]
        if not more[1]:
            return ""
        return "followed" if more == [1, 1, 1] and "device" not in kwargs else None

    def run_above(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation for the mode right above this one: what is remembered, undispatched."""
        if func in _OF_NUMBERS and (out := self._of_number(func, args, kwargs)) is not None:
            return out
        tensors: list[Tensor] = []
        key = self._key_or_none(func, args, kwargs, tensors)
        if key is None or (answer := _answers.get(key)) is None:
            return func(*args, **kwargs)
        return self._again(answer, func, args, kwargs, tensors, key[-1])

    def _again(
        self,
        answer: Any,
        func: Any,
        args: Any,
        kwargs: dict[str, Any],
        tensors: list[Tensor],
        known: tuple[int, ...],
    ) -> Any:
        """Make results anew, and note which values are known afterwards."""
        out = self._made(answer, tensors)
        if answer[2] == "followed" and self._values:
            self._values.follow(func, args, kwargs, out)
        elif answer[2] == "filled" and self._values:
            number = operations.fills_with(func, args)
            self._values.fill(out, number, tensors)  # type: ignore[arg-type]
        elif known and self._values:
            self._values.forget(operations.written_arguments(func, args, kwargs))
        return out

    def _of_number(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Answer for a number that fake tensors remember themselves, as they do."""
        tensor = args[0]
        number = tensor.constant if type(tensor) is FakeTensor else None
        if func is operations.READ_NUMBER and number is None:
            return self._values.number(tensor) if self._values else None
        if func is operations.LIFT and type(tensor) is Tensor and tensor.layout is torch.strided:
            number = tensor if tensor.numel() == 1 and tensor.device == _CPU else None
        elif number is None or tensor.fake_mode is not self._mode:
            return None
        if number is None or number.dtype not in _REAL or kwargs or number.numel() != 1:
            return None
        with asking_no_mode():
            if func is operations.READ_NUMBER:
                return number.item()
            if func is operations.DETACH:
                return None if self._values else self._maker.make_constant(number.detach(), tensor)
            if func is operations.SET_TO_ZERO or func is operations.ADD_TO:
                if number.dtype is torch.bool or [*map(type, args[1:])] not in ([], [int]):
                    return None
                out = tensor
                func(number, *args[1:])
            else:
                out = self._maker.make_constant(number.clone())
        if self._values:
            self._values.follow(func, args, kwargs, out)
        return out

    def _key_or_none(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        """Return `_key`, or None where the results do not follow from it."""
        if not operations.may_follow_from_shapes(func) or torch.is_inference_mode_enabled():
            return None
        try:
            return self._key(func, args, kwargs, tensors)
        except (_NotCompared, RuntimeError):  # sparse tensors have no strides, and no storage
            return None

    def _key(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        """Describe all that decides on the results, and list the tensors among the arguments."""
        said = [func, self._kernels, torch.get_default_dtype()]
        numbers_count, keys = not operations.is_foreach(func), list[int]()
        self._describe(args, said, tensors, keys, numbers_count)
        for name, value in kwargs.items():
            said.append(name)
            self._describe((value,), said, tensors, keys, numbers_count)
        if len({*keys}) < len(keys):
            said += ["shared", *_numbered(keys)]
        if operations.gives_view(func) and not all(map(self._maker.makes, tensors)):
            raise _NotCompared
        known = self._values.known if self._values else ()
        # At the end, since what is written may be known no longer afterwards.
        said.append(tuple([place for place, key in enumerate(keys) if key in known]))
        return tuple(said)

    def _describe(
        self,
        values: Any,
        said: list[Any],
        tensors: list[Tensor],
        keys: list[int],
        numbers_count: bool,
    ) -> None:
        """Say what arguments are; of a tensor all but its values."""
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                dtype = value.dtype
                if (
                    dtype not in _REAL
                    or value.fake_device != _CPU
                    or value.fake_mode is not self._mode
                    or value.constant is not None
                ):
                    raise _NotCompared
                storage = value.untyped_storage()
                tensors.append(value)
                keys.append(storage_key(storage))
                said += (dtype, value.size(), value.stride(), value.storage_offset())
                said.append(storage.nbytes())
            elif kind is tuple or kind is list:
                said += (list, len(value))
                self._describe(value, said, tensors, keys, numbers_count)
            elif kind in _PLAIN:
                said += (kind, value if numbers_count or kind is not float else 0.0)
            else:
                raise _NotCompared

    def _answer_of(self, out: Any, tensors: list[Tensor], how: str = "") -> Any:
        """Describe results so that they can be made anew; None where they cannot."""
        several = isinstance(out, tuple | list)
        keys, fresh = storage_keys(tensors), set[int]()
        described: list[Any] = []
        for one in out if several else [out]:
            place = next((place for place, given in enumerate(tensors) if given is one), None)
            if one is None or place is not None:
                described.append(place)
                continue
            if type(one) is int:  # a size, as flash attention returns
                described.append((..., one))
                continue
            if not self._maker.makes(one) or one.dtype not in _REAL:
                return None
            storage = one.untyped_storage()
            key, size, strides = storage_key(storage), one.size(), one.stride()
            if key in keys:
                view = (keys.index(key), one.dtype, size, strides, one.storage_offset())
                described.append(view)
                continue
            last = sum((n - 1) * step for n, step in zip(size, strides, strict=True))
            least = (last + 1) * one.element_size() if one.numel() else 0
            if key in fresh or storage.nbytes() != least:
                return None  # fake tensors themselves forget what is beyond
            if not how and self._values and self._values.knows(one):
                return None
            fresh.add(key)
            described.append((None, one.dtype, size, strides))
        return type(out) if several else None, described, how

    def _answer_of_few(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        """Ask for one item of each kind, where lists have many alike."""
        lists = [one for one in args if type(one) in (tuple, list)]
        if len({*map(len, lists)}) != 1:
            return None
        kinds: dict[Any, int] = {}
        firsts, numbers, storages = list[int](), list[int](), list[int]()
        for place, row in enumerate(zip(*lists, strict=True)):
            said, keys = list[Any](), list[int]()
            self._describe(row, said, [], keys, numbers_count=False)
            storages += {*keys}
            said += _numbered(keys)
            numbers.append(kinds.setdefault(tuple(said), len(kinds)))
            if numbers[-1] == len(firsts):
                firsts.append(place)
        if len({*storages}) < len(storages):  # rows share some
            return None
        few = [[one[i] for i in firsts] if type(one) in (tuple, list) else one for one in args]
        out = func(*few, **kwargs)
        if out is None:
            return None, [None], ""
        answer = self._answer_of(out, tensors)
        if answer is None or any(type(one) is not tuple or one[0] is not None for one in answer[1]):
            return None
        return answer[0], [answer[1][number] for number in numbers], ""

    def _made(self, answer: Any, tensors: list[Tensor]) -> Any:
        kind, described, _ = answer
        if kind is None and type(described[0]) is int:  # written in place
            return tensors[described[0]]
        out: list[Any] = []
        with asking_no_mode():
            for one in described:
                if one is None:
                    out.append(None)
                elif type(one) is int:
                    out.append(tensors[one])
                elif one[0] is None:
                    out.append(self._maker.make(*one[1:]))
                elif one[0] is ...:
                    out.append(one[1])
                else:
                    out.append(self._maker.make_view(tensors[one[0]], *one[1:]))
        return out[0] if kind is None else kind(out)


def _numbered(keys: list[int]) -> list[int]:
    """Return each key's number, in the order in which different ones come."""
    seen: dict[int, int] = {}
    return [seen.setdefault(key, len(seen)) for key in keys]


def _remember(key: Any, answer: Any) -> None:
    if answer is not None:
        if len(_answers) >= _MOST_ANSWERS:
            _answers.clear()
        _answers[key] = answer
