"""The release of PyTorch whose CUDA kernels a prediction follows, where two of them differ."""

import contextlib
import functools
import re
from collections.abc import Iterator
from contextvars import ContextVar

import torch
from torch.torch_version import TorchVersion

OLDEST, NEWEST = "2.10", "2.15"  # tried on an emulated card
_followed: ContextVar[str] = ContextVar("_followed", default=torch.__version__)
_reaches = functools.cache(lambda followed, release: bool(TorchVersion(followed) >= release))


def is_since(release: str) -> bool:
    """Tell whether the release that is followed is this one, as in `2.15`, or newer."""
    return _reaches(_followed.get(), release)


def kernels_in_words() -> str:
    """Return what is assumed of an older release's kernels; nothing of one that was tried."""
    return "" if is_since(OLDEST) else f" as in PyTorch {OLDEST}, the oldest tried"


@contextlib.contextmanager
def following(release: str | None) -> Iterator[None]:
    """Predict the kernels of a release until the block ends; None for the installed one's.

    For a release older than those tried, the oldest one's are assumed.

    Raises:
        ValueError: When the release is newer than those whose kernels were tried, or isn't one.
    """
    number = re.fullmatch(r"([12]\.\d+)(\..*)?", NEWEST if release is None else release)
    if number is None or TorchVersion(number[1]) > NEWEST:
        raise ValueError(
            f"The release of PyTorch (={release!r}) must be at most {NEWEST}, as in 2.13: leave "
            "it out to follow the one that is installed."
        )
    token = _followed.set(release or _followed.get())
    try:
        yield
    finally:
        _followed.reset(token)
