"""Gradients of strangers' functions: plain, by a plan, and of a batch in several micro-batches."""

import contextlib
import functools
import types
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tutorial_lib.instruments import planning
from tutorial_lib.instruments.training import Recipe

FOLDER = Path(__file__).resolve().parent / "strangers"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
SAMPLES = 8


def recipe(name, micro_batch=SAMPLES, **choices):
    return Recipe(f"{FOLDER / name}.py:make_loss", micro_batch, **choices)


def built(name, plan=None):
    """A loss of eight samples and its model, the same each time."""
    torch.manual_seed(0)
    loss, model = recipe(name).make_loss()
    return loss, planning.apply(model, plan) if plan else model


@dataclass
class Pass:
    """What a forward and a backward left: gradients, buffers, and whether random numbers went."""

    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]
    draws: bool

    def off(self, other):
        """The norm of the gradients' difference, as a share of the gradients'."""
        assert self.gradients.keys() == other.gradients.keys()
        pairs = [(one.flatten(), other.gradients[n].flatten()) for n, one in self.gradients.items()]
        mine, theirs = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        return float((mine - theirs).norm() / mine.norm())

    def is_bit_for_bit(self, other):
        return self.gradients.keys() == other.gradients.keys() and all(
            torch.equal(one, other.gradients[name]) for name, one in self.gradients.items()
        )

    def moved(self, other):
        """Whether any buffer differs."""
        return any(not torch.equal(one, other.buffers[n]) for n, one in self.buffers.items())


def passed(name, *, plan=None, checkpointed=False, micro_batch=SAMPLES):
    """Run forward and backward of eight samples, as a mean over micro-batches.

    The model is not as it was made: a teacher is no copy of its student any more.
    """
    loss, model = built(name, plan)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01 * torch.randn_like(parameter)
    if checkpointed:
        for layer in _layers(model):
            layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    for start in range(0, SAMPLES, micro_batch):
        with _only(loss, start, start + micro_batch):
            (loss() * micro_batch / SAMPLES).backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    draws = not torch.equal(before, torch.get_rng_state())
    return Pass(gradients, dict(model.named_buffers()), draws)


def _layers(model):
    """The outermost modules that are no list of others."""
    for child in model.children():
        is_list = isinstance(child, nn.ModuleList | nn.ModuleDict)
        yield from _layers(child) if is_list else [child]


@contextlib.contextmanager
def in_float64():
    """Let what is made here be exact enough that a difference is one."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def _only(loss, start, stop):
    """Let a loss see some of its samples."""
    before = [(cell, cell.cell_contents) for cell in _cells(loss, {}).values()]
    try:
        for cell, value in before:
            cell.cell_contents = _part(value, start, stop)
        yield
    finally:
        for cell, value in before:
            cell.cell_contents = value


def _cells(function, found):
    """What a function closes over, and the functions that it closes over do."""
    for cell in function.__closure__ or ():
        if id(cell) not in found:
            found[id(cell)] = cell
            if isinstance(cell.cell_contents, types.FunctionType):
                _cells(cell.cell_contents, found)
    return found


def _part(value, start, stop):
    if isinstance(value, Tensor) and value.dim() and len(value) % SAMPLES == 0:
        rows = len(value) // SAMPLES
        return value[start * rows : stop * rows]
    if isinstance(value, list) and len(value) == SAMPLES:
        return value[start:stop]
    if isinstance(value, dict):
        return {key: _part(item, start, stop) for key, item in value.items()}
    return [_part(item, start, stop) for item in value] if isinstance(value, list) else value
