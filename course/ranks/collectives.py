"""Collectives between ranks, counted: calls and bytes of each."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tutorial_lib.instruments.private_torch import tree_leaves
from tutorial_lib.memory.private_torch import TorchDispatchMode


@dataclass
class Traffic:
    """The collectives of one rank, in order."""

    # a name, as `all_reduce`, and bytes: those of the whole tensor where ranks bring or
    # take away parts of it
    calls: list[tuple[str, int]] = field(default_factory=list)

    def sizes(self, name: str = "all_reduce") -> list[int]:
        """Bytes of each call of one collective, in order."""
        return [num_bytes for called, num_bytes in self.calls if called == name]

    def ring_bytes(self, num_ranks: int) -> int:
        """Bytes that this rank puts on the wire where ranks pass parts on in a ring.

        Args:
            num_ranks: How many ranks the ring joins, at least 1.

        Source:
            With N ranks a gather, a reduce-scatter or a broadcast sends (N - 1) / N of the tensor,
            and an all-reduce twice that (Patarasuk and Yuan, 2009). Other backends may send more.
        """
        share = (num_ranks - 1) / num_ranks
        factors = {"all_reduce": 2 * share, "send": 1, "recv": 0, "barrier": 0}
        return round(sum(factors.get(name, share) * size for name, size in self.calls))


_NAMES = {  # PyTorch has a second set of names for collectives that sharded tensors make
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgather_base": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
}
_NO_COLLECTIVES = {"wait_tensor", "wrap_tensor_autograd"}


class _Listener(TorchDispatchMode):
    """Sees every collective of this thread, those that start within backward as well."""

    def __init__(self, seen: Traffic) -> None:
        super().__init__()
        self.seen = seen

    def run_operation(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Note a collective, and run any operation."""
        out = func(*args, **kwargs)
        if getattr(func, "namespace", "") in ("c10d", "_c10d_functional"):
            name = func.__name__.partition(".")[0].strip("_")
            if name not in _NO_COLLECTIVES:
                num_bytes = max(map(_num_bytes, (*args, out)))
                self.seen.calls.append((_NAMES.get(name, name), num_bytes))
        return out


def _num_bytes(value: Any) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(value) if isinstance(leaf, Tensor))


@contextlib.contextmanager
def traffic() -> Iterator[Traffic]:
    """Count the collectives that this rank begins inside the block.

    Yields:
        A `Traffic` that fills up.

    Source:
        Each collective of `torch.distributed` is an operation of the namespace `c10d` or
        `_c10d_functional`, which a dispatch mode sees. Bytes are those of tensors, not of what a
        ring or a tree of ranks makes of them on the wire.
    """
    seen = Traffic()
    with _Listener(seen):
        yield seen
