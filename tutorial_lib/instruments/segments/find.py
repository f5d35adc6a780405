"""Find the parts of a model that a strategy checkpoints."""

import re
from collections.abc import Callable
from itertools import chain, zip_longest

from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations as class_of

_PARTS = {"attention": re.compile("Attention"), "MLP": re.compile("(MLP|Mlp|FFN|FeedForward)$")}
# Blocks of diffusers that hand on two tensors, of text and image.
_TWO_STREAMS = {"JointTransformerBlock", "FluxTransformerBlock", "FluxSingleTransformerBlock"}
# What U-Nets, autoencoders and Flux of diffusers are made of, and ResNets of transformers: they
# have no list of all blocks, but one per level, kind or stage.
_LEVEL_BLOCKS = {
    *("ResnetBlock2D", "Transformer2DModel"),
    *_TWO_STREAMS,
    *("ResNetBottleNeckLayer", "ResNetBasicLayer"),
}
# A level of diffusers takes one of each in turn; and these run later than they are listed.
_IN_TURN = ("resnets", "attentions")
_LATER = ("up_blocks", "text_model")


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """Find the blocks of a model, in the order in which they run.

    Looked for in this order: the model's own `blocks`; the layers that transformers can
    checkpoint, and PyTorch's transformer layers; residual and transformer blocks of diffusers and
    of ResNets; all modules of the class that the longest list of one class is made of (of several
    as long, the one with most parameters); attributes of one class of your own whose names end with
    numbers, as in `block1` to `block8`.

    Raises:
        ValueError: When there is nothing of the kind.
    """
    own = getattr(model, "blocks", None)
    if isinstance(own, nn.ModuleList | nn.Sequential | list) and len(own):
        return list(own)
    if layers := _outermost(model, _is_layer):
        return layers
    if level_blocks := _outermost(model, lambda module: type(module).__name__ in _LEVEL_BLOCKS):
        return level_blocks
    if runnable := [m for m in uniform_lists(model) if not isinstance(m[0], nn.ModuleList)]:
        longest = max(runnable, key=lambda m: (len(m), sum(p.numel() for p in m.parameters())))
        if is_torchs(longest[0]):  # a class that stands for anything
            return [*longest]
        return _outermost(model, lambda m: class_of(m) is class_of(longest[0]))
    if numbered := [found for m in model.modules() if len(found := _numbered(m)) > 1]:
        return max(numbered, key=len)
    raise ValueError(
        f"{type(model).__name__} has no blocks that could be found. "
        "Try a model with a `blocks` attribute, an nn.ModuleList of its layers."
    )


def uniform_lists(model: nn.Module) -> list[nn.ModuleList | nn.Sequential]:
    """List a model's lists of several modules of one class, whatever `weight_norm` made of it."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential)]
    return [one for one in lists if len(one) > 1 and len({*map(class_of, one)}) == 1]


def _numbered(module: nn.Module) -> list[nn.Module]:
    """List the children with numbered names, of the most frequent class that is not PyTorch's."""
    kinds: dict[type, list[nn.Module]] = {}
    for name, child in module.named_children():
        if name[-1:].isdigit() and not name.isdigit() and not is_torchs(child):
            kinds.setdefault(class_of(child), []).append(child)
    return max(kinds.values(), key=len, default=[])


def is_torchs(module: nn.Module) -> bool:
    """Tell whether a module's class is PyTorch's own."""
    return class_of(module).__module__.startswith("torch.")


def find_chain(model: nn.Module) -> list[nn.Module]:
    """Find the blocks of a model when they stand in one list, or stages of it, with nothing else.

    Raises:
        ValueError: When they do not, as in a U-Net, where levels and skips lie between them; or
            when the model takes apart what they hand on.
    """
    blocks = find_blocks(model)
    if any(type(block).__name__ in _TWO_STREAMS for block in blocks):
        raise ValueError(
            f"The {len(blocks)} blocks of {type(model).__name__} hand on text and image, and the "
            "model takes them apart between blocks, so that several cannot be one segment."
        )
    if any(_nothing_but(set(blocks), module) == blocks for module in model.modules()):
        return blocks
    raise ValueError(
        f"The {len(blocks)} blocks of {type(model).__name__} do not follow one another in one "
        "list, so that several cannot be one segment: levels, skips or towers lie between."
    )


def find_parts(model: nn.Module, part: str) -> list[nn.Module]:
    """Find the outermost modules whose class has the name of a part, `attention` or `MLP`.

    Raises:
        ValueError: When there is none.
    """
    found = _outermost(model, lambda module: bool(_PARTS[part].search(type(module).__name__)))
    if not found:
        raise ValueError(
            f"No {part} was found in {type(model).__name__}: no module's class has a name with "
            f"{_PARTS[part].pattern}."
        )
    return found


def _is_layer(module: nn.Module) -> bool:
    if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        return True
    return any(base.__name__ == "GradientCheckpointingLayer" for base in type(module).__mro__)


def _outermost(model: nn.Module, matches: Callable[[nn.Module], bool]) -> list[nn.Module]:
    """List the modules below `model` that match, without looking inside a match."""
    found: list[nn.Module] = []
    for child in _children(model):
        found += [child] if matches(child) else _outermost(child, matches)
    return found


def _children(module: nn.Module) -> list[nn.Module]:
    """List the children of a module in the order in which they run, as far as names tell."""
    named = dict(module.named_children())
    turns = zip_longest(*(named.pop(name).children() for name in _IN_TURN if name in named))
    first = [child for turn in turns for child in turn if child is not None]
    return first + [named[name] for name in sorted(named, key=lambda name: name in _LATER)]


def _nothing_but(blocks: set[nn.Module], module: nn.Module) -> list[nn.Module]:
    """List the blocks in a module that holds nothing else; none when it does."""
    if module in blocks:
        return [module]
    parts = [_nothing_but(blocks, child) for child in module.children()]
    return list(chain.from_iterable(parts)) if all(parts) else []
