"""The cards that can be emulated, as data: what PyTorch asks a card about itself.

Source:
    NVIDIA's CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability"
    (threads, blocks and shared memory of a multiprocessor), and the data sheets (multiprocessors,
    L2 cache). Memory is what the driver reports to PyTorch, which is less than the data sheet's.
    Where only whole MiB were published (`torch.cuda.get_device_properties` prints them), it is
    those.
"""

import dataclasses
import difflib
from dataclasses import dataclass

from tutorial_lib.units import MIB, parse_bytes

# Bytes of a CUDA context for each multiprocessor: nvidia-smi showed 256 MiB on an RTX 3090, with 82
# of them (PyTorch 2.7 and CUDA 12.8, InvokeAI's issue 9413), and 426 MiB on an RTX 6000 Ada, with
# 142 (PyTorch 2.10 and CUDA 13.0, unsloth-zoo's pull request 1053). It grows as kernels are loaded:
# on an H200, with 132, from 619 to 703 MiB (measured, PyTorch 2.11 and CUDA 13.0).
CONTEXT_BYTES = 3 * MIB
_CONTEXT_BYTES = {"9.0": 703 * MIB // 132}
# Before 1.13, PyTorch had CUDA load all kernels at once: an RTX 3090's context took 1687 MiB
# (PyTorch 1.8.2 and CUDA 11.1, pytorch's issue 55277). Pull request 86509 made loading lazy.
LAZY_SINCE, EAGER_BYTES = "1.13", 1687 * MIB - 82 * CONTEXT_BYTES


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


# Threads, blocks and shared memory of a multiprocessor, by compute capability.
_OF = {
    "7.0": (2048, 32, 98304, 98304),
    "7.5": (1024, 16, 65536, 65536),
    "8.0": (2048, 32, 167936, 166912),
    "8.6": (1536, 16, 102400, 101376),
    "8.9": (1536, 24, 102400, 101376),
    "9.0": (2048, 32, 233472, 232448),
    "10.0": (2048, 32, 233472, 232448),
    "12.0": (1536, 24, 102400, 101376),
}


def _card(name: str, capability: str, multiprocessors: int, l2_mib: int, memory: int) -> Card:
    return Card(
        f"NVIDIA {name}", capability, multiprocessors, *_OF[capability], l2_mib * MIB, memory
    )


CARDS = {
    "t4": Card("Tesla T4", "7.5", 40, *_OF["7.5"], 4 * MIB, 15637086208),
    "v100": Card("Tesla V100-SXM2-16GB", "7.0", 80, *_OF["7.0"], 6 * MIB, 16160 * MIB),
    "a10": _card("A10", "8.6", 72, 6, 22587 * MIB),  # an A10G's
    "a40": _card("A40", "8.6", 84, 6, 45416 * MIB),
    "l4": _card("L4", "8.9", 58, 48, 23664132096),
    "l40s": _card("L40S", "8.9", 142, 96, 45589 * MIB),
    "a100": _card("A100-SXM4-80GB", "8.0", 108, 40, 85095874560),
    "a100-40": _card("A100-SXM4-40GB", "8.0", 108, 40, 42405855232),
    "h100": _card("H100 80GB HBM3", "9.0", 132, 50, 84929347584),
    "h200": _card("H200", "9.0", 132, 50, 150109880320),
    "b200": _card("B200", "10.0", 148, 126, 182642 * MIB),
    "rtx-3060": _card("GeForce RTX 3060", "8.6", 28, 3, 12622168064),
    "rtx-3090": _card("GeForce RTX 3090", "8.6", 82, 6, 24259 * MIB),
    "rtx-4060": _card("GeForce RTX 4060", "8.9", 24, 24, 8318222336),
    "rtx-4070": _card("GeForce RTX 4070", "8.9", 46, 36, 11994 * MIB),
    "rtx-4090": _card("GeForce RTX 4090", "8.9", 128, 72, 24217 * MIB),
    "rtx-5090": _card("GeForce RTX 5090", "12.0", 170, 96, 33677180928),
}


def find_card(
    key: str, memory: str | None = None, context: str | None = "0", *, eager: bool = False
) -> Card:
    """Look up a card.

    Args:
        key: A key of `CARDS`; capitals, spaces and dashes do not matter.
        memory: Another size of its memory, as in `16GiB`, `24 GB` or plain bytes.
        context: Bytes of a CUDA context, as in `300MiB` or `0`; `None` gives `CONTEXT_BYTES` a
            multiprocessor, or what was measured of the card's kind.

    Raises:
        ValueError: For a card that is not known, or a size that is no size.
    """
    plain = {_plain(known): card for known, card in CARDS.items()}
    card = plain.get(_plain(key)) or plain.get(_plain(f"rtx{key}"))
    if card is None:
        near = difflib.get_close_matches(key.lower(), CARDS, n=1, cutoff=0.4)
        guess = f"did you mean `{near[0]}`?" if near else "or take one and give it --memory."
        raise ValueError(f"No card is called {key!r}: choose from {', '.join(CARDS)}; {guess}")
    if memory is not None:
        card = dataclasses.replace(card, memory=parse_bytes(memory))
    if context is None:
        held = _CONTEXT_BYTES.get(card.capability, CONTEXT_BYTES) * card.multiprocessors
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
