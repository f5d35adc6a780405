"""Selective checkpointing of a stage: matmul results are kept, the rest is recomputed."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from tutorial_lib.memory.private_torch_unseen import flops_of


def is_matmul(func: Any, args: tuple[Any, ...]) -> bool:
    """Tell matmuls (convolutions and attention too) from all other operations.

    Attention with dropout is none: its result cannot stand for it, since the random numbers after
    it would differ in a recomputation that leaves it out.
    """
    if flops_of(func) is None:
        return False
    draws = torch.Tag.nondeterministic_seeded in func.tags
    return not (draws and any(isinstance(arg, float) and arg > 0 for arg in args))


def selective(num_matmuls: int) -> Callable[[], Any]:
    """Make contexts for `checkpoint` that store the results of so many matmuls, the first ones.

    Those after the last tensor that backward needs are worth nothing: PyTorch's early stop never
    reaches them.
    """

    def contexts() -> Any:
        seen = Counter[bool]()

        def policy(context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            if is_matmul(func, args):
                seen[context.is_recompute] += 1
                if seen[context.is_recompute] <= num_matmuls:
                    return CheckpointPolicy.MUST_SAVE
            return CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]

    return contexts
