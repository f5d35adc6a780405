"""Does a step fit a card? What it needs, what it takes when nothing limits it, the context.

Source:
    `course/recorded/fits.csv`: training loops that others ran on real GPUs, free and again with
    PyTorch's share of the card capped, beside what was predicted and emulated.
    `course/recorded/least_room.csv`: the least room in which steps ran on an H200.
    `tests/test_fits.py` holds the constants to both.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tutorial_lib.instruments.emulated.blocks import WORKSPACES, Placed
from tutorial_lib.instruments.emulated.cards import CARDS, KERNELS, LAZY_SINCE, Card, find_card
from tutorial_lib.units import KIB, MIB, human_bytes, parse_bytes

# With expandable segments, which join free blocks, steps needed at most this share more than was
# predicted, besides cuBLAS's workspaces (since PyTorch 2.15 one at most, which is predicted).
JOINED = 0.1
# This share more than with their tensors in blocks was enough on an H200 for 60 of 63 steps without
# them and for all 38 with them; on an emulated one without them, for 35 of 36 others. Not predicted
# are cuDNN's workspaces, what building a model leaves behind, and an H200's kernels of attention.
IN_BLOCKS = 0.06
# With up to this share more than an emulated card allocated, some runs on real GPUs ran out.
CLOSE = 0.024
# What nine of ten free runs took: in nvidia-smi, over what was predicted; of PyTorch, over what its
# tensors reserve in blocks; in nvidia-smi, over what the emulated card had reserved.
TAKES, TAKES_IN_BLOCKS, TAKES_OF_RESERVED = (1.0, 1.45), (0.9, 1.15), (0.94, 1.04)
JOINED_SINCE = "2.1"  # the release of PyTorch that brought expandable segments


def _more(num_bytes: int, share: float) -> int:
    return -(-num_bytes * round(1000 + 1000 * share) // 1000)


def _is_before(release: str | None, other: str) -> bool:
    numbers = [[int(n) for n in (r or "9.9").split(".")[:2]] for r in (release, other)]
    return numbers[0] < numbers[1]


@dataclass(frozen=True)
class Room:
    """What memory there is for a step."""

    free: int  # bytes for PyTorch
    card: Card | None = None  # that they are on, its context taken off; None for a size alone
    release: str | None = None  # PyTorch's, as in `1.12`; None for a recent one

    @classmethod
    def of(cls, text: str, release: str | None = None) -> Room:
        """Read a size, as in `16GiB`, or a card, as in `rtx-3060`; anything else is refused.

        A card's context is the one of that release of PyTorch.
        """
        try:
            return cls(parse_bytes(text), release=release)
        except ValueError as no_size:
            try:
                card = find_card(text, context=None, eager=_is_before(release, LAZY_SINCE))
            except ValueError:
                raise ValueError(f"{no_size} Or name a card: {', '.join(CARDS)}.") from None
            return cls(card.free, card, release)

    @classmethod
    def for_sure(cls, needs: int) -> Room:
        """Return the smallest room whose `sure` is this many bytes."""
        return cls(_more(needs, JOINED) + WORKSPACES)

    @property
    def workspace(self) -> int:
        """Bytes of PyTorch's that cuBLAS has for each thread; before 2.0 it took its own."""
        older = self.card and float(self.card.capability) < 9  # CublasHandlePool.cpp, 2.0 to 2.13
        return 0 if _is_before(self.release, "2.0") else 8320 * KIB if older else 32 * MIB

    @property
    def joins(self) -> bool:
        """Whether this release of PyTorch has expandable segments."""
        return not _is_before(self.release, JOINED_SINCE)

    @property
    def sure(self) -> int:
        """Bytes that may be predicted of a step that is to run with expandable segments."""
        return max(1, (self.free - WORKSPACES) * 1000 // _more(1000, JOINED))


@dataclass(frozen=True)
class Verdict:
    """Whether a step fits, and the numbers that decide it."""

    needs: int  # what the tensors hold at once: the predicted peak, or what was allocated
    room: Room  # what there is
    reserved: int | None = None  # what an emulated card reserved for it, where one was asked
    placed: Placed | None = None  # what a prediction needs and reserves without growing segments
    unfused: bool = False  # whether the card keeps scores of attention that weren't predicted

    @property
    def answer(self) -> str:
        """`yes`, `no`, or `close` where some runs with such a margin, or `unfused`, ran out.

        The `yes` to a prediction is one with expandable segments, unless `placed` fits without.
        """
        if self.enough <= self.room.free and not self.unfused:
            return "yes"
        return "close" if self.needs <= self.room.free else "no"

    @property
    def enough(self) -> int:
        """Bytes for PyTorch with which the answer is yes."""
        if self.reserved is not None:
            return _more(self.needs, CLOSE)
        joined = Room.for_sure(self.needs).free
        apart = _more(self.placed.needs, IN_BLOCKS) if self.placed else joined
        return min(joined, apart) if self.room.joins else apart

    @property
    def takes(self) -> tuple[int, int]:
        """Bytes that nvidia-smi shows of the step when nothing limits it, from and to.

        A card's context is in them, where the card is known, and what kernels add to it.
        """
        size, factors = self.needs, TAKES
        if self.reserved is not None:
            size, factors = self.reserved, TAKES_OF_RESERVED
        elif self.placed:
            size, factors = self.placed.reserves, TAKES_IN_BLOCKS
        low, high = (int(size * factor) for factor in factors)
        context = self.room.card.context if self.room.card else 0
        return max(low, self.needs) + context, high + context + (KERNELS if context else 0)

    def as_data(self) -> dict[str, Any]:
        """Return the verdict as plain data, for JSON."""
        return {
            "fits": self.answer,
            "needs_bytes": self.needs,
            "takes_bytes": list(self.takes),
            "free_bytes": self.room.free,
            "enough_bytes": None if self.unfused else self.enough,
            "context_bytes": self.room.card.context if self.room.card else 0,
            "torch": self.room.release,
        }

    def __str__(self) -> str:
        low, high = map(human_bytes, self.takes)
        where, context = human_bytes(self.room.free), []
        if card := self.room.card:
            where += f" that the {card.name} leaves to PyTorch"
            held = human_bytes(card.context)
            context = [f"  context  about {held} of CUDA's own, already subtracted"]
            if _is_before(self.room.release, LAZY_SINCE):
                context[0] += f": PyTorch before {LAZY_SINCE} loads all kernels"
        lines = [f"fits: {self.answer}"]
        if self.answer == "close" and self.unfused:
            lines[0] += ", since in bfloat16 this card keeps attention's scores, not counted here"
            lines.append("  take     --precision fp16-amp, for which it has fused kernels")
        elif self.answer == "close":
            lines[0] += ", since some with so little to spare ran out"
        if self.reserved is None and self.answer != "no":
            placed, without = self.placed, _more(self.needs, TAKES[1] - 1)
            size = human_bytes(placed.needs) if placed else "up to half more"
            if not self.room.joins:
                lines.append(f"  blocks   {size}, as PyTorch before {JOINED_SINCE} can't join them")
            elif (_more(placed.needs, IN_BLOCKS) if placed else without) > self.room.free:
                setting = "PYTORCH_ALLOC_CONF=expandable_segments:True"
                lines.append(f"  set      {setting}: without it the blocks need {size}")
        lines.append(f"  needs    {human_bytes(self.needs)}, of {where}")
        if self.answer != "yes" and not self.unfused:
            lines.append(f"  enough   {human_bytes(self.enough, up=True)} for PyTorch")
        lines.append(f"  takes    {low} to {high} in nvidia-smi if nothing limits PyTorch")
        return "\n".join(lines + context)


def on_cards(judge: Callable[[Room], Verdict], release: str | None = None) -> list[dict[str, Any]]:
    """Return for each card the answer, the share of its room that is needed, and a list price.

    The cheapest comes first; those without a price are last.

    Source:
        `prices.toml` beside this file, with the day on which each price was read.
    """
    lists = tomllib.loads(Path(__file__).with_name("prices.toml").read_text("utf-8"))["lists"]
    found = []
    for key in CARDS:
        verdict = judge(Room.of(key, release))
        share = verdict.needs / verdict.room.free
        row = {"card": key, "fits": verdict.answer, "share": share}
        priced = next((one for one in lists if key in one["dollars"]), None)
        price = priced and {"dollars_an_hour": priced["dollars"][key], "source": priced["source"]}
        found.append(row | (price or {}) | ({"read": str(priced["read"])} if priced else {}))
    return sorted(found, key=lambda row: (row.get("dollars_an_hour", math.inf), row["share"]))
