"""The cards that can be emulated: what PyTorch asks a card about itself, from `cards.toml`."""

import dataclasses
import difflib
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tutorial_lib.units import KIB, MIB, parse_bytes

# Bytes of a CUDA context for each thread that may be resident, whose stack it holds: nvidia-smi
# showed 256 MiB on an RTX 3090, of 82 x 1536 threads (PyTorch 2.7 and CUDA 12.8, InvokeAI's issue
# 9413), and 426 MiB on an RTX 6000 Ada, of 142 x 1536 (PyTorch 2.10 and CUDA 13.0, unsloth-zoo's
# pull request 1053). It grows as kernels are loaded: on an H200 from 619 to 703 MiB (measured,
# PyTorch 2.11 and CUDA 13.0), which is taken for all cards of its kind.
CONTEXT_BYTES, KERNELS = 2 * KIB, 84 * MIB
_CONTEXT_BYTES = {"9.0": 703 * MIB // 132}
# Before 1.13, PyTorch had CUDA load all kernels at once: an RTX 3090's context took 1687 MiB
# (PyTorch 1.8.2 and CUDA 11.1, pytorch's issue 55277). Pull request 86509 made loading lazy.
LAZY_SINCE, EAGER_BYTES = "1.13", 1687 * MIB - 82 * 1536 * CONTEXT_BYTES


@dataclass(frozen=True)
class Card:
    """A GPU as PyTorch sees it; memory in bytes."""

    name: str  # as the driver reports it
    capability: str  # compute capability, as in `8.0`
    multiprocessors: int  # number of them
    threads: int  # resident on one multiprocessor
    blocks: int  # resident on one multiprocessor
    shared_multiprocessor: int  # shared memory of one multiprocessor
    shared_opt_in: int  # of it, what one block may ask for
    l2_cache: int
    memory: int  # what the card reports
    context: int = 0  # of it, what a CUDA context holds, which PyTorch cannot have

    @property
    def free(self) -> int:
        """Bytes that are left to PyTorch."""
        return self.memory - self.context

    def as_text(self) -> str:
        """Write the card in one line, as the C source `device.c` reads it."""
        words = dataclasses.asdict(self)
        name = words.pop("name")
        return " ".join([*map(str, words.values()), name])


def _read_cards() -> dict[str, Card]:
    table = tomllib.loads(Path(__file__).with_name("cards.toml").read_text(encoding="utf-8"))
    cards = dict[str, Card]()
    for key, (name, capability, count, l2_mib, memory) in table["cards"].items():
        sizes = {"l2_cache": l2_mib * MIB, "memory": parse_bytes(memory)}
        cards[key] = Card(name, capability, count, *table["capabilities"][capability], **sizes)
    return cards


CARDS = _read_cards()


def find_card(
    key: str, memory: str | None = None, context: str | None = "0", *, eager: bool = False
) -> Card:
    """Look up a card.

    Args:
        key: A key of `CARDS`; capitals, spaces and dashes do not matter.
        memory: Another size of its memory, as in `16GiB`, `24 GB` or plain bytes.
        context: Bytes of a CUDA context, as in `300MiB` or `0`; `None` gives `CONTEXT_BYTES` a
            thread, of 1536 at least, or what was measured of the card's kind.

    Raises:
        ValueError: For an unknown card, or a size that cannot be read.
    """
    plain = {_plain(known): card for known, card in CARDS.items()}
    card = plain.get(_plain(key)) or plain.get(_plain(f"rtx{key}"))
    if card is None:
        near = difflib.get_close_matches(key.lower(), CARDS, n=1, cutoff=0.4)
        guess = f"did you mean `{near[0]}`?" if near else "or take one and change its --memory."
        raise ValueError(f"No card is called {key!r}: choose from {', '.join(CARDS)}; {guess}")
    if memory is not None:
        card = dataclasses.replace(card, memory=parse_bytes(memory))
    if context is None:
        each = CONTEXT_BYTES * max(1536, card.threads)  # fewer were not measured
        held = _CONTEXT_BYTES.get(card.capability, each) * card.multiprocessors
        held += EAGER_BYTES * eager
    else:
        held = 0 if context == "0" else parse_bytes(context)
    if held >= card.memory:
        raise ValueError(
            f"A context of {held:,} bytes leaves nothing of {card.memory:,}: give more --memory."
        )
    return dataclasses.replace(card, context=held)


def _plain(key: str) -> str:
    return key.lower().replace("-", "").replace(" ", "")
