"""Explorers of the bytes of a training step: estimated by a learner, predicted, recorded."""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from numbers import Real
from operator import eq
from typing import Any

from tutorial_lib.plots.base import CARDS_GIB, COLORS, CourseFigure
from tutorial_lib.plots.memory import ledger_bars
from tutorial_lib.units import GIB, human_bytes

from .explorer import Control, Explorer

_MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_SEQ_LENS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
_CHOICES = ("model", "micro_batch", "precision", "optimizer", "checkpointing")
_USUAL = {"attention": "sdpa", "accumulation": 1, "ranks": 1, "lora_rank": None, "overrides": {}}


def memory_calculator(
    ledger: Callable[..., Mapping[str, int]],
    *,
    models: Mapping[str, Any],
    precisions: Sequence[str],
    optimizers: Sequence[str],
    precision: str,
    seq_len: int,
    model: str = "7B",
    optimizer: str = "AdamW",
) -> Explorer:
    """Explore what your own ledger says: the bytes of a training step, beside graphics cards.

    Args:
        ledger: Your function `ledger(model, precision, optimizer, *, micro_batch, seq_len,
            checkpointing)`, which returns bytes by category, the keys of `plots.COLORS`.
        models: What the ledger gets of a model, by name.
        precisions, optimizers: Options; the ledger gets one of each.
        precision, seq_len, model, optimizer: The first setting, of one sample, not checkpointed.
    """

    def draw(model: str, precision: str, optimizer: str, **step: Any) -> CourseFigure:
        parts = _checked_ledger(ledger(models[model], precision, optimizer, **step))
        title = f"{precision}, {optimizer}, {step['micro_batch']} x {step['seq_len']} tokens, "
        title += "checkpointed" if step["checkpointing"] else "not checkpointed"
        figure = ledger_bars({model: parts}, title=title, cards_gib=CARDS_GIB)
        held = [f"{gib} GiB" for gib in CARDS_GIB if sum(parts.values()) <= gib * GIB]
        figure.alt += f" Large enough for these bytes: {', '.join(held) or 'none'}."
        return figure

    controls = {
        "model": Control("parameters", list(models), model),
        "precision": Control("precision", precisions, precision, menu=True),
        "optimizer": Control("optimizer", optimizers, optimizer, menu=True),
        "micro_batch": Control("micro-batch", _MICRO_BATCHES, 1),
        "seq_len": Control("sequence length", _SEQ_LENS, seq_len),
        "checkpointing": Control("checkpointing", (False, True), False),
    }
    return Explorer(draw, controls)


def _checked_ledger(parts: Any) -> Mapping[str, int]:
    if isinstance(parts, Mapping) and all(
        name in COLORS and isinstance(num_bytes, Real) and 0 <= float(num_bytes) < inf
        for name, num_bytes in parts.items()
    ):
        return parts
    raise ValueError(f"ledger gave {parts!r}: return a dict of bytes for {', '.join(COLORS)}.")


def published_calculator(
    rows: Mapping[str, Mapping[str, Any]], *, micro_batch: int = 8, card_gib: int = 24
) -> Explorer:
    """Explore what was recorded of the published models: a step's bytes, beside a card.

    Nothing is computed: of a step that was not recorded it says so, and which one is nearest.

    Args:
        rows: Of a recording, as `recorded.load("predicted").rows`. Of several sequence lengths of a
            model the one with most rows is taken.
        micro_batch: The first setting, with gpt2-xl, bf16-amp, adamw and per-block.
        card_gib: Memory of the first card, of 16, 24, 40 and 80 GiB.
    """
    steps = _steps(rows)
    options = [sorted(set(column)) for column in zip(*steps, strict=True)]
    first = ("gpt2-xl", micro_batch, "bf16-amp", "adamw", "per-block")
    controls = {
        name: Control(name.replace("_", "-"), values, value, menu=name != "micro_batch")
        for name, values, value in zip(_CHOICES, options, first, strict=True)
    }
    controls["card_gib"] = Control("card, GiB", (16, 24, 40, 80), card_gib)

    def draw(card_gib: int, **chosen: Any) -> CourseFigure | str:
        step = tuple(chosen[name] for name in _CHOICES)
        report = steps.get(step, {}).get("report")
        if report is None:
            return _why_none(steps, step)
        plain = steps.get((*step[:-1], "none"), {}).get("report", report)
        bars = {"none": plain["at_peak"], step[-1]: report["at_peak"]}
        title = "{}, micro-batch {}, {}, {} (predicted)".format(*step)
        figure = ledger_bars(bars, title=title, cards_gib=[card_gib], predicted=list(bars))
        spare = card_gib * GIB - report["peak_bytes"]
        words = "to spare" if spare >= 0 else "too little: it does not fit"
        figure.alt += f" A card of {card_gib} GiB has {human_bytes(abs(spare))} {words}."
        return figure

    return Explorer(draw, controls)


def _steps(rows: Mapping[str, Mapping[str, Any]]) -> dict[tuple[Any, ...], Mapping[str, Any]]:
    """Find the rows of whole steps on one device, by the values of `_CHOICES`."""
    lengths: dict[str, dict[Any, dict[tuple[Any, ...], Mapping[str, Any]]]] = {}
    for row in rows.values():
        recipe = row["recipe"]
        if all(recipe.get(name) in (usual, None) for name, usual in _USUAL.items()):
            same = lengths.setdefault(recipe["model"], {}).setdefault(recipe["seq"], {})
            same[tuple(recipe[name] for name in _CHOICES)] = row
    longest = [max(by_length.values(), key=len) for by_length in lengths.values()]
    return {step: row for steps in longest for step, row in steps.items()}


def _why_none(steps: Mapping[tuple[Any, ...], Mapping[str, Any]], step: tuple[Any, ...]) -> str:
    """Say why there is no such step, and which recorded one of the same model is nearest."""
    if step in steps:
        return f"Not possible: {steps[step]['why']}"
    there = [one for one, row in steps.items() if one[0] == step[0] and "report" in row]
    # most choices alike, then the nearest micro-batch
    nearest = max(there, key=lambda one: (sum(map(eq, one, step)), -abs(one[1] - step[1])))
    words = "{}, micro-batch {}, {}, {}, {}"
    return f"Not recorded: {words.format(*step)}. Nearest to it is {words.format(*nearest)}."
