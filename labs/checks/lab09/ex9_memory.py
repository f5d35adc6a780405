"""The checks of 9.4 and 9.6: cases G, H and J, whose memory or mean is wrong."""

from functools import partial

import torch
from torch import Tensor
from torch.optim import AdamW

from tutorial_lib.checks.given import observe
from tutorial_lib.checks.vocabulary import Case, Faults, Result, accumulation, expect, read
from tutorial_lib.checks.vocabulary.accumulation import Window
from tutorial_lib.models.lstm import LSTM
from tutorial_lib.models.vit import ViT

from ..lab06 import right_sums
from ..lab06.given import models
from ..lab06.given.models import MicroBatch
from . import given
from .ex9_checkpoints import ONE_UPDATE, diagnosis

_SMALL = 64  # bytes: a loss or two
_TOLERANCE = 1e-9  # AdamW's kernels divide in another order than its loop
_ALLOWED = 2.5  # times the bytes of the weights, above them; gradients and states of all take 3


def _mean(lstm: LSTM, batches: list[Tensor]) -> float:
    with torch.no_grad():
        return sum(lstm.loss(tokens).item() for tokens in batches) / len(batches)


def _judge_validation(case: Case, result: Result, right: Result) -> None:
    loss = read.number(result["returned"], "the loss")
    left, peak = (
        read.integer(result["left"], "bytes left behind"),
        read.integer(result["peak"], "the peak"),
    )
    expect.close(
        loss,
        right["returned"],
        _validation_faults(case, right["returned"]),
        otherwise=f"{loss:.6g} is not the mean of the batches' losses.",
    )
    of_graphs = (
        ": nothing goes backward here, so no graph is needed, not even for one batch."
        if result["has_graph"]
        else ". No graph is made, but one batch should be enough: what else do you hold?"
    )
    faults = {
        f"{left:,} bytes stay behind when it is over: what holds them?": left > _SMALL,
        f"the mean is right. At the peak {peak:,} bytes are held, and {right['peak']:,} are "
        f"enough{of_graphs}": peak > 1.15 * right["peak"] + _SMALL,
    }
    expect.no_fault(faults)
    expect.unchanged(result)


def _validation_faults(case: Case, mean: float) -> Faults:
    lstm, batches = given.make_validation(case)
    yield "it is the sum: return the mean.", len(batches) * mean
    by = {
        "targets": [tokens[:, 1:].numel() for tokens in batches],
        "tokens": [tokens.numel() for tokens in batches],
        "rows": [len(tokens) for tokens in batches],
    }
    instead = "but broken_g returns the mean of the batches' losses: return the same."
    for unit, sizes in by.items():
        with torch.no_grad():
            total = sum(n * lstm.loss(t).item() for n, t in zip(sizes, batches, strict=True))
        yield f"each batch counts by its {unit}, {instead}", total / sum(sizes)


def _right_window(case: Case) -> tuple[Window, Window]:
    return right_sums.token_sums(models.tiny_gpt(case["seed"]), given.make_window(case))


def _judge_window(case: Case, result: Result, right: tuple[Window, Window]) -> None:
    (gradients, losses), window = right, given.make_window(case)
    model = models.tiny_gpt(case["seed"])
    accumulation.expect_window(
        result,
        right_sums.only_update(result, len(gradients.mean), ONE_UPDATE),
        gradients=gradients,
        losses=losses,
        sizes=[len(tokens) for tokens, _ in window],
        optional=right_sums.without_targets(window),
        faults=_faults(gradients, [labels for _, labels in window]),
        loss_faults=right_sums.loss_faults(losses),
        allowed=right_sums.peak_allowed(model, window, models.token_loss_sum),
    )


def _faults(gradients: Window, labels: list[Tensor]) -> Faults:
    yield from right_sums.count_faults(gradients, labels)
    yield accumulation.MEAN_OF_MEANS, gradients.mean_of_means
    yield accumulation.SUM_OF_MEANS, gradients.sum_of_means
    yield "nothing is divided: it is the sum over all targets.", gradients.total
    yield accumulation.LAST_ALONE, gradients.last_alone
    yield accumulation.OLD_GRADIENT, gradients.mean + 1


memory_and_windows = diagnosis(
    given.memory_and_windows,
    "case G keeps no graph, and case H trains each window like one batch",
    {"G": (partial(given.validate, _mean), _judge_validation), "H": (_right_window, _judge_window)},
    lambda: {"G": ("", 0, _mean), "H": ("", 0, right_sums.train_on_tokens)},
    also=[{"case": "H", "empty": True}],
)


def _oracle(case: Case) -> tuple[list[float], Tensor, int]:
    """Train the head alone; give the losses, all weights after it, and how many are not its."""
    vit, batches = given.make_head_training(case)
    body = len(observe.parameter_vector(vit)) - len(observe.parameter_vector(vit.head))
    return _right_losses(vit, batches), observe.parameter_vector(vit), body


def _right_losses(vit: ViT, batches: list[MicroBatch]) -> list[float]:
    optimizer, losses = AdamW(vit.head.parameters(), lr=0.01), []
    for batch in batches:
        optimizer.zero_grad()
        loss = vit.loss(*batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


def _judge(case: Case, result: Result, right: tuple[list[float], Tensor, int]) -> None:
    losses, wanted, body = right
    after = read.vector(result["parameters"], len(wanted), "the weights")
    seen = read.items(result["returned"], "the losses")
    faults = {
        "weights other than the head's have changed: keep them frozen.": (
            not torch.equal(after[:body], wanted[:body])
        ),
        "the head's weights are not those that broken_j trains. Is it still one AdamW with a rate "
        "of 0.01 for all updates, each of a whole batch?": (
            not expect.is_close(after[body:], wanted[body:], _TOLERANCE)
        ),
        f"{len(losses)} losses are needed, one per update.": len(seen) != len(losses),
    }
    expect.no_fault(faults)
    for loss, expected in zip(seen, losses, strict=True):
        expect.loss(loss, expected)
    expect.unchanged(result)
    peak, allowed = read.integer(result["peak"], "the peak"), int(_ALLOWED * wanted.nbytes)
    expect.fact(
        peak <= allowed,
        f"the weights are right. At the peak {peak:,} bytes are held above them, but {allowed:,} "
        "fit: for which weights does the first update create state?",
    )


died_in_update = diagnosis(
    given.died_in_update,
    "case J trains its head as before, and its first update fits",
    {"J": (_oracle, _judge)},
    lambda: {"J": ("", 0, _right_losses)},
)
