"""What the answers of lab 07 find and must leave as it was: noted before a call, compared after."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.checks.core import CheckError, Result

Noted = dict[str, list[Any]]

# What may be found changed, and what the learner is told.
_SAID = {
    "grad mode": (
        "your call left gradients turned off, or on: torch.no_grad() as a context puts back what "
        "was before it."
    ),
    "modes": (
        "a module is in another mode after your call: call neither train() nor eval(), and leave "
        "each as it came."
    ),
    "requires_grad": (
        "after your call a parameter needs a gradient that needed none before, or the other way "
        "round: torch.no_grad() is enough, and freezes nothing."
    ),
    "weights": "your call changed weights: that is for the optimizer.",
    "gradients": (
        "your call changed what was in .grad, and nothing goes backward in this stage: clear "
        "nothing."
    ),
    "buffers": "your call left a buffer with another value: put back what you change.",
    "random state": "your call moved the random state: seed nothing, and draw nothing.",
    "inputs": (
        "what was handed in is another after your call, and the caller still needs it: change no "
        "tensor and no list in place."
    ),
    "marks": (
        "the tensors that were handed in need a gradient now, or hold one: work on detached "
        "aliases, which share the memory."
    ),
}


def note(modules: Sequence[nn.Module], inputs: Sequence[Tensor]) -> Noted:
    """Copy what a call finds: in its modules, in the tensors that it is handed, and around it."""
    joined = nn.ModuleList(modules)
    parameters = list(joined.parameters())
    return {
        "grad mode": [torch.is_grad_enabled()],
        "modes": [module.training for module in joined.modules()],
        "requires_grad": [p.requires_grad for p in parameters],
        "weights": [p.detach().clone() for p in parameters],
        "gradients": [None if p.grad is None else p.grad.clone() for p in parameters],
        "buffers": [buffer.clone() for buffer in joined.buffers()],
        "random state": [torch.get_rng_state()],
        "inputs": [x.detach().clone() for x in inputs],
        "marks": [mark for x in inputs for mark in (x.requires_grad, x.grad)],
    }


def changed(before: Noted, after: Noted, *, but: Collection[str] = ()) -> list[str]:
    """Name what is another now, but for what may be."""
    names = [name for name in before if name not in but]
    return [name for name in names if not _all_same(before[name], after[name])]


def _all_same(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(map(_same, some, others))


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return one is other
    # nan is itself here: an input may be spoiled
    alike = (one.dtype, one.shape) == (other.dtype, other.shape)
    return alike and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def names_of(result: Result) -> list[str]:
    """Read from a result what was found changed.

    Raises:
        CheckError: When it is no list of such names.
    """
    names = result.get("changed")
    if isinstance(names, list) and all(isinstance(n, str) and n in _SAID for n in names):
        return names
    raise CheckError(f"changed: a list of names is wanted, and {type(names).__name__} came.")


def demand_kept(result: Result) -> None:
    """Demand that nothing was found changed.

    Raises:
        CheckError: With the first thing that was.
    """
    for name in names_of(result):
        raise CheckError(_SAID[name])
