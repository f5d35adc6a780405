"""The settings under which both halves of a check run, whatever the notebook has set."""

import contextlib
import io
import random
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
import torch.utils.checkpoint as torch_checkpoint

_KEPT, _MOST = 500, 10**6  # characters
_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    (partial(torch.is_autocast_enabled, "cpu"), partial(torch.set_autocast_enabled, "cpu")),
    (lambda: torch.get_autocast_dtype("cpu"), partial(torch.set_autocast_dtype, "cpu")),
    (random.getstate, random.setstate),
)


class Printed(io.StringIO):
    """Keeps the end of what is printed: a loop that prints for ever must not fill the memory."""

    def write(self, text: str) -> int:
        """Add a text; what came long before it is dropped."""
        if self.tell() > _MOST:
            end = self.getvalue()[-_KEPT:]
            self.seek(0)
            self.truncate()
            super().write(end)
        return super().write(text)

    @property
    def end(self) -> str:
        """The last characters."""
        return self.getvalue()[-_KEPT:]


@contextlib.contextmanager
def usual_settings() -> Iterator[None]:
    """Set gradients, the CPU, float32 and one thread; put back what was set before the block."""
    # What an answer sets is put back too: neither the judge nor the next case has asked for it.
    device, before = torch.get_default_device(), [get() for get, _ in _SETTINGS]
    torch.set_default_dtype(torch.float32)
    # Sums come out the same to the last bit. And a grader's forked process has no pool of threads:
    # an operation that waits for its parent's never ends.
    torch.set_num_threads(1)
    try:
        with (
            torch.enable_grad(),
            contextlib.nullcontext() if device.type == "cpu" else torch.device("cpu"),
        ):
            _import_torch_dynamo()
            yield
    finally:
        if torch.get_default_device() != device:
            torch.set_default_device(None if device.type == "cpu" else device)
        for (get, put), value in zip(_SETTINGS, before, strict=True):
            if get() != value:
                put(value)


@cache
def _import_torch_dynamo() -> None:
    # The first checkpoint imports it, and that makes tensors: a meter around would count them.
    x = torch.zeros(1, requires_grad=True)
    torch_checkpoint.checkpoint(torch.sin, x, use_reentrant=False).backward()


@contextlib.contextmanager
def quietly() -> Iterator[Printed]:
    """Run an answer under the usual settings; prints, warnings and random state stay in here."""
    printed = Printed()
    with (
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        warnings.catch_warnings(),
        torch.random.fork_rng(devices=[]),
        usual_settings(),
    ):
        warnings.simplefilter("ignore")
        yield printed
