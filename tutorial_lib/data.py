"""Small real data that needs no download, and seeded synthetic batches.

Real: the digit images that come with scikit-learn, and the source of Python's own standard
library as text. Every random choice here has a generator of its own: the global random state of
the caller is never read and never moved.
"""

import sysconfig
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F


def digits(size: int | None = None) -> tuple[Tensor, Tensor]:
    """Load 1,797 images of handwritten digits and what they show.

    Args:
        size: Height and width to enlarge to, at least 8; `None` keeps the 8 x 8 of the data.

    Returns:
        Images `(1797, 1, size, size)`, float32 in [-1, 1], and labels `(1797,)` from 0 to 9.

    Raises:
        ValueError: When the size is below 8.

    Source:
        Alpaydin and Kaynak (1998), Optical Recognition of Handwritten Digits, the copy that
        scikit-learn ships.

    Example:
        >>> images, labels = digits()
        >>> images.shape, labels[:4]
        (torch.Size([1797, 1, 8, 8]), tensor([0, 1, 2, 3]))
    """
    from sklearn.datasets import load_digits

    if size is not None and size < 8:
        raise ValueError(f"size (={size}) must be at least 8, the size of the data: try size=8.")
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 8 - 1  # 0..16 -> -1..1
    if size is not None and size != 8:
        images = F.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
    return images, torch.tensor(data.target, dtype=torch.int64)


def text(num_chars: int = 200_000) -> str:
    """Read the beginning of Python's own standard library as one text.

    The modules are read in alphabetical order. Only ASCII is kept, so that one character is one
    byte. The text differs between versions of Python: print nothing that depends on it.

    Args:
        num_chars: How many characters to return.

    Returns:
        Exactly `num_chars` characters, with Unix newlines on every system.

    Raises:
        ValueError: When the number is below 1, or more than the library has.
    """
    pieces: list[str] = []
    length = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*.py")):
        if length >= num_chars:
            break
        source = path.read_bytes().decode("ascii", errors="ignore").replace("\r\n", "\n")
        pieces.append(source)
        length += len(source)
    if not 1 <= num_chars <= length:
        raise ValueError(
            f"num_chars (={num_chars}) must be between 1 and the {length} characters found. "
            "Try a number in that range."
        )
    return "".join(pieces)[:num_chars]


def encode(characters: str) -> Tensor:
    """Turn text into byte tokens `(num_bytes,)`, int64 below 256."""
    return torch.tensor(list(characters.encode("utf-8")), dtype=torch.int64)


def text_batches(batch: int, seq: int) -> Iterator[Tensor]:
    """Draw random windows of the text, the same ones each time, without end.

    Args:
        batch: Windows at a time.
        seq: Tokens in a window.

    Yields:
        Tokens `(batch, seq)`, int64 below 256.

    Raises:
        ValueError: When the text is shorter than a window, or a size is below 1.

    Example:
        >>> tokens = next(text_batches(8, 64))
        >>> tokens.shape, tokens.dtype
        (torch.Size([8, 64]), torch.int64)
    """
    _at_least_one(batch=batch, seq=seq)
    tokens = encode(text())
    if seq > len(tokens):
        raise ValueError(f"seq (={seq}) must be at most {len(tokens)}: try a shorter window.")
    drawn = torch.Generator().manual_seed(0)
    windows = tokens.unfold(0, seq, 1)  # (len(tokens) - seq + 1, seq), a view
    return (windows[torch.randint(len(windows), (batch,), generator=drawn)] for _ in count())


def image_batch(batch: int, channels: int, size: int, seed: int = 0) -> Tensor:
    """Make random images `(batch, channels, size, size)`, float32 of mean 0 and deviation 1.

    Raises:
        ValueError: When a size is below 1.
    """
    _at_least_one(batch=batch, channels=channels, size=size)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, channels, size, size, generator=generator)


def _at_least_one(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} (={value}) must be at least 1: try {name}=1.")
