"""The answer of `measure` and `predict`: a report as a table for the shell, or as JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from tutorial_lib.instruments.emulated import Room, Verdict, on_cards, place
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.school.commands.recipe_options import sequence_length
from tutorial_lib.units import Bytes

if TYPE_CHECKING:
    from torch import nn

    from tutorial_lib.memory import MemoryReport

ROWS = 20  # of the table by module or line
_BACKWARD = {"(backward)": "(backward): gradients on their way"}
_OUTSIDE = {"(forward)": "(forward): loss and logits", **_BACKWARD}
_MUCH = 0.25
_CURE = """\
{share:.0%} of the peak was made outside all modules: by the loss, with its logits, and as
gradients. Checkpointing does not lower it, but a smaller micro-batch does. In a language model, a
loss in chunks lowers it at the same batch: see chapter 10d, or set use_liger_kernel=True in
transformers' Trainer.
"""


def show(
    report: MemoryReport, recipe: Recipe, network: nn.Module, options: argparse.Namespace
) -> None:
    """Print a report as a table, or as JSON together with what was asked."""
    by, applied = options.by, _applied(network, recipe.checkpointing)
    held = {} if by is None else report.by(by, depth=_depth(report) if by == "module" else None)
    needs, release = int(report.peak_bytes), getattr(options, "torch", None)
    placed = cache(partial(place, report.timeline, needs))  # by cuBLAS's workspace
    fused = "bf16" in recipe.precision and any("attention" in x.op for x in report.timeline)

    def judge(room: Room) -> Verdict:
        unfused = bool(fused and room.card and float(room.card.capability) < 8)
        return Verdict(needs, room, placed=placed(room.workspace), unfused=unfused)

    verdict = options.fits and judge(Room.of(options.fits, release))
    cards = on_cards(judge, release) if getattr(options, "cards", False) else []
    seconds: dict[str, Any] | None = getattr(options, "seconds", None)
    if options.json:
        from tutorial_lib.memory.report import as_data

        more: dict[str, Any] = {"forward_backward_bytes": report.forward_backward_bytes}
        asked = {"checkpointed": applied, f"by_{by}": held, "cards": cards, "seconds": seconds}
        more |= {name: value for name, value in asked.items() if value}
        more |= {"verdict": verdict.as_data()} if verdict else {}
        more["seq"] = recipe.seq or sequence_length(recipe)
        print(json.dumps(recipe.as_data() | as_data(report) | more, indent=1))
        return
    from tutorial_lib.instruments.training.user_function import takes_micro_batch
    from tutorial_lib.memory.report import HOW, NOT_EMULATED

    changed = "".join(f", {name}={value}" for name, value in recipe.overrides.items())
    print(f"{recipe.label()}{changed}: {HOW[report.method]}, {report.device}")
    if recipe.seq is None and (length := sequence_length(recipe)):
        print(f"Sequences of {length} tokens, as --seq was left out.")
    if recipe.micro_batch == 1 and takes_micro_batch(recipe.model):
        print("One sample (micro_batch=1): --batch takes more.")
    if applied:
        print(applied)
    if report.method == "emulated":
        print(NOT_EMULATED)
    heads = ("held at the peak", "bytes", "share")
    _print_table([heads, *report.rows(), (), *_peaks(report)])
    if by is not None:
        rest = list(held.values())[ROWS:]
        more_rows = [(f"{len(rest)} more", str(sum(rest, Bytes(0))))] if rest else []
        names = _OUTSIDE if by == "module" else _BACKWARD  # the loss has lines of its own
        rows = [(names.get(name, name), str(size)) for name, size in held.items()]
        _print_table([(f"held at the peak by {by}", "bytes"), *rows[:ROWS], *more_rows])
        outside = sum(held.get(name, 0) for name in names) / max(1, report.peak_bytes)
        if by == "module" and outside > _MUCH:
            print(_CURE.format(share=outside))
    if verdict:
        print(verdict)
    if cards:
        _print_cards(cards)
    if seconds:
        print("seconds: {from:.2g} to {to:.2g} for a step on the {card}".format(**seconds))
        print(f"  rests on {seconds['rests_on']}")
    if report.peak_phase == "optimizer":
        print("The update is the peak: checkpointing can't lower it, but another --optimizer may.")


def seconds_on(key: str, recipe: Recipe) -> dict[str, Any]:
    """Return from and to how many seconds a step takes on a card, and what that rests on."""
    from tutorial_lib.instruments.emulated import find_card
    from tutorial_lib.instruments.planning.run.roofline import RESTS_ON, TIMED, Speed, lasts

    speed = Speed.of(card := find_card(key).name)
    low, high = lasts(recipe.make_step, speed)
    rests = f"{RESTS_ON}: nine in ten were in such a range"
    rests += "" if card in TIMED else ", none of them on this card"
    how = "without" if speed.matmul_flops else "with"
    tf32 = f" (convolutions with TF32, matmuls {how} it)" if speed.has_bfloat16 else ""
    rests += f"; none in float32{tf32}" if recipe.precision == "fp32" else ""
    return {"card": card, "from": low, "to": high, "rests_on": rests}


def _peaks(report: MemoryReport) -> Iterable[tuple[str, str]]:
    from tutorial_lib.units import human_seconds

    yield f"peak of the step, in {_in_words(report.peak_phase)}", str(report.peak_bytes)
    for phase, size in report.phases.items():
        if phase != report.peak_phase:
            yield f"  most in {_in_words(phase)}", str(size)
    if report.reserved_bytes is not None:
        yield "reserved by the allocator", str(report.reserved_bytes)
    if report.seconds is not None:
        yield "time of a step, median", human_seconds(report.seconds)


def _in_words(phase: str) -> str:
    return {"zero": "zero_grad", "optimizer": "the update"}.get(phase, phase)


def _print_table(rows: Iterable[tuple[str, ...]]) -> None:
    """Print labels, and beside them sizes and shares; an empty row is an empty line."""
    rows = [(*row, "", "", "")[:3] for row in rows]
    labels, sizes, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = [f"{label:<{labels}}  {size:>{sizes}}  {share:>5}" for label, size, share in rows]
    print("", *(line.rstrip() for line in lines), "", sep="\n")


def _print_cards(cards: list[dict[str, Any]]) -> None:
    """Print which cards fit, the cheapest first, and where each price is from."""
    rows = [("card        fits", "of its room", "$/h")]
    for row in cards:
        price = f"{row['dollars_an_hour']:.2f}" if "read" in row else "-"
        rows.append((f"{row['card']:<10}{row['fits']:>6}", f"{row['share']:.0%}", price))
    _print_table(rows)
    lists = sorted({(row["read"], row["source"]) for row in cards if "read" in row})
    print("List prices, which move:", "; ".join(f"{source} on {read}" for read, source in lists))


def _depth(report: MemoryReport) -> int:
    """Choose how much of modules' paths is told: as much as gives no more than the rows shown."""
    depth = 1
    while depth < 8 and len(report.by("module", depth=depth + 1)) <= ROWS:
        depth += 1
    return depth


def _applied(network: nn.Module, strategy: str) -> str:
    """Say what a strategy wraps; nothing where there is none."""
    from tutorial_lib.instruments import segments

    if strategy == "none":
        return ""
    with segments.applied(network, strategy) as applied:
        return str(applied)
