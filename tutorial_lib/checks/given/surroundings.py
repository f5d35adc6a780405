"""What a call must leave as it came: noted before it, compared after it."""

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tutorial_lib.checks.given.values import CheckError

# What may be found changed, and what the learner is told.
MESSAGES = {
    "grad mode": (
        "your call left gradients turned off, or on: torch.no_grad() as a context manager restores "
        "the earlier setting."
    ),
    "modes": (
        "your call left a module in a different mode: call neither train() nor eval(), and leave "
        "each module as it was."
    ),
    "requires_grad": (
        "your call changed a parameter's requires_grad: torch.no_grad() is enough, and freezes "
        "nothing."
    ),
    "weights": "your call changed weights: leave that to the optimizer.",
    "gradients": (
        "your call changed what was in .grad, but no backward runs in this stage: don't clear any "
        "gradient."
    ),
    "buffers": "your call left a different value in a buffer: restore what you change.",
    "optimizer": "the optimizer's state has changed: check before you call optimizer.step().",
    "random state": "your call changed the random state: don't seed it, and draw no numbers.",
    "inputs": (
        "your call changed its arguments, but the caller still needs them: change no tensor or "
        "list in place."
    ),
    "marks": (
        "after your call the tensors that were passed in require a gradient, or hold one: work on "
        "detached aliases, which share the memory."
    ),
}
SWITCHES = ("grad mode", "modes", "requires_grad")
Noted = dict[str, list[Any]]


def note(
    modules: nn.Module | Sequence[nn.Module],
    inputs: Sequence[Tensor] = (),
    optimizer: Optimizer | None = None,
) -> Noted:
    """Copy what a call finds: in modules, optimizer and inputs, and around it."""
    joined = modules if isinstance(modules, nn.Module) else nn.ModuleList(modules)
    parameters = list(joined.parameters())
    states = optimizer.state.values() if optimizer is not None else ()
    return {
        "grad mode": [torch.is_grad_enabled()],
        "modes": [module.training for module in joined.modules()],
        "requires_grad": [p.requires_grad for p in parameters],
        "weights": [p.detach().clone() for p in parameters],
        "gradients": [None if p.grad is None else p.grad.clone() for p in parameters],
        "buffers": [buffer.clone() for buffer in joined.buffers()],
        "optimizer": [torch.as_tensor(value).clone() for s in states for value in s.values()],
        "random state": [torch.get_rng_state()],
        "inputs": [x.detach().clone() for x in inputs],
        "marks": [mark for x in inputs for mark in (x.requires_grad, x.grad)],
    }


def changed(before: Noted, after: Noted, *, but: Collection[str] = ()) -> list[str]:
    """Name what is another now, but for what may be."""
    names = [name for name in before if name not in but]
    pairs = {name: (before[name], after[name]) for name in names}
    return [n for n, (a, b) in pairs.items() if len(a) != len(b) or not all(map(_same, a, b))]


@contextlib.contextmanager
def watched(
    modules: nn.Module | Sequence[nn.Module],
    inputs: Sequence[Tensor] = (),
    optimizer: Optimizer | None = None,
    *,
    only: Collection[str] = tuple(MESSAGES),
    but: Collection[str] = (),
) -> Iterator[list[str]]:
    """Fill a list, at the block's end, with the names of what the block changed: see `MESSAGES`."""
    names: list[str] = []
    ignored = [name for name in MESSAGES if name in but or name not in only]
    before = note(modules, inputs, optimizer)
    try:
        yield names
    finally:
        names += changed(before, note(modules, inputs, optimizer), but=ignored)


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return one is other
    # nan is itself here: an input may be spoiled
    alike = (one.dtype, one.shape) == (other.dtype, other.shape)
    return alike and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def expect_unchanged(handed_in: Any, as_it_was: Any) -> None:
    """Expect that lists and dicts are still what they were when an answer was handed them."""
    if handed_in != as_it_was:
        raise CheckError(MESSAGES["inputs"])
