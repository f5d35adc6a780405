"""What becomes of a PyTorch that is newer than all that were tried."""

import contextlib
import traceback
import warnings
from collections.abc import Iterator

import torch

LAST_TRIED = "2.15"
if torch.__version__ >= "2.16":
    warnings.warn(
        f"PyTorch {torch.__version__} is newer than {LAST_TRIED}, the last one that this was tried "
        "with: if a number or an error looks odd, try that one.",
        stacklevel=2,
    )


@contextlib.contextmanager
def naming_what_is_gone() -> Iterator[None]:
    """Say of a private name that PyTorch no longer has which function needed it.

    Raises:
        RuntimeError: When a function of a module `private_torch` asked for such a name.
    """
    try:
        yield
    except AttributeError as error:
        frames = traceback.extract_tb(error.__traceback__)
        if "private_torch" not in frames[-1].filename:
            raise
        raise RuntimeError(
            f"{frames[-1].name}() needs {error.name!r} of {error.obj!r}, a private name "
            f"that PyTorch {torch.__version__} does not have: try PyTorch {LAST_TRIED}, the "
            "last one that this was tried with."
        ) from error
