"""Does a step fit a card? What it needs, what it takes when nothing limits it, the context.

Source:
    `tests/benchmarks/fits.csv`: training loops that others ran on real GPUs, free and again with
    PyTorch's share of the card capped, beside what was predicted and emulated.
    `tests/test_fits.py` holds the two constants to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tutorial_lib.instruments.emulated.cards import CARDS, Card, find_card
from tutorial_lib.units import human_bytes, parse_bytes

# Within this share of what a step needs, runs on real GPUs went either way.
CLOSE = 0.018
# What nvidia-smi showed of free runs, without the context, over what they need: 9 of 10 runs.
TAKES = (1.0, 1.3)


@dataclass(frozen=True)
class Room:
    """What memory there is for a step.

    Args:
        free: Bytes for PyTorch.
        card: The card that they are on, its context taken off; None for a size without a card.
    """

    free: int
    card: Card | None = None

    @classmethod
    def of(cls, text: str) -> Room:
        """Read a size, as in `16GiB`, or a card, as in `rtx-3060`.

        Raises:
            ValueError: When it is neither.
        """
        try:
            return cls(parse_bytes(text))
        except ValueError as no_size:
            try:
                card = find_card(text, context=None)
            except ValueError:
                raise ValueError(f"{no_size} Or name a card: {', '.join(CARDS)}.") from None
            return cls(card.free, card)

    @property
    def sure(self) -> int:
        """Bytes that a step may need and is sure to run."""
        return int(self.free / (1 + CLOSE))


@dataclass(frozen=True)
class Verdict:
    """Whether a step fits, and the numbers that decide it.

    Args:
        needs: The least that the step needs: its predicted peak, or what was allocated.
        room: What there is.
    """

    needs: int
    room: Room

    @property
    def answer(self) -> str:
        """`yes`, `no`, or `close` where real runs of such a margin went either way."""
        if self.needs <= self.room.sure:
            return "yes"
        return "close" if self.needs <= self.room.free * (1 + CLOSE) else "no"

    @property
    def takes(self) -> tuple[int, int]:
        """Bytes that the step takes when nothing limits it, from and to, without the context."""
        low, high = (int(self.needs * factor) for factor in TAKES)
        return low, high

    def as_data(self) -> dict[str, Any]:
        """Give the verdict as plain data, for JSON."""
        return {
            "fits": self.answer,
            "needs_bytes": self.needs,
            "takes_bytes": list(self.takes),
            "free_bytes": self.room.free,
            "context_bytes": self.room.card.context if self.room.card else 0,
        }

    def __str__(self) -> str:
        low, high = map(human_bytes, self.takes)
        card = self.room.card
        where = f"{human_bytes(self.room.free)}"
        more = ""
        if card is not None:
            where += f" that a {card.name} leaves to PyTorch"
            more = f" and the CUDA context, about {human_bytes(card.context)}"
        reason = (
            f" (within {CLOSE:.1%}, real runs went either way)" if self.answer == "close" else ""
        )
        return (
            f"fits: {self.answer}{reason}\n"
            f"  needs  {human_bytes(self.needs)} at least, of {where}\n"
            f"  takes  {low} to {high} where nothing limits it; nvidia-smi shows that{more}"
        )
