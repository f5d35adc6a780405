"""The cards that can be emulated, as data: what PyTorch asks a card about itself.

Source:
    NVIDIA's CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability"
    (threads, blocks and shared memory of a multiprocessor), and the data sheets (multiprocessors,
    L2 cache). Memory is what `torch.cuda.get_device_properties` reports, which is less than the
    data sheet's. It is the whole card's: the bytes of a CUDA context are not taken off.
"""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass

from tutorial_lib.units import MIB, parse_bytes


@dataclass(frozen=True)
class Card:
    """A GPU as PyTorch sees it.

    Args:
        name: As the driver reports it.
        capability: Compute capability, as in `8.0`.
        multiprocessors: Number of them.
        threads: Resident on one multiprocessor.
        blocks: Resident on one multiprocessor.
        shared_multiprocessor: Bytes of shared memory of one multiprocessor.
        shared_opt_in: Bytes of it that one block may ask for.
        l2_cache: Bytes.
        memory: Bytes that the card reports.
    """

    name: str
    capability: str
    multiprocessors: int
    threads: int
    blocks: int
    shared_multiprocessor: int
    shared_opt_in: int
    l2_cache: int
    memory: int

    def as_text(self) -> str:
        """Write the card in one line, as the C source `device.c` reads it."""
        words = dataclasses.asdict(self)
        name = words.pop("name")
        return " ".join([*map(str, words.values()), name])


_AMPERE = ("8.0", 108, 2048, 32, 167936, 166912, 40 * MIB)
_HOPPER = ("9.0", 132, 2048, 32, 233472, 232448, 50 * MIB)

CARDS = {
    "t4": Card("Tesla T4", "7.5", 40, 1024, 16, 65536, 65536, 4 * MIB, 15637086208),
    "l4": Card("NVIDIA L4", "8.9", 58, 1536, 24, 102400, 101376, 48 * MIB, 23664132096),
    "a100": Card("NVIDIA A100-SXM4-80GB", *_AMPERE, 85095874560),
    "a100-40": Card("NVIDIA A100-SXM4-40GB", *_AMPERE, 42405855232),
    "h100": Card("NVIDIA H100 80GB HBM3", *_HOPPER, 84929347584),
    "h200": Card("NVIDIA H200", *_HOPPER, 150109880320),
}


def find_card(key: str, memory: str | None = None) -> Card:
    """Look up a card.

    Args:
        key: A key of `CARDS`; capitals do not matter.
        memory: Another size of its memory, as in `16GiB` or `24 GB`.

    Raises:
        ValueError: For a card that is not known, or a size that is no size.
    """
    card = CARDS.get(key.lower())
    if card is None:
        near = difflib.get_close_matches(key.lower(), CARDS, n=1, cutoff=0.4)
        guess = f"did you mean `{near[0]}`?" if near else "or take one and give it --memory."
        raise ValueError(f"No card is called {key!r}: choose from {', '.join(CARDS)}; {guess}")
    return card if memory is None else dataclasses.replace(card, memory=parse_bytes(memory))
