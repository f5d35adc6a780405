"""The tensors in what a module takes or gives: in nested containers of any kind, and dataclasses.

PyTorch's pytree looks into lists, tuples, dicts and what libraries registered. People's own models
pass dataclasses, packed sequences and namespaces as well.
"""

import copy
from collections import UserDict
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any

from torch import nn

from tutorial_lib.instruments.private_torch import tree_leaves, tree_map_only

Kinds = type | tuple[type, ...]


def map_leaves(
    kinds: Kinds, function: Callable[[Any], Any], value: Any, *, dataclasses: bool = True
) -> Any:
    """Return a value with its leaves of some kinds replaced.

    Containers are made anew, and dataclasses in which something changes; all else stays the same
    object.

        map_leaves(Tensor, Tensor.detach, {"loss": loss, "hidden": [first, second]})
    """

    def mapped(part: Any) -> Any:
        return map_leaves(kinds, function, part, dataclasses=dataclasses)

    def leaf(part: Any) -> Any:
        if isinstance(part, kinds):
            return function(part)
        if isinstance(part, tuple):
            make: Any = getattr(part, "_make", type(part))
            return make([mapped(item) for item in part])
        if isinstance(part, list):
            made = copy.copy(part)
            made[:] = [mapped(item) for item in part]
            return made
        if isinstance(part, dict | UserDict):
            changed = copy.copy(part)
            changed.update({key: mapped(item) for key, item in part.items()})
            return changed
        held = {name: getattr(part, name) for name in _attributes(part)} if dataclasses else {}
        if not list_leaves(kinds, held):
            return part
        copied = copy.copy(part)
        for name in held:
            object.__setattr__(copied, name, mapped(held[name]))  # it may be frozen
        return copied

    return tree_map_only(object, leaf, value, is_leaf=_is_named_tuple)


def _is_named_tuple(part: Any) -> bool:
    # pytree calls its class, and PackedSequence's looks at devices
    return isinstance(part, tuple) and hasattr(part, "_make")


def _attributes(part: Any) -> list[str]:
    if isinstance(part, SimpleNamespace):
        return list(vars(part))
    if is_dataclass(part) and not isinstance(part, type | nn.Module):
        return [field.name for field in fields(part) if hasattr(part, field.name)]
    return []


def list_leaves(kinds: Kinds, value: Any) -> list[Any]:
    """List the leaves of some kinds, in the order of `map_leaves`."""
    found: list[Any] = []
    for part in tree_leaves(value, is_leaf=_is_named_tuple):
        if isinstance(part, kinds):
            found.append(part)
        else:
            found += list_leaves(kinds, held) if (held := _inside(part)) else []
    return found


def hidden(kinds: Kinds, value: Any) -> str | None:
    """Return the class of an object in a value that has leaves of some kinds among its attributes.

    `map_leaves` does not look into it; `None` where there is no such object.
    """
    for part in tree_leaves(value, is_leaf=_is_named_tuple):
        if isinstance(part, (kinds, type, nn.Module)):
            continue
        inside = _inside(part)
        name = hidden(kinds, inside) if inside else None
        if not inside and list_leaves(kinds, getattr(part, "__dict__", {})):
            name = type(part).__name__
        if name is not None:
            return name
    return None


def _inside(part: Any) -> list[Any]:
    """List what a container or dataclass that pytree does not know holds."""
    if isinstance(part, tuple | list):
        return list(part)
    if isinstance(part, dict | UserDict):
        return list(part.values())
    return [getattr(part, name) for name in _attributes(part)]
