"""A plan as a file: JSON, so that reading one runs no code.

What JSON has no form for is an object of one key, its kind: `{"tuple": [...]}`, `{"Stage": {...}}`.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.instruments.planning.chain.moves import Move
from tutorial_lib.instruments.planning.chain.profiled import Call
from tutorial_lib.instruments.planning.chain.stages import Skip, Stage
from tutorial_lib.instruments.segments.tree import Selective

_FORMAT = "tutorial_lib plan, 2"
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Stage, Skip, Call, Move)}


def write(path: str | Path, values: Mapping[str, Any]) -> None:
    """Write the values of a plan's fields, by name, into a file, which is replaced.

    Raises:
        ValueError: When a stage returns what is neither a tensor nor a tuple, list or dict of them;
            no file is written then.
    """
    text = json.dumps({"format": _FORMAT, **{key: _as_data(v) for key, v in values.items()}})
    Path(path).write_text(text + "\n", encoding="utf-8")


def read(path: str | Path) -> dict[str, Any]:
    """Read the values of a plan's fields from a file that `write` wrote; refuse any other."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if data.pop("format") != _FORMAT:
            raise ValueError("another format")
        return {key: _made(value) for key, value in data.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} holds no plan: `Plan.save` and `python -m tutorial_lib plan --save` write one."
        ) from error


def _as_data(value: Any, stage: str = "") -> Any:
    """Return a value as JSON has it; of a stage's output, tensors by shape and dtype."""
    if isinstance(value, Tensor):
        return {"tensor": [[*value.shape], str(value.dtype).removeprefix("torch.")]}
    if isinstance(value, Selective):
        return {"Selective": int(value)}
    if type(value) is tuple:
        return {"tuple": [_as_data(item, stage) for item in value]}
    if type(value) is list:
        return [_as_data(item, stage) for item in value]
    if type(value) is dict:
        return {"dict": {key: _as_data(item, stage) for key, item in value.items()}}
    if (kind := type(value).__name__) in _KINDS:
        stage = value.name if isinstance(value, Call) else stage
        parts = {part.name: _as_data(getattr(value, part.name), stage) for part in fields(value)}
        return {kind: parts}
    value = value.item() if hasattr(value, "item") else value  # NumPy's numbers
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(
        f"The stage {stage} returns a {kind}, which a plan file cannot hold: apply the plan in the "
        "process that found it."
    )


def _made(data: Any) -> Any:
    """Return what `_as_data` wrote."""
    if isinstance(data, list):
        return [_made(item) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, value),) = data.items()
    if kind == "tensor":
        shape, dtype = value
        empty = torch.empty((), dtype=getattr(torch, dtype), device="meta")
        return empty.as_strided(shape, [0] * len(shape))
    if kind == "Selective":
        return Selective(value)
    if kind == "tuple":
        return tuple(map(_made, value))
    parts = {key: _made(item) for key, item in value.items()}
    return parts if kind == "dict" else _KINDS[kind](**parts)
