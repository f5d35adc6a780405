"""The release of PyTorch whose CUDA kernels a prediction follows, where two of them differ."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import torch
from torch.torch_version import TorchVersion

OLDEST, NEWEST = "2.10", "2.15"  # tried on an emulated card
_followed: ContextVar[str] = ContextVar("_followed", default=torch.__version__)


def is_since(release: str) -> bool:
    """Tell whether the release that is followed is this one, as in `2.15`, or newer."""
    return bool(TorchVersion(_followed.get()) >= release)


@contextlib.contextmanager
def following(release: str | None) -> Iterator[None]:
    """Predict the kernels of a release until the block ends; None for the installed one's.

    Raises:
        ValueError: When the release is none whose kernels were tried.
    """
    tried = [f"2.{minor}" for minor in range(10, 16)]
    if release is not None and ".".join(release.split(".")[:2]) not in tried:
        raise ValueError(
            f"The release of PyTorch (={release!r}) must be one of {', '.join(tried)}, whose "
            "kernels were tried: leave it out to follow the one that is installed."
        )
    token = _followed.set(release or _followed.get())
    try:
        yield
    finally:
        _followed.reset(token)
