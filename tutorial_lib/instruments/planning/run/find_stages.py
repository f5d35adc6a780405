"""The stages of a model, as it calls them: which modules, in what order, with what output."""

import contextlib
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
from tutorial_lib.instruments.segments.find import is_torchs, uniform_lists
from tutorial_lib.instruments.segments.structure import list_leaves
from tutorial_lib.memory.private_torch import in_backward

# What a U-Net of diffusers has between its blocks, at the same level.
_BETWEEN = {"Downsample2D", "Upsample2D"}
_IN_LEVELS = ("attentions", "resnets")
_MOST = 0.6  # of a model's parameters: then its layers are looked for inside
_NAME_THEM = (
    "Name the modules that run one after the other and hold most of the model, as in "
    "model.named_modules(): stages=['layers.0', 'layers.1', ...], or on the command line "
    "--stages layers.0,layers.1."
)


class CannotPlanError(ValueError):
    """Raised when no chain of stages describes a loss or model; says what to do instead."""


def find_stages(
    model: nn.Module, stages: Sequence[str | nn.Module] | None = None
) -> dict[str, nn.Module]:
    """Find the modules that a plan keeps or recomputes, by name.

    Args:
        model: Any module.
        stages: Which ones, by path or as modules; `None` looks for the model's blocks, in all of
            its lists, the children of an `nn.Sequential`, and what a U-Net has between. A model
            without blocks is taken apart into its outermost layers. None at all: `stages=()`.

    Raises:
        ValueError: When none is found, no module has a name, or one is inside another.
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
        for inside in [m for m in module.modules() if m in found and m is not module]:
            outer = names[module] or type(module).__name__
            raise ValueError(f"The stage {names[inside]} is inside the stage {outer}.")
    return named


def _looked_for(model: nn.Module) -> list[nn.Module]:
    if isinstance(model, nn.Sequential) and len(model):
        return [child for child in model if not _is_passed_over(child, with_weights=False)]
    try:
        blocks = segments.find_blocks(model)
    except ValueError as error:
        layers = _layers(model)
        if not layers:
            raise CannotPlanError(f"{error} {_NAME_THEM}") from None
        return layers
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
    blocks += _in_other_lists(model, blocks)
    inside = {part for block in blocks for part in block.modules() if part is not block}
    return [block for block in dict.fromkeys(blocks) if block not in inside]


def _in_other_lists(model: nn.Module, blocks: Sequence[nn.Module]) -> list[nn.Module]:
    """List the blocks in a model's other lists, as a U-Net of your own has for down and up."""
    if type(blocks[0]).__module__.startswith(("transformers.", "diffusers.")):
        return []
    known = {part for block in blocks for part in block.modules()}
    others = [one for one in uniform_lists(model) if known.isdisjoint({one, *one.modules()})]
    return [child for one in others for child in one if _is_block(child)]


def _is_block(module: nn.Module) -> bool:
    if isinstance(module, nn.ModuleList | nn.ModuleDict):
        return False
    return isinstance(module, nn.Sequential) or not is_torchs(module)


def _layers(model: nn.Module) -> list[nn.Module]:
    """List the outermost layers with parameters, inside lists and a module that holds most."""
    total = sum(parameter.numel() for parameter in model.parameters())
    found: list[nn.Module] = []
    for child in model.children():
        size = sum(parameter.numel() for parameter in child.parameters())
        if isinstance(child, nn.ParameterList | nn.ParameterDict):
            continue  # the model itself computes with them
        is_list = isinstance(child, nn.ModuleList | nn.ModuleDict | nn.Sequential)
        is_own = not is_torchs(child)
        inside = _layers(child) if is_list or (is_own and size > _MOST * total) else []
        if inside:
            found += inside
        elif not is_list and not _is_passed_over(child, with_weights=True):
            found.append(child)
    return found


def _is_passed_over(module: nn.Module, *, with_weights: bool) -> bool:
    """Tell whether a module is left between stages, to be kept or recomputed with its neighbour.

    A segment that begins with a layer that writes in place would change what it was given.
    """
    if getattr(module, "inplace", False) is True:
        return True
    return with_weights and is_torchs(module) and next(module.parameters(), None) is None


def replaced(
    stages: dict[str, nn.Module],
    make: Callable[[str, nn.Module], Callable[..., Any]],
    method: str = CALL,
) -> contextlib.ExitStack:
    """Replace a method of modules, made from name and module, until the returned stack closes.

    `CALL` is the whole call, hooks included: FSDP gathers weights in one.
    """
    made = {name: make(name, module) for name, module in stages.items()}
    undo = contextlib.ExitStack()
    for name, module in stages.items():
        segments.replace_method(module, made[name], undo, method)
    return undo


def run_stage(
    module: nn.Module, function: Callable[..., Any], call: Call, *args: Any, **kwargs: Any
) -> Any:
    """Run a stage; in a second run, leave results in its attributes as the first one's.

    A balancing loss that a layer of experts puts there would hold all that was recomputed for it.
    """
    before = [(vars(part), {**vars(part)}) for part in (module.modules() if in_backward() else ())]
    try:
        return call.given(module, function(*args, **kwargs))
    finally:
        for held, first in before:
            for name in [n for n, value in held.items() if value is not first.get(n)]:
                if isinstance(held[name], Tensor) and held[name].requires_grad:
                    del held[name]
                    held |= {name: first[name]} if name in first else {}


def first_alike(calls: Sequence[Call], stages: Sequence[Stage]) -> list[int]:
    """Say for each stage which one stands for it: the first of its kind with the same numbers."""
    times = Counter(call.name for call in calls)
    seen: dict[str, int] = {}
    first = list(range(len(stages)))
    for index, call in enumerate(calls, 1):
        # a stage that does no work gives no values, as sizes of packed sequences are
        if times[call.name] == 1 and all(one.is_floating_point() for one in call.tensors):
            form = replace(stages[index], selective=None)
            numbers = [f"{n:.9g}" for n in astuple(form) if n is not None]
            shapes = [(tensor.shape, tensor.dtype) for tensor in call.tensors]
            first[index] = seen.setdefault(str((call.kind, shapes, numbers)), index)
    return first


def left_out(
    stages: dict[str, nn.Module], calls: Sequence[tuple[Call, bool]]
) -> contextlib.ExitStack:
    """Skip these stages' work, on tensors without memory, until the returned context closes.

    Each call comes with whether its stage keeps its input for backward.
    """
    absent = {call.name: (call, keeps) for call, keeps in calls}
    parts = {name: stages[name] for name in absent}

    def make(name: str, module: nn.Module) -> Callable[..., Any]:
        call, keeps = absent[name]

        def stage(*args: Any, **kwargs: Any) -> Any:
            made = _worked(call, keeps, list_leaves(Tensor, (args, kwargs)))
            return call.handed_out(module, made)

        return stage

    return replaced(parts, make)


def without_work(call: Call, *inputs: Tensor) -> Any:
    """Output of a call for fake inputs, and gradients of these, by no operation."""
    return call.filled(_worked(call, False, inputs))


def _worked(call: Call, keeps: bool, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    made = _WithoutWork.apply(call.tensors, keeps, *inputs)  # type: ignore[no-untyped-call]
    return tuple(made)


class _WithoutWork(torch.autograd.Function):
    """Make tensors of the right shapes, forward and backward."""

    @staticmethod
    def forward(ctx: Any, made: list[Tensor], keeps: bool, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.forms = [(x.shape, x.dtype) for x in inputs]
        if keeps:
            ctx.save_for_backward(*inputs)
        return tuple(torch.empty(like.shape, dtype=like.dtype) for like in made)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        pairs = zip(ctx.forms, ctx.needs_input_grad[2:], strict=True)
        made = (torch.empty(form[0], dtype=form[1]) if needed else None for form, needed in pairs)
        return None, None, *made
