"""Messages between judge, session and a student's process: JSON and raw bytes, never pickle.

A message is one byte for its kind, eight for its length, and its content; from a student's process
a mark follows (see `Marks`). A value is JSON in which every object is a tag (`dict`, `tensor` or
`opaque`), followed by the bytes of its tensors.

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
import math
import secrets
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tutorial_lib.checks.given.values import Opaque

REQUEST, STEP, RESULT, FAILURE = b"Q", b"S", b"R", b"F"
REPORT = COUNTS = b"C"
TIMED_OUT, NOT_HELD = b"T", b"N"
TEXT_BYTES = 2**20
VALUE_BYTES = 2**26

_HEAD = struct.Struct("<cQ")
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
        *(torch.uint64, torch.uint32, torch.uint16, torch.complex64, torch.complex128),
    )
}


class WireError(ValueError):
    """A message is too long, cut off, or not what this protocol writes."""


def frame(kind: bytes, content: bytes) -> bytes:
    """Put kind and length before a content."""
    return _HEAD.pack(kind, len(content)) + content


def read_frame(read: Callable[[int], bytes], limit: int = VALUE_BYTES) -> tuple[bytes, bytes]:
    """Read one message: its kind and content, both empty when the sender has closed.

    Raises:
        WireError: When the message is too long, or ends in the middle.
    """
    head = _read_exactly(read, _HEAD.size)
    if not head:
        return b"", b""
    kind, length = _HEAD.unpack(head)
    if length > limit:
        raise WireError(f"a message of {length} bytes came, and {limit} are allowed.")
    content = _read_exactly(read, length)
    if len(content) < length:
        raise WireError(f"a message of {length} bytes ended after {len(content)}.")
    return kind, content


class Marks:
    """Marks of one run's messages: each is a keyed digest of its message and of all before it.

    So what something else has written into the channel, or has sent again, has a wrong mark. The
    key is drawn here, for one run, and is in no value that Python could read.
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
            raise WireError("it is not what the check has sent: your code wrote in its place.")
        return kind, content


def _read_exactly(read: Callable[[int], bytes], length: int) -> bytes:
    parts, missing = [], length
    while missing and (part := read(min(missing, 2**20))):
        parts.append(part)
        missing -= len(part)
    whole = b"".join(parts)
    if 0 < len(whole) < length:
        raise WireError(f"{length} bytes were announced, and {len(whole)} came.")
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
    blobs: list[bytes] = []
    text = json.dumps(_tagged(value, blobs)).encode()
    if len(text) > TEXT_BYTES:
        raise WireError(f"the result has {len(text)} bytes of text, and {TEXT_BYTES} are allowed.")
    whole = b"".join([struct.pack("<Q", len(text)), text, *blobs])
    if len(whole) > VALUE_BYTES:
        raise WireError(f"the result has {len(whole)} bytes, and {VALUE_BYTES} are allowed.")
    return whole


def _tagged(value: Any, blobs: list[bytes]) -> Any:
    if isinstance(value, torch.Tensor):
        name = str(value.dtype).removeprefix("torch.")
        if name not in _DTYPES or value.layout != torch.strided:
            return {"opaque": f"{name} {value.layout} Tensor"}
        dense = value.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
        blob = dense.reshape(-1).view(torch.uint8).numpy().tobytes()
        blobs.append(blob)
        return {"tensor": [name, list(value.shape), len(blob)]}
    if isinstance(value, Mapping):
        return {"dict": {str(key): _tagged(item, blobs) for key, item in value.items()}}
    if isinstance(value, list | tuple):
        return [_tagged(item, blobs) for item in value]
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
        blobs = memoryview(content)[8 + length :]
        value, rest = _untagged(json.loads(content[8 : 8 + length]), blobs)
    except WireError:
        raise
    except (struct.error, ValueError, TypeError, KeyError, RecursionError, RuntimeError) as error:
        raise WireError(f"{type(error).__name__}: {str(error)[:200]}") from error
    if len(rest):
        raise WireError(f"{len(rest)} bytes are left over.")
    return value


def _untagged(value: Any, blobs: memoryview) -> tuple[Any, memoryview]:
    if isinstance(value, list):
        items = []
        for item in value:
            read, blobs = _untagged(item, blobs)
            items.append(read)
        return items, blobs
    if not isinstance(value, dict):
        return value, blobs
    ((tag, inner),) = value.items()
    if tag == "dict" and isinstance(inner, dict):
        pairs = {}
        for key, item in inner.items():
            pairs[key], blobs = _untagged(item, blobs)
        return pairs, blobs
    if tag == "tensor":
        name, shape, length = inner
        return _tensor(name, shape, length, blobs)
    if tag == "opaque" and isinstance(inner, str):
        return Opaque(inner[:200]), blobs
    raise WireError(f"{str(tag)[:50]!r} is no tag.")


def _tensor(
    name: str, shape: list[int], length: int, blobs: memoryview
) -> tuple[torch.Tensor, memoryview]:
    dtype = _DTYPES[name]
    if not all(type(side) is int and side >= 0 for side in [*shape, length]) or len(shape) > 64:
        raise WireError(f"no shape: {str(shape)[:100]}")
    if math.prod(shape) * dtype.itemsize != length or length > len(blobs):
        raise WireError(f"a {name} of shape {str(shape)[:100]} does not have {length} bytes.")
    if not length:
        return torch.empty(shape, dtype=dtype), blobs
    flat = torch.frombuffer(bytearray(blobs[:length]), dtype=torch.uint8)
    return flat.view(dtype).reshape(shape), blobs[length:]
