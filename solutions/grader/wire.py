"""Messages between judge, session and a student's process: JSON and raw bytes, never pickle.

A message is one byte for its kind, eight for its length, and its content; from a student's process
a mark follows (see `Marks`). A value is JSON in which every object is a tag (`dict`, `tensor` or
`opaque`), followed by its tensors as safetensors.

| kind | from, to | content |
|---|---|---|
| Q | judge, session | a request, as a value |
| Q | session, student | the next case of the same check, as a value |
| S | student, session | number of the step that begins, in digits |
| C | student, session | name of what happened in the process, to be counted |
| C | session, judge | goes before each answer: those counts, in JSON |
| R | student, session, judge | what the `run` half returned, as a value |
| F | student, session, judge | why there is no result, in words |
| T | session, judge | the same, where time ran out: another attempt may mend it |
| N | session, judge | nothing: this machine cannot hold the memory exam |
"""

import hashlib
import json
import secrets
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from tutorial_lib.checks.given.values import Opaque

REQUEST, STEP, RESULT, FAILURE, TIMED_OUT, NOT_HELD = b"Q", b"S", b"R", b"F", b"T", b"N"
REPORT = COUNTS = b"C"
TEXT_BYTES, VALUE_BYTES = 2**20, 2**26

_HEAD = struct.Struct("<cQ")
_DTYPES = {
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
}
_UNREADABLE = (struct.error, ValueError, TypeError, KeyError, RecursionError, RuntimeError)


class WireError(ValueError):
    """A message is too long, cut off, or not what this protocol writes."""


def frame(kind: bytes, content: bytes) -> bytes:
    """Put kind and length before a content."""
    return _HEAD.pack(kind, len(content)) + content


def read_frame(read: Callable[[int], bytes], limit: int = VALUE_BYTES) -> tuple[bytes, bytes]:
    """Read one message: its kind and content, both empty when the sender has closed.

    One that is too long, or ends in the middle, is a `WireError`.
    """
    head = _read_exactly(read, _HEAD.size)
    if not head:
        return b"", b""
    kind, length = _HEAD.unpack(head)
    if length > limit:
        raise WireError(f"a message of {length} bytes came, but {limit} are allowed.")
    content = _read_exactly(read, length)
    if len(content) < length:
        raise WireError(f"a message of {length} bytes ended after {len(content)}.")
    return kind, content


class Marks:
    """Marks of one run's messages: each is a keyed digest of its message and of all before it.

    So what something else wrote into the channel, or sent again, has a wrong mark. The key is drawn
    here, for one run, and is in no value that Python could read.
    """

    _BYTES = 16

    def __init__(self) -> None:
        self._chain = hashlib.blake2b(key=secrets.token_bytes(32), digest_size=self._BYTES)

    def marked(self, kind: bytes, content: bytes) -> bytes:
        """Return the next message to send, with its mark."""
        message = frame(kind, content)
        self._chain.update(message)
        return message + self._chain.digest()

    def read(self, read: Callable[[int], bytes]) -> tuple[bytes, bytes]:
        """Read the next message as `read_frame` does; with a wrong mark it is a `WireError`."""
        kind, content = read_frame(read)
        if kind and _read_exactly(read, self._BYTES) != self.marked(kind, content)[-self._BYTES :]:
            raise WireError("it is not what the check sent: your code wrote something else there.")
        return kind, content


def _read_exactly(read: Callable[[int], bytes], length: int) -> bytes:
    parts, missing = [], length
    while missing and (part := read(min(missing, 2**20))):
        parts.append(part)
        missing -= len(part)
    whole = b"".join(parts)
    if 0 < len(whole) < length:
        raise WireError(f"{length} bytes were announced, but {len(whole)} came.")
    return whole


@dataclass(frozen=True)
class Request:
    """One case of a check, to be run in the process of an answer."""

    check: str  # the run half's name, as in `lab01.parameter_bytes`
    exercise: str  # as in `1.1`
    name: str  # what the answer is called
    case: Mapping[str, Any]  # plain data


def encode(value: Any) -> bytes:
    """Write plain data (see `checks.given.values.plain`); too much of it is a `WireError`."""
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(_tagged(value, tensors)).encode()
    if len(text) > TEXT_BYTES:
        raise WireError(f"the result has {len(text)} bytes of text, but {TEXT_BYTES} are allowed.")
    whole = struct.pack("<Q", len(text)) + text + save(tensors)
    if len(whole) > VALUE_BYTES:
        raise WireError(f"the result has {len(whole)} bytes, but {VALUE_BYTES} are allowed.")
    return whole


def _tagged(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        if value.dtype == torch.uint64 and not value.dim():
            return value.item()
        if value.dtype not in _DTYPES or value.layout != torch.strided:
            return {"opaque": f"{str(value.dtype).removeprefix('torch.')} {value.layout} Tensor"}
        name, dense = str(len(tensors)), value.detach().to("cpu").resolve_neg()
        tensors[name] = dense.clone(memory_format=torch.contiguous_format)
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {"dict": {str(key): _tagged(item, tensors) for key, item in value.items()}}
    if isinstance(value, list | tuple):
        return [_tagged(item, tensors) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    name = value.type_name if isinstance(value, Opaque) else type(value).__name__
    return {"opaque": str(name)[:200]}


def decode(content: bytes) -> Any:
    """Read what `encode` wrote, perhaps in a student's process: all else is a `WireError`."""
    try:
        (length,) = struct.unpack_from("<Q", content)
        if not length <= min(len(content) - 8, TEXT_BYTES):
            raise WireError(f"{length} bytes of text were announced.")
        return _untagged(json.loads(content[8 : 8 + length]), load(content[8 + length :]))
    except WireError:
        raise
    except (*_UNREADABLE, AssertionError, SafetensorError) as error:
        raise WireError(f"{type(error).__name__}: {str(error)[:200]}") from error


def _untagged(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if not isinstance(value, dict):
        return [_untagged(item, tensors) for item in value] if isinstance(value, list) else value
    ((tag, inner),) = value.items()
    if tag == "dict" and isinstance(inner, dict):
        return {key: _untagged(item, tensors) for key, item in inner.items()}
    if tag == "tensor":
        tensor = tensors[inner]
        if tensor.dtype not in _DTYPES or tensor.dim() > 64:
            raise WireError(f"a tensor of {tensor.dtype} and {tensor.dim()} dimensions came.")
        return tensor
    if tag == "opaque" and isinstance(inner, str):
        return Opaque(inner[:200])
    raise WireError(f"{str(tag)[:50]!r} isn't a tag.")
