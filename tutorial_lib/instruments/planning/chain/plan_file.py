"""A plan as a file: JSON, so that reading one runs no code."""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.instruments.planning.chain.moves import Move
from tutorial_lib.instruments.planning.chain.profiled import Call
from tutorial_lib.instruments.planning.chain.stages import Skip, Stage
from tutorial_lib.instruments.segments.tree import Selective, Tree

_FORMAT = "tutorial_lib plan, 1"


def write(path: str | Path, values: Mapping[str, Any]) -> None:
    """Write the values of a plan's fields, by name, into a file, which is replaced.

    Raises:
        ValueError: When a stage gives what is neither a tensor nor a tuple, list or dict of them;
            no file is written then.
    """
    text = json.dumps({"format": _FORMAT, **{key: _plain(v) for key, v in values.items()}})
    Path(path).write_text(text + "\n", encoding="utf-8")


def read(path: str | Path) -> dict[str, Any]:
    """Read the values of a plan's fields from a file that `write` wrote; refuse any other."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if data.pop("format") != _FORMAT:
            raise ValueError("another format")
        return {
            **data,
            "stages": tuple(_stage(stage) for stage in data["stages"]),
            "tree": _tree(data["tree"]),
            "skips": tuple(map(_skip, data["skips"])),
            "names": tuple(data["names"]),
            "calls": tuple(_call(call) for call in data["calls"]),
            "moves": tuple(Move(**move) for move in data.get("moves", ())),
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} holds no plan: `Plan.save` and `python -m tutorial_lib plan --save` write one."
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, Call):
        return {**_of_fields(value), "output": _form(value)}
    if is_dataclass(value):
        return _of_fields(value)
    if isinstance(value, Selective):
        return {"selective": int(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.item() if hasattr(value, "item") else value  # NumPy's numbers


def _of_fields(value: Any) -> dict[str, Any]:
    names = [field.name for field in fields(value) if field.name != "output"]
    return {name: _plain(getattr(value, name)) for name in names}


def _form(call: Call) -> Any:
    """Output of a stage as data: containers by their kind, tensors by shape and dtype."""

    def form(value: Any) -> Any:
        if isinstance(value, Tensor):
            return {"shape": [*value.shape], "dtype": str(value.dtype).removeprefix("torch.")}
        if type(value) in (tuple, list):
            return {type(value).__name__: [form(item) for item in value]}
        if type(value) is dict:
            return {"dict": {key: form(item) for key, item in value.items()}}
        if value is None or isinstance(value, bool | int | float | str):
            return {"value": value}
        raise ValueError(
            f"The stage {call.name} gives a {type(value).__name__}, which a plan's file cannot "
            "hold: apply the plan in the process that found it."
        )

    return form(call.output)


def _output(form: Mapping[str, Any]) -> Any:
    if "shape" in form:
        empty = torch.empty((), dtype=getattr(torch, form["dtype"]), device="meta")
        return empty.as_strided(form["shape"], [0] * len(form["shape"]))
    ((kind, value),) = form.items()
    if kind == "dict":
        return {key: _output(item) for key, item in value.items()}
    if kind == "value":
        return value
    return {"tuple": tuple, "list": list}[kind](_output(item) for item in value)


def _call(data: dict[str, Any]) -> Call:
    name, count = data["kind"]
    attributes = tuple((path, key) for path, key in data.get("attributes", ()))
    form = {"kind": (name, count), "output": _output(data["output"]), "attributes": attributes}
    return Call(**{**data, **form})


def _stage(data: dict[str, Any]) -> Stage:
    form = data["selective"]
    return Stage(**{**data, "selective": None if form is None else _stage(form)})


def _skip(data: dict[str, Any]) -> Skip:
    return Skip(**{**data, "takers": tuple(data.get("takers", ()))})


def _tree(items: list[Any]) -> Tree:
    return tuple(map(_item, items))


def _item(item: Any) -> int | Tree:
    if isinstance(item, dict):
        return Selective(item["selective"])
    return _tree(item) if isinstance(item, list) else int(item)
