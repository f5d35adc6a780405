"""Under which circumstances an answer and an oracle run."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.utils.checkpoint as torch_checkpoint

from tutorial_lib.checks.core import CheckError


@contextlib.contextmanager
def refused(owner: Any, attribute: str, message: str) -> Iterator[None]:
    """Raise a CheckError wherever an answer uses what its exercise forbids, and at the end again.

    Args:
        owner: Module or class that holds it.
        attribute: Its name there. What is looked up at every call, from everywhere, is best.
        message: What the learner reads.
    """
    used = []

    def refuse(*args: Any, **kwargs: Any) -> None:
        used.append(True)
        raise CheckError(message)

    with mock.patch.object(owner, attribute, refuse):
        yield
    if used:  # an answer may have caught it
        raise CheckError(message)


@contextlib.contextmanager
def without_checkpoint(message: str) -> Iterator[None]:
    """Refuse PyTorch's checkpoint, under whatever name it was imported.

    Args:
        message: What the learner reads whose answer calls it.
    """
    with (
        refused(torch_checkpoint, "_checkpoint_without_reentrant_generator", message),
        refused(torch_checkpoint.CheckpointFunction, "apply", message),
    ):
        yield


@contextlib.contextmanager
def pretended_gpu_states(first: int) -> Iterator[list[int]]:
    """Pretend the random state of a GPU that is not there: the last number of a list.

    `torch.cuda.get_rng_state` reads it, `torch.cuda.set_rng_state` appends, for any device; who
    draws appends the number after it.
    """
    states = [first]

    def read(device: Any = None) -> torch.Tensor:
        return torch.tensor([states[-1]], dtype=torch.uint8)

    def write(state: torch.Tensor, device: Any = None) -> None:
        states.append(int(state))

    with mock.patch.multiple(torch.cuda, get_rng_state=read, set_rng_state=write):
        yield states


def error_said(call: Callable[[], Any], kind: type[Exception] | None = None) -> str:
    """Run a call and give the name and text of the error that it raises; empty for none.

    An error of a subclass of `kind` goes by the name of `kind`.
    """
    try:
        call()
    except (NotImplementedError, CheckError):
        raise
    except Exception as error:
        named = kind if kind is not None and isinstance(error, kind) else type(error)
        return f"{named.__name__}: {error}"
    return ""


def remembered(oracle: Callable[..., Any]) -> Callable[..., Any]:
    """Have an oracle compute once for a case: a check is run again and again on the same cases.

    The oracle's last argument is the case, on which alone depends what it gives; those before it
    can be hashed.
    """

    @functools.lru_cache(maxsize=64)
    def of_text(*others: Any) -> Any:
        *arguments, text = others
        return oracle(*arguments, json.loads(text))

    @functools.wraps(oracle)
    def look_up(*arguments: Any) -> Any:
        *others, case = arguments
        return of_text(*others, json.dumps(case))

    return look_up
