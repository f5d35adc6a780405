"""The stages of a model, as it calls them: which modules, in what order, with what output."""

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.instruments import segments
from tutorial_lib.instruments.planning.chain.profiled import Call
from tutorial_lib.instruments.planning.chain.stages import Stage
from tutorial_lib.instruments.private_torch import CALL
from tutorial_lib.instruments.segments.structure import list_leaves

# What lies between the blocks of a U-Net of diffusers, at the same level as they.
_BETWEEN = {"Downsample2D", "Upsample2D"}
_IN_LEVELS = ("attentions", "resnets")
_NAME_THEM = (
    "Name them: stages=['layers.0', 'layers.1', ...], the modules that run one after the other "
    "and hold most of the model, as model.named_modules() calls them."
)


def find_stages(
    model: nn.Module, stages: Sequence[str | nn.Module] | None = None
) -> dict[str, nn.Module]:
    """Find the modules that a plan keeps or recomputes, by name.

    Args:
        model: Any module.
        stages: Which ones, by path or as modules; `None` looks for the model's blocks, the
            children of an `nn.Sequential`, and what lies between the blocks of a U-Net.

    Raises:
        ValueError: When none is found, or a name is no module's, or one lies inside another.
    """
    names = {module: name for name, module in model.named_modules()}
    if stages is None:
        found = _looked_for(model)
    else:
        missing = [s for s in stages if s not in names and s not in names.values()]
        if missing:
            raise ValueError(f"{missing[0]!r} is no module of {type(model).__name__}. {_NAME_THEM}")
        found = [model.get_submodule(s) if isinstance(s, str) else s for s in stages]
    named = {names[module]: module for module in found}
    for module in found:
        inside = next(
            (part for part in module.modules() if part in found and part is not module), 0
        )
        if isinstance(inside, nn.Module):
            raise ValueError(f"The stage {names[inside]} lies inside the stage {names[module]}.")
    return named


def _looked_for(model: nn.Module) -> list[nn.Module]:
    if isinstance(model, nn.Sequential) and len(model):
        return list(model)
    try:
        blocks = segments.find_blocks(model)
    except ValueError as error:
        raise ValueError(f"{error} {_NAME_THEM}") from None
    levels = [
        child
        for module in model.modules()
        for name, part in module.named_children()
        if name in _IN_LEVELS and isinstance(part, nn.ModuleList)
        for child in part
    ]
    if set(levels) & set(blocks):
        between = [m for m in model.modules() if type(m).__name__ in _BETWEEN]
        blocks = [*dict.fromkeys([*blocks, *levels, *between])]
    inside = {part for block in blocks for part in block.modules() if part is not block}
    return [block for block in dict.fromkeys(blocks) if block not in inside]


def replaced(
    stages: dict[str, nn.Module],
    make: Callable[[str, nn.Module], Callable[..., Any]],
    method: str = CALL,
) -> contextlib.ExitStack:
    """Give modules another method, made from name and module, until what is returned closes.

    `CALL` is the whole call, hooks included: FSDP gathers weights in one.
    """
    made = {name: make(name, module) for name, module in stages.items()}
    undo = contextlib.ExitStack()
    for name, module in stages.items():
        segments.replace_method(module, made[name], undo, method)
    return undo


def first_alike(calls: Sequence[Call], stages: Sequence[Stage]) -> list[int]:
    """Say for each stage which one stands for it: the first of its kind with the same numbers."""
    times = Counter(call.name for call in calls)
    seen: dict[str, int] = {}
    first = list(range(len(stages)))
    for index, call in enumerate(calls, 1):
        if times[call.name] == 1:
            form = replace(stages[index], selective=None)
            numbers = [f"{n:.9g}" for n in astuple(form) if n is not None]
            shapes = [(tensor.shape, tensor.dtype) for tensor in call.tensors]
            first[index] = seen.setdefault(str((call.kind, shapes, numbers)), index)
    return first


def left_out(stages: dict[str, nn.Module], calls: Sequence[Call]) -> contextlib.ExitStack:
    """Let some stages do no work, on tensors without memory, until what is returned closes."""
    absent = {call.name: call for call in calls}
    parts = {name: stages[name] for name in absent}
    return replaced(parts, lambda name, _: functools.partial(without_work, absent[name]))


def without_work(call: Call, *args: Any, **kwargs: Any) -> Any:
    """Output of a call for fake inputs, and gradients of these, by no operation."""
    inputs = list_leaves(Tensor, (args, kwargs))
    return call.filled(_WithoutWork.apply(call.tensors, *inputs))  # type: ignore[no-untyped-call]


class _WithoutWork(torch.autograd.Function):
    """Make tensors of the right shapes, forward and backward."""

    @staticmethod
    def forward(ctx: Any, made: list[Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.forms = [(x.shape, x.dtype) for x in inputs]
        return tuple(torch.empty(like.shape, dtype=like.dtype) for like in made)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        pairs = zip(ctx.forms, ctx.needs_input_grad[1:], strict=True)
        made = (torch.empty(form[0], dtype=form[1]) if needed else None for form, needed in pairs)
        return None, *made
