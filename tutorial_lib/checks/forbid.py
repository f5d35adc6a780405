"""Refuse, while an answer runs, what its exercise forbids."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

from torch.utils import checkpoint as torch_checkpoint

from tutorial_lib import memory
from tutorial_lib.checks.core import CheckError
from tutorial_lib.memory.storages import StorageLog
from tutorial_lib.private_torch import CHECKPOINT_GENERATOR


@contextlib.contextmanager
def attribute(owner: Any, name: str, message: str) -> Iterator[None]:
    """Raise a CheckError wherever an answer uses what its exercise forbids, and at the end again.

    Args:
        owner: Module or class that holds it.
        name: Its name there. What is looked up at every call, from everywhere, is best.
        message: What the learner reads.
    """
    used = []

    def refuse(*args: Any, **kwargs: Any) -> None:
        used.append(True)
        raise CheckError(message)

    with mock.patch.object(owner, name, refuse):
        yield
    if used:  # an answer may have caught it
        raise CheckError(message)


@contextlib.contextmanager
def checkpointing(message: str) -> Iterator[None]:
    """Refuse PyTorch's checkpoint, under whatever name it was imported.

    Args:
        message: What the learner reads whose answer calls it.
    """
    with (
        attribute(torch_checkpoint, CHECKPOINT_GENERATOR, message),
        attribute(torch_checkpoint.CheckpointFunction, "apply", message),
    ):
        yield


def meter(advice: str) -> contextlib.AbstractContextManager[None]:
    """Refuse every measurement of memory: each begins with a StorageLog, whatever it is called.

    Args:
        advice: What to do instead.
    """
    several = "memory.measure, memory.watch and memory.predict are the oracle here, so your"
    return attribute(StorageLog, "__init__", f"{several} function may not call them. {advice}")


def saved(advice: str) -> contextlib.AbstractContextManager[None]:
    """Refuse `memory.saved`.

    Args:
        advice: What to do instead.
    """
    message = f"memory.saved is the oracle here, so your function may not call it. {advice}"
    return attribute(sys.modules[memory.saved.__module__], "_Recorder", message)
