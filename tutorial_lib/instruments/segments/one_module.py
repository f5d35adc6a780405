"""Segments of one module, and the checkpoint that runs every segment."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from tutorial_lib.instruments.private_torch import in_transform

Forward = Callable[..., Any]
TRANSFORMED = (
    "This loss runs the model under torch.func (grad, jvp, vmap) or in forward mode, where neither "
    "a plan nor PyTorch's checkpoint can recompute. Take smaller micro-batches; or call the model "
    "on whole batches and take derivatives by torch.autograd.grad: checkpoints work there."
)


class TransformedError(ValueError):
    """Raised by a segment under `torch.func`, where PyTorch's checkpoint fails, often in backward.

    Without gradients it runs there as anywhere.
    """


def refuses_hooks(error: Exception) -> bool:
    """Tell whether `torch.func.grad` refused the hooks of a checkpoint around it."""
    return "saved tensor hooks" in str(error)


def recomputed(run: Forward, *args: Any, **options: Any) -> Any:
    """Return what a function returns, and run it again in backward, by PyTorch's checkpoint."""
    if torch.is_grad_enabled() and in_transform():
        raise TransformedError(TRANSFORMED)
    try:
        return checkpoint(run, *args, use_reentrant=False, **options)
    except RuntimeError as error:
        if refuses_hooks(error):
            raise TransformedError(TRANSFORMED) from error
        raise


def checkpointed(forward: Forward, *args: Any, **kwargs: Any) -> Any:
    """Run a forward now, keeping its inputs alone, and again during backward."""
    num_args, names = len(args), tuple(kwargs)  # not the values: a closure would keep them alive

    # All values go in by position: checkpoint looks there for the devices whose random state it
    # must keep. Keywords would be mistaken for its own.
    def run(*values: Any) -> Any:
        named = dict(zip(names, values[num_args:], strict=True))
        return forward(*values[:num_args], **named)

    return recomputed(run, *args, *kwargs.values())
