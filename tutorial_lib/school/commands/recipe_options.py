"""The options that say which training step is meant, the same for every command."""

import argparse
import functools
import json
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from tutorial_lib.instruments.emulated import Room, Verdict, place
from tutorial_lib.instruments.training import Attention, OptimizerName, Precision, Recipe, Shard
from tutorial_lib.instruments.training.user_function import SAMPLE
from tutorial_lib.units import human_bytes

_MODEL = (
    "a published model (gpt2, sd15-unet), a config.json of transformers or diffusers or its "
    "folder, a name on the Hub, or a function of your own, train.py:make_loss: see below"
)
_SEQ = (
    "tokens in a sequence; default: a published model's own length, 1024 or its maximum for a "
    "config.json; a function of yours decides itself"
)
_SET = "a different value in the configuration, as in n_layer=6; may repeat"
_FITS = (
    "say whether it fits a card or a size, as in rtx-3060 or 16GiB; without --batch, take the "
    "largest micro-batch that is sure to fit"
)
_BY = (
    "say too which modules, or lines of code, hold it; what none of them made is counted under its "
    "phase: (forward), (backward), (optimizer)"
)

_OWN = """\
A function of your own, here in train.py. It takes micro_batch, and returns two things: loss, which
is a function that runs forward, and the model. It makes its batch itself, as random data of the
right shape: no data set is read.

{sample}
A parameter named device, seq or size is filled in, too. `predict` and `plan` ignore .cuda() and
.to("cuda"). The file is imported, so put the lines that train below
`if __name__ == "__main__":`. {whole_step}"""


def add_examples(parser: argparse.ArgumentParser, *examples: str, whole_step: str) -> None:
    """End a command's help with examples, and with the lines of a function to write."""
    own = _OWN.format(sample=textwrap.indent(SAMPLE, "  "), whole_step=whole_step)
    shown = "\n".join(f"  %(prog)s {example}" for example in examples)
    parser.epilog = f"examples:\n\n{shown}\n\n{own}"


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the model, and what a step and a plan may both be told of it."""
    parser.usage = "%(prog)s MODEL [options]"
    number: dict[str, Any] = {"type": int, "metavar": "N"}
    add = parser.add_argument
    add("model", metavar="MODEL", help=_MODEL)
    add("--seq", **number, help=_SEQ)
    add("--size", **number, help="image height and width; of latents for a U-Net")
    add("--set", metavar="NAME=VALUE", action="append", help=_SET)
    add("--lora", metavar="RANK", help="train LoRA matrices alone, as in r=8")
    add("--ranks", **number, default=1, help="how many ranks train together; one of them is shown")
    add("--shard", choices=list(Shard), help="how several ranks share the work")
    add("--json", action="store_true", help="print JSON, for a program to read")


def add_step(parser: argparse.ArgumentParser) -> None:
    """Add the model, and all choices for one training step."""
    add_model(parser)
    number: dict[str, Any] = {"type": int, "metavar": "N"}
    add = parser.add_argument
    add("--batch", **number, help="micro-batch: samples in memory at once; 1 if left out")
    add("--fits", metavar="ROOM", help=_FITS)
    for name, kind, usual, words in (
        ("precision", Precision, Precision.FP32, "types of the numbers; amp is autocast"),
        ("attention", Attention, Attention.SDPA, "fused kernels, or eager, which keeps the scores"),
        ("optimizer", OptimizerName, OptimizerName.ADAMW, "what updates the parameters"),
    ):
        add(f"--{name}", choices=list(kind), default=usual, help=words)
    strategies = "what to checkpoint: per-block, every-2, or modules, as in layers.0,layers.1"
    names = "--checkpointing", "--stages"  # `plan` has the second one
    add(*names, metavar="STRATEGY", default="none", help=strategies)
    add("--accumulate", **number, default=1, help="micro-batches for each update")
    add("--by", choices=["module", "line"], help=_BY)


def recipe_of(options: argparse.Namespace, **chosen: Any) -> Recipe:
    """Make a recipe of the options of `add_model`, and of choices beside them."""
    return Recipe(
        options.model,
        seq=options.seq,
        size=options.size,
        overrides=overrides(options.set),
        lora_rank=lora_rank(options.lora),
        ranks=options.ranks,
        shard=options.shard,
        **chosen,
    )


def step_of(options: argparse.Namespace) -> Recipe:
    """Make a recipe of the options of `add_step`."""
    same = ("precision", "attention", "optimizer", "checkpointing")
    return recipe_of(
        options,
        micro_batch=1 if options.batch is None else options.batch,
        accumulation=options.accumulate,
        **{name: getattr(options, name) for name in same},
    )


def overrides(words: list[str] | None) -> dict[str, Any]:
    """Read `name=value`, the value as JSON where it is; `a.b=1` changes b within a."""
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
    """Read the rank out of `r=8`; anything else is refused."""
    if text is None:
        return None
    name, _, rank = text.rpartition("=")
    if name not in ("", "r") or not rank.isdigit():
        raise ValueError(f"--lora {text} isn't a rank: write --lora r=8.")
    return int(rank)


def to_type(room: Room) -> str:
    """Write a room as an option takes it; it is read as no less."""
    return human_bytes(room.free, up=True).replace(" ", "")


# What makes a step need less, by the recipe's field.
_LESS = {"checkpointing": "per-block", "optimizer": "adamw-8bit", "precision": "bf16"}


def largest_micro_batch(
    enough: Callable[[int], int], limit: int, untried: Sequence[str] = tuple(_LESS)
) -> int:
    """Find the largest micro-batch whose step stays within a budget.

    That grows along straight lines with bends. Once a size that fits and one that does not are
    known, the guess on the line between them and the middle are tried in turn. If not even one
    sample fits, the error says what it would take.

    Args:
        enough: Predicts the bytes with which so many samples are sure to fit.
        limit: Bytes.
        untried: Options that an error may advise.
    """
    enough = functools.cache(enough)
    if enough(1) > limit:
        ways = [f"--{name} {_LESS[name]}" for name in untried]
        ways = [*ways, f"--fits {to_type(Room(enough(1)))}"]
        raise ValueError(
            f"One sample takes {human_bytes(enough(1))} to be sure, but only {human_bytes(limit)} "
            f"are there: try {', '.join(ways[:-1])}{' or ' if ways[1:] else ''}{ways[-1]}."
        )
    fits, too_large, turn = 1, 0, 0  # too_large is 0 while none is known
    while too_large != fits + 1:
        first, last = (fits, too_large) if too_large else (1, fits)
        slope = (enough(last) - enough(first)) / max(1, last - first)
        guess = fits + int((limit - enough(fits)) / slope) if slope > 0 else 2 * fits
        turn += 1
        if too_large and turn % 3 == 0:
            guess = (fits + too_large) // 2
        tried = max(fits + 1, min(guess, too_large - 1 if too_large else 16 * fits))
        fits, too_large = (tried, too_large) if enough(tried) <= limit else (fits, tried)
    return fits


def fitting(
    recipe: Recipe,
    options: argparse.Namespace,
    kernels: Literal["cuda", "cpu"],
    tell: Callable[[str], None],
) -> Recipe:
    """Return a recipe with the largest micro-batch sure to fit, unless --batch names one."""
    if options.fits is None or options.batch is not None:
        return recipe
    from tutorial_lib.instruments.planning.fitting.predictions import predicted

    room = Room.of(options.fits, getattr(options, "torch", None))

    def enough(micro_batch: int) -> int:
        tell(f"the largest that fits: trying micro-batch {micro_batch}")
        report = predicted(replace(recipe, micro_batch=micro_batch), kernels)
        verdict = Verdict(report.peak_bytes, room)
        if not room.joins or verdict.answer == "close":
            verdict = replace(verdict, placed=place(report.timeline, verdict.needs, room.workspace))
        return verdict.enough

    untried = [name for name, less in _LESS.items() if getattr(recipe, name) != less]
    found = largest_micro_batch(enough, room.free, untried)
    return replace(recipe, micro_batch=found)


def sequence_length(recipe: Recipe) -> int | None:
    """Tokens of a sequence where none were asked for; None for images and functions."""
    from tutorial_lib.instruments import published
    from tutorial_lib.instruments.training import user_function

    if user_function.is_function(recipe.model):
        return None
    batch = published.batch(recipe.model, 1, **recipe.overrides)
    name = next((n for n in ("input_ids", "encoder_hidden_states", "tokens") if n in batch), None)
    return None if name is None else int(batch[name].shape[1])
