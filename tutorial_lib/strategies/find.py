"""Find the parts of a model that a strategy checkpoints."""

from __future__ import annotations

import re
from collections.abc import Callable

from torch import nn

_PARTS = {
    "attention": re.compile("Attention"),
    "MLP": re.compile("(MLP|Mlp|FFN|FeedForward)$"),
}
# What the U-Nets of diffusers are made of: their containers hold a level each.
_UNET_BLOCKS = {"ResnetBlock2D", "Transformer2DModel"}


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """Find the blocks of a model, in the order in which they run.

    Looked for in this order: the model's own `blocks`; the layers that transformers can
    checkpoint; residual and transformer blocks of a diffusers U-Net; the longest list of modules
    of one class.

    Raises:
        ValueError: When there is nothing of the kind.
    """
    own = getattr(model, "blocks", None)
    if isinstance(own, nn.ModuleList | nn.Sequential | list) and len(own):
        return list(own)
    layers = _outermost(model, _is_transformers_layer)
    if layers:
        return layers
    unet_blocks = _outermost(model, lambda module: type(module).__name__ in _UNET_BLOCKS)
    if unet_blocks:
        return unet_blocks
    lists = [list(m) for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential)]
    uniform = [blocks for blocks in lists if len(blocks) > 1 and len(set(map(type, blocks))) == 1]
    if uniform:
        return max(uniform, key=len)
    raise ValueError(
        f"{type(model).__name__} has no blocks that could be found. "
        "Try a model with a `blocks` attribute, an nn.ModuleList of its layers."
    )


def find_chain(model: nn.Module) -> list[nn.Module]:
    """Find the blocks of a model when they stand in one list, one after the other.

    Raises:
        ValueError: When they do not, as in a U-Net, where levels and skips lie between them.
    """
    blocks = find_blocks(model)
    lists = [list(module.children()) for module in model.modules()]
    if len(set(blocks)) == len(blocks) and blocks in lists:
        return blocks
    raise ValueError(
        f"The {len(blocks)} blocks of {type(model).__name__} do not follow one another in one "
        "list, so that several cannot be one segment: levels or skips lie between. Try per-block."
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
            f"{_PARTS[part].pattern}. Try per-block."
        )
    return found


def _is_transformers_layer(module: nn.Module) -> bool:
    return any(base.__name__ == "GradientCheckpointingLayer" for base in type(module).__mro__)


def _outermost(model: nn.Module, matches: Callable[[nn.Module], bool]) -> list[nn.Module]:
    """List the modules below `model` that match, without looking inside a match."""
    found: list[nn.Module] = []
    for child in model.children():
        found += [child] if matches(child) else _outermost(child, matches)
    return found
