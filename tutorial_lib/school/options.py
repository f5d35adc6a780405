"""The options that say which training step is meant, the same for every command."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

import typer

from tutorial_lib.instruments.training import Attention, OptimizerName, Precision, Recipe, Shard
from tutorial_lib.units import parse_bytes

MODEL_HELP = (
    "A published model (gpt2, sd15-unet), a config.json of transformers or diffusers or its "
    "folder, a name on the Hub, or a function: train.py:make_step, package.module:make_model."
)
SEQ_HELP = (
    "Tokens in a sequence. Left out: a published model's own length, 1024 for a config.json or "
    "what it knows at most; a function of yours decides itself."
)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for a program to read.")]
Named = Annotated[str | None, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
Own = Annotated[str | None, typer.Option("--model", help="The same as MODEL.")]
Batch = Annotated[int, typer.Option(help="Micro-batch: samples in memory at once.")]
Fits = Annotated[str | None, typer.Option(help="Take the largest micro-batch within, as in 16GiB.")]
Seq = Annotated[int | None, typer.Option(help=SEQ_HELP)]
Size = Annotated[int | None, typer.Option(help="Image height and width; of latents for a U-Net.")]
Strategy = Annotated[str, typer.Option(help="What to checkpoint, as in per-block or every-2.")]
Accumulate = Annotated[int, typer.Option(help="Micro-batches for each update.")]
Chosen = Annotated[Precision, typer.Option(help="Types of the numbers; amp is autocast.")]
Kernel = Annotated[Attention, typer.Option(help="Fused kernels, or eager, which keeps the scores.")]
Update = Annotated[OptimizerName, typer.Option(help="What updates the parameters.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Another value in the configuration, as in n_layer=6; may repeat."),
]
Ranks = Annotated[int, typer.Option(help="How many ranks train together; one of them is shown.")]
Sharding = Annotated[Shard | None, typer.Option(help="How several ranks share the work.")]
Lora = Annotated[str | None, typer.Option(help="Train LoRA matrices alone, as in r=8.")]


def _recipe(
    named: Named = None,
    model: Own = None,
    batch: Batch = 1,
    seq: Seq = None,
    size: Size = None,
    precision: Chosen = Precision.FP32,
    attention: Kernel = Attention.SDPA,
    optimizer: Update = OptimizerName.ADAMW,
    checkpointing: Strategy = "none",
    accumulate: Accumulate = 1,
    changed: Set = None,
    lora: Lora = None,
    ranks: Ranks = 1,
    shard: Sharding = None,
) -> Recipe:
    return Recipe(
        one_model(named, model),
        *(batch, seq, size, precision, attention, optimizer, checkpointing, accumulate),
        overrides=overrides(changed),
        lora_rank=lora_rank(lora),
        ranks=ranks,
        shard=shard,
    )


def takes_a_recipe(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command all options of `_recipe`; it gets the recipe as its first argument."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    shared = inspect.signature(_recipe, eval_str=True).parameters

    @functools.wraps(command)
    def run(**words: Any) -> None:
        recipe = _recipe(**{name: words.pop(name) for name in shared})
        command(recipe, **words)

    parameters = [*shared.values(), *own]
    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del vars(run)["__wrapped__"]  # else its signature is taken
    return run


def one_model(named: str | None, model: str | None) -> str:
    """Take the model from where it was given.

    Raises:
        ValueError: When it was given twice, or not at all.
    """
    if (named is None) == (model is None):
        raise ValueError(
            "One model is needed, as MODEL or after --model: gpt2, path/to/config.json or "
            "train.py:make_step."
        )
    return str(named or model)


def overrides(words: list[str] | None) -> dict[str, Any]:
    """Read `name=value`, the value as JSON where it is; `a.b=1` changes b within a.

    Raises:
        ValueError: When a word has no `=`.
    """
    found: dict[str, Any] = {}
    for word in words or []:
        name, equals, text = word.partition("=")
        if not name or not equals:
            raise ValueError(f"--set {word} has no value: write a name and a value, n_layer=6.")
        try:
            value = json.loads(text)
        except ValueError:
            value = {"True": True, "False": False, "None": None}.get(text, text)
        *outer, last = name.split(".")
        place = found
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = value
    return found


def lora_rank(text: str | None) -> int | None:
    """Read the rank out of `r=8`.

    Raises:
        ValueError: When it is something else.
    """
    if text is None:
        return None
    name, _, rank = text.rpartition("=")
    if name not in ("", "r") or not rank.isdigit():
        raise ValueError(f"--lora {text} is no rank: write --lora r=8.")
    return int(rank)


def largest_micro_batch(peak: Callable[[int], int], budget: str) -> int:
    """Find the largest micro-batch whose step stays within a budget.

    Peaks lie on a straight line but for roundings: the guess along the line is tried, and then
    mended until one fits and the next one does not.

    Args:
        peak: Predicts the bytes of a step with so many samples.
        budget: As in `16GiB`.

    Raises:
        ValueError: When not even one sample fits, with what it would take.
    """
    from tutorial_lib.units import human_bytes

    limit = parse_bytes(budget)
    peak = functools.cache(peak)
    if peak(1) > limit:
        raise ValueError(
            f"One sample takes {human_bytes(peak(1))}, more than {budget}: try "
            "--checkpointing per-block, --optimizer adamw-8bit, --precision bf16, or a budget of "
            "that size."
        )
    fits, too_large = 1, 0  # 0: none is known yet
    tried = 2
    while too_large != fits + 1:
        if peak(tried) <= limit:
            fits = tried
        else:
            too_large = tried
        slope = max(1, (peak(fits) - peak(1)) // (fits - 1)) if fits > 1 else 0
        guess = fits + (limit - peak(fits)) // slope if slope > 1 else 2 * fits
        tried = max(fits + 1, min(guess, too_large - 1 if too_large else 16 * fits))
    return fits


def fitting(recipe: Recipe, budget: str, kernels: Literal["cuda", "cpu"]) -> Recipe:
    """Give a recipe the largest micro-batch that a budget has room for, as predicted.

    Raises:
        ValueError: When not even one sample fits.
    """
    from tutorial_lib import memory

    def peak(micro_batch: int) -> int:
        tried = replace(recipe, micro_batch=micro_batch)
        return memory.predict(tried.make_step, kernels=kernels).peak_bytes

    return replace(recipe, micro_batch=largest_micro_batch(peak, budget))
