"""Windows of lab 06 as they should be trained, and expectations that its judges share."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tutorial_lib.checks.given import observe
from tutorial_lib.checks.vocabulary import Result, accumulation, expect, read
from tutorial_lib.checks.vocabulary.accumulation import Window
from tutorial_lib.instruments.cap import capped

from .given import models
from .given.models import MicroBatch

_COUNTED = (
    "you counted the labels before the shift: a row's first label is not a target.",
    "you counted masked labels: padding and prompts are tokens, but not targets.",
    "you counted every position, masked or not, even the first of each row.",
    "the sum was divided by rows: the unit of this loss is the token.",
)
_WEIGHED = "each mean counts by its rows or by all its labels: weight it by its targets."


def image_sums(model: nn.Module, window: Sequence[MicroBatch]) -> tuple[Window, Window]:
    """Return the gradients, and the losses, of micro-batches of images."""
    return _sums(model, window, models.image_loss_sum, [len(labels) for _, labels in window])


def token_sums(model: nn.Module, window: Sequence[MicroBatch]) -> tuple[Window, Window]:
    """Return the gradients, and the losses, of micro-batches of tokens."""
    counts = [models.num_targets(*part) for part in window]
    return _sums(model, window, models.token_loss_sum, counts)


def loss_faults(losses: Window) -> expect.Faults:
    """Yield each usual fault of the loss that is returned, and a window's loss by it."""
    yield accumulation.MEAN_OF_MEANS, losses.mean_of_means
    yield accumulation.SUM_OF_MEANS, losses.sum_of_means
    yield "it is the whole sum instead of the mean.", losses.total
    yield "it is only the last micro-batch's.", losses.last_alone
    yield "it is the mean of the last micro-batch.", losses.sums[-1] / max(1, losses.counts[-1])


def count_faults(gradients: Window, labels: Sequence[Tensor]) -> expect.Faults:
    """Yield each usual fault in counting targets, and a window's gradient by it."""
    sizes = [[int((y != -100).sum()), y[:, 1:].numel(), y.numel(), len(y)] for y in labels]
    for words, of_each in zip(_COUNTED, zip(*sizes, strict=True), strict=True):
        shares = [n / max(1, c) for n, c in zip(of_each, gradients.counts, strict=True)]
        yield words, gradients.total / sum(of_each)
        yield _WEIGHED, gradients.weighted(shares) / sum(of_each)


def without_targets(window: Sequence[MicroBatch]) -> list[int]:
    """Count the rows of the micro-batches of tokens that add nothing."""
    return [len(part[0]) for part in window if not models.num_targets(*part)]


def train_on_tokens(model: nn.Module, optimizer: Optimizer, window: Sequence[MicroBatch]) -> None:
    """Make one update with the mean over a window's targets, in little memory."""
    optimizer.zero_grad()
    count = sum(models.num_targets(*part) for part in window)
    for part in window:
        (models.token_loss_sum(model, *part) / count).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def _sums(
    model: nn.Module,
    window: Sequence[MicroBatch],
    loss_sum: Callable[..., Tensor],
    counts: Sequence[int],
) -> tuple[Window, Window]:
    losses = [loss_sum(model, *part) for part in window]
    gradients = [observe.gradient(loss, model) for loss in losses]
    return Window(gradients, counts), Window([loss.item() for loss in losses], counts)


def peak_allowed(
    model: nn.Module, window: Sequence[MicroBatch], loss_sum: Callable[..., Tensor]
) -> int:
    """Return 2.25 times the peak of a loop that frees each graph before the next forward."""
    largest = max(window, key=lambda part: len(part[0]))
    observe.fill_gradients(model)
    with torch.enable_grad(), capped(2**62, model=model) as cap:
        for _ in range(2):
            loss_sum(model, *largest).backward()  # type: ignore[no-untyped-call]
    return 9 * cap.peak_bytes // 4


def add_to_parameters(model: nn.Module, update: Tensor) -> None:
    """Add a vector to all parameters."""
    moved = observe.parameter_vector(model) + update
    nn.utils.vector_to_parameters(moved, list(model.parameters()))


def read_updates(result: Result, size: int) -> list[Tensor]:
    """Read the gradients that the optimizer got, a vector `(size,)` for each update."""
    return read.vectors(result["gradients"], size, "the gradients")


def only_update(result: Result, size: int, words: str) -> Tensor:
    """Read them, and expect one update; else words are told, with their number for `{}`."""
    updates = read_updates(result, size)
    expect.fact(len(updates) == 1, words.format(len(updates)))
    return updates[0]


def expect_parameters(result: Result, wanted: Tensor, words: str) -> None:
    """Expect the parameters after the last update; else words are told."""
    after = read.vector(result["parameters"], len(wanted), "the parameters")
    expect.fact(expect.is_close(after, wanted), words)
