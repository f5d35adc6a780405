"""The named strategies: what each checkpoints, applied for a while and undone."""

import contextlib
import difflib
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from tutorial_lib.instruments.segments.find import find_blocks, find_chain, find_parts
from tutorial_lib.instruments.segments.one_module import Forward, checkpointed

STRATEGIES = {
    "none": "keep everything",
    "per-block": "each block is a segment",
    "all-but-last": "as per-block, but the last block is kept: its backward comes first",
    "every-K": "K blocks are a segment, as in every-2",
    "sqrt": "every-K with K the square root of the number of blocks",
    "attention-only": "each attention layer is a segment, the rest is kept",
    "mlp-only": "each MLP is a segment, the rest is kept",
    "library-switch": "what the model's own library does when asked to checkpoint",
}

# The switch of diffusers, of transformers from 5.23 on, and of transformers before.
_SWITCHES = (
    "enable_gradient_checkpointing",
    "activation_checkpointing_enable",
    "gradient_checkpointing_enable",
)
# How the two libraries mark the models whose switch does something.
_SUPPORTS = ("supports_gradient_checkpointing", "_supports_gradient_checkpointing")
# What they set on modules, and do not put back.
_SWITCHED = (
    "gradient_checkpointing",
    "_gradient_checkpointing_func",
    "_require_grads_hook",
    "_require_grads_hooks",
)

# BERT's MLP is no module but two, which its layer calls in this method.
_MLP_METHOD = "feed_forward_chunk"

# What changes a model, and gives the modules of each segment.
Segments = list[list[nn.Module]]
Change = Callable[[contextlib.ExitStack], Segments]


@dataclass(frozen=True)
class Applied:
    """What a strategy did to a model; prints as one line."""

    model: nn.Module
    strategy: str
    # names of the modules in each; under `library-switch` one for each module whose switch is on,
    # for the library alone knows what it wraps
    segments: tuple[tuple[str, ...], ...]
    without_cache: bool  # whether the model kept keys and values before, and does not meanwhile

    def __str__(self) -> str:
        if not self.segments:
            return f"{self.strategy}: nothing is checkpointed"
        names = [name for segment in self.segments for name in segment]
        what = "switched-on module" if self.strategy == "library-switch" else "segment"
        plural = "s" if len(self.segments) > 1 else ""
        said = f"{self.strategy}: {len(self.segments)} {what}{plural}, {names[0]}"
        said += f" to {names[-1]}" if len(names) > 1 else ""
        return said + ("; use_cache is off meanwhile" if self.without_cache else "")


@contextlib.contextmanager
def applied(model: nn.Module, strategy: str = "per-block") -> Iterator[Applied]:
    """Checkpoint a model in a named way until the end of the `with` block.

    Both forward and backward belong inside. A model, or a part of one, that keeps keys and values
    for generation (`config.use_cache`) does not do so meanwhile: recomputing would store them
    twice.

    Args:
        model: Any module: ours, from transformers or diffusers, or one with a list of blocks.
        strategy: A key of `STRATEGIES`, with a number for K; or modules, as `layers.0,layers.1`.

    Yields:
        What was checkpointed. Afterwards, also after an error, the model is what it was.

    Raises:
        TypeError: When the model isn't a module.
        ValueError: When the strategy is not known or the model has no such part, with the names
            of those that are possible; the model is untouched then. Also during forward, where
            the loss runs a segment under `torch.func`: PyTorch's checkpoint would fail there.
        RuntimeError: Under `every-K` and `sqrt`, during forward, when blocks of a segment are not
            called one right after the other.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"The model is a {type(model).__name__}, but an nn.Module is needed.")
    try:
        change = _plan(model, str(strategy))
    except ValueError as error:
        names = ", ".join(possible(model))
        raise ValueError(f"{error} Possible for {type(model).__name__}: {names}.") from None
    paths = {module: name for name, module in model.named_modules()}
    with contextlib.ExitStack() as undo:
        without_cache = strategy != "none" and stop_caching(model, undo)
        segments = tuple(tuple(paths[part] for part in parts) for parts in change(undo))
        yield Applied(model, strategy, segments, without_cache)


def stop_caching(model: nn.Module, undo: contextlib.ExitStack) -> bool:
    """Stop a model from keeping keys and values until `undo` closes; return whether it did."""
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    caching = [config for config in configs.values() if getattr(config, "use_cache", None) is True]
    for config in caching:
        undo.callback(setattr, config, "use_cache", True)
        config.use_cache = False
    return bool(caching)


def possible(model: nn.Module) -> list[str]:
    """List the strategies that a model can take, as keys of `STRATEGIES`; `none` is among them."""
    names = []
    for name in STRATEGIES:
        with contextlib.suppress(ValueError):
            _plan(model, name.replace("K", "1"))
            names.append(name)
    return names


def _plan(model: nn.Module, strategy: str) -> Change:
    """Check all that can fail beforehand, and give what then changes the model."""
    every = re.fullmatch(r"every-(\d+)", strategy)
    if strategy == "none":
        return lambda undo: []
    if strategy == "library-switch":
        return _switch(model)
    if strategy == "per-block":
        return _each(find_blocks(model))
    if strategy == "all-but-last":
        blocks = find_blocks(model)
        if len(set(blocks)) < 2:
            raise ValueError(f"all-but-last needs two blocks; {type(model).__name__} has one.")
        return _each([block for block in blocks if block is not blocks[-1]])
    if strategy == "attention-only":
        return _each(find_parts(model, "attention"))
    if strategy == "mlp-only":
        by_method = [module for module in model.modules() if hasattr(module, _MLP_METHOD)]
        return _each(by_method, _MLP_METHOD) if by_method else _each(find_parts(model, "MLP"))
    if strategy == "sqrt" or every:
        blocks = find_chain(model)
        length = int(every[1]) if every else round(math.sqrt(len(blocks)))
        if not 1 <= length <= len(blocks):
            raise ValueError(
                f"{strategy} asks for segments of {length} blocks, but {type(model).__name__} "
                f"has {len(blocks)}: K must be between 1 and {len(blocks)}."
            )
        return _segments([blocks[i : i + length] for i in range(0, len(blocks), length)])
    named = [m for name, m in model.named_modules() if name and name in strategy.split(",")]
    if len(named) == 1 + strategy.count(","):
        return _each(named)
    near = difflib.get_close_matches(strategy, STRATEGIES, n=1)
    raise ValueError(
        f"There is no strategy {strategy!r}. {f'Did you mean {near[0]}? ' if near else ''}"
        f"The names are {', '.join(STRATEGIES)}, with a number for K, as in every-2, or modules'."
    )


def _each(modules: list[nn.Module], method: str = "forward") -> Change:
    """Make every module a segment of its own, or what a method of it does."""
    distinct = list(dict.fromkeys(modules))  # a shared module comes once

    def change(undo: contextlib.ExitStack) -> Segments:
        for module in distinct:
            segment = functools.partial(checkpointed, getattr(module, method))
            replace_method(module, segment, undo, method)
        return [[module] for module in distinct]

    return change


def _segments(segments: list[list[nn.Module]]) -> Change:
    """Make runs of blocks a segment each: its last block runs all, the others pass on."""
    from tutorial_lib.instruments.segments.blocks import BlocksInARow  # seldom used, and large

    def change(undo: contextlib.ExitStack) -> Segments:
        for blocks in segments:
            segment = BlocksInARow([block.forward for block in blocks])
            for index, block in enumerate(blocks):
                replace_method(block, functools.partial(segment.call, index), undo)
        return segments

    return change


def _switch(model: nn.Module) -> Change:
    """Use the model's own switch, and put back what it sets."""
    name = next((name for name in _SWITCHES if hasattr(model, name)), None)
    if name is None or not any(getattr(model, flag, False) for flag in _SUPPORTS):
        raise ValueError(
            f"{type(model).__name__} has no switch for checkpointing: most models of transformers "
            "and diffusers have one."
        )

    def change(undo: contextlib.ExitStack) -> Segments:
        for module in model.modules():
            before = {key: vars(module)[key] for key in _SWITCHED if key in vars(module)}
            undo.callback(_put_back, module, _SWITCHED, before)
        undo.callback(_unhook, model, vars(model).get("_require_grads_hooks"))
        switch: Any = getattr(model, name)
        if name == "enable_gradient_checkpointing":
            switch()
        else:
            switch({"use_reentrant": False})
        return [[m] for m in model.modules() if vars(m).get("gradient_checkpointing")]

    return change


def _unhook(model: Any, before: Any) -> None:
    # transformers lets embeddings ask for gradients too, with hooks that its off switch leaves
    if vars(model).get("_require_grads_hooks") is not before:
        model.disable_input_require_grads()


@contextlib.contextmanager
def called_through(checkpoint: Callable[..., Any], modules: Iterable[nn.Module]) -> Iterator[None]:
    """Call modules through a checkpoint function of one's own until the end of the `with` block.

    Instead of each module's forward, `checkpoint(forward, *args, **kwargs)` is called, and returns
    its output. Afterwards, also after an error, the modules are what they were.
    """
    with contextlib.ExitStack() as undo:
        for module in modules:
            replace_method(module, functools.partial(checkpoint, module.forward), undo)
        yield


def replace_method(
    module: nn.Module, forward: Forward, undo: contextlib.ExitStack, method: str = "forward"
) -> None:
    """Replace a module's method until a stack closes."""
    before = {method: vars(module)[method]} if method in vars(module) else {}
    undo.callback(_put_back, module, (method,), before)
    vars(module)[method] = functools.wraps(getattr(module, method))(forward)


def _put_back(module: nn.Module, names: Sequence[str], before: dict[str, Any]) -> None:
    for name in names:
        vars(module).pop(name, None)
    vars(module).update(before)
