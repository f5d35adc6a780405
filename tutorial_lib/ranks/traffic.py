"""What ranks say to each other, counted: calls and bytes of every collective."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tutorial_lib.private_torch import TorchDispatchMode, tree_leaves


@dataclass
class Traffic:
    """The collectives of one rank, in order.

    Args:
        calls: A name, as `all_reduce`, and the bytes of the tensors that were handed over.
    """

    calls: list[tuple[str, int]] = field(default_factory=list)

    def sizes(self, name: str = "all_reduce") -> list[int]:
        """Give the bytes of each call of one collective, in order."""
        return [num_bytes for called, num_bytes in self.calls if called == name]


_NAMES = {"allreduce_": "all_reduce", "broadcast_": "broadcast", "barrier": "barrier"}


class _Listener(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every collective of this thread, those that start within backward as well."""

    def __init__(self, seen: Traffic) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = seen

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Note a collective, and run any operation."""
        if getattr(func, "namespace", "") == "c10d":
            name = func.__name__.partition(".")[0]
            tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
            num_bytes = sum(tensor.nbytes for tensor in tensors)
            self.seen.calls.append((_NAMES.get(name, name), num_bytes))
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def traffic() -> Iterator[Traffic]:
    """Count the collectives that this rank begins inside the block.

    Yields:
        A `Traffic` that fills up.

    Source:
        Each collective of `torch.distributed` is an operation of the `c10d` namespace, which a
        dispatch mode sees. Bytes are those of the tensors given, not of what a ring or a tree of
        ranks makes of them on the wire.
    """
    seen = Traffic()
    with _Listener(seen):
        yield seen
