"""Segments of one module."""

from collections.abc import Callable
from typing import Any

from torch.utils.checkpoint import checkpoint

Forward = Callable[..., Any]


def checkpointed(forward: Forward, *args: Any, **kwargs: Any) -> Any:
    """Run a forward now, keeping its inputs alone, and again during backward."""
    num_args, names = len(args), tuple(kwargs)  # not the values: a closure would keep them alive

    # All values go in by position: checkpoint looks there for the devices whose random state it
    # must keep. Keywords would be mistaken for its own.
    def run(*values: Any) -> Any:
        named = dict(zip(names, values[num_args:], strict=True))
        return forward(*values[:num_args], **named)

    return checkpoint(run, *args, *kwargs.values(), use_reentrant=False)
