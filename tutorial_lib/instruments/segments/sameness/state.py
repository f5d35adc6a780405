"""What modules hold: parameters, buffers, and whatever is in their attributes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from tutorial_lib.instruments import private_torch

# What every module has: its modes, hooks and children.
_OF_ALL = {*vars(nn.Module()), "forward", private_torch.CALL}
_DEEPEST = 4


def held_by(
    modules: Iterable[tuple[str, nn.Module]], number: Callable[[Tensor], Any]
) -> dict[str, Any]:
    """Note all that modules hold by name: tensors by their number, items of lists and objects."""
    found: dict[str, Any] = {}
    for path, module in modules:
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        own += [(name, value) for name, value in vars(module).items() if name not in _OF_ALL]
        for name, value in own:
            for at, leaf in _walk(value, f"{path}.{name}" if path else name, ()):
                is_tensor = isinstance(leaf, Tensor)
                found[at] = number(leaf) if is_tensor else (type(leaf).__name__, repr(leaf))
    return found


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """List the names of what differs, or is there once only."""
    names = dict.fromkeys([*before, *after])
    return [name for name in names if before.get(name) != after.get(name)]


def _walk(value: Any, name: str, around: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Tensor | bool | int | float | complex | str | None):
        yield name, value
    elif len(around) < _DEEPEST and id(value) not in around:
        for key, item in _items(value):
            yield from _walk(item, f"{name}{key}", (*around, id(value)))


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """List what a container or a plain object holds, and how much that is."""
    if isinstance(value, dict | list | tuple | set):
        yield ".length", len(value)
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        yield from ((f"[{key!r}]", item) for key, item in pairs)
    elif not isinstance(value, nn.Module | type) and _is_plain(value):
        yield from ((f".{key}", item) for key, item in vars(value).items())


def _is_plain(value: Any) -> bool:
    home = type(value).__module__.partition(".")[0]
    return (
        hasattr(value, "__dict__") and not callable(value) and home not in ("torch", "transformers")
    )
