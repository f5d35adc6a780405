"""The check of 9.4: case G, a validation that keeps graphs, and case H, a mean of means."""

import torch
from torch import Tensor

from tutorial_lib.checks.vocabulary import Case, Faults, Result, accumulation, expect, read
from tutorial_lib.checks.vocabulary.accumulation import Window
from tutorial_lib.models.lstm import LSTM

from ..lab06 import right_sums
from ..lab06.given import models
from . import given
from .scripts import diagnosis, only_update

_SMALL = 64  # bytes: a loss or two


def _mean(lstm: LSTM, batches: list[Tensor]) -> float:
    with torch.no_grad():
        return sum(lstm.loss(tokens).item() for tokens in batches) / len(batches)


def _right_validation(case: Case) -> Result:
    return given.validate(_mean, case)


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
        ": nothing goes backward here, so no graph is needed, not for one batch."
        if result["has_graph"]
        else ". No graph is made, and one batch is enough: what of the others is held?"
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
    yield "it is the sum, and the mean is wanted.", len(batches) * mean
    by = {
        "targets": [tokens[:, 1:].numel() for tokens in batches],
        "tokens": [tokens.numel() for tokens in batches],
        "rows": [len(tokens) for tokens in batches],
    }
    instead = "and broken_g gives the mean of the batches' losses: the same one is wanted."
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
        only_update(result, len(gradients.mean)),
        gradients=gradients,
        losses=losses,
        sizes=[len(tokens) for tokens, _ in window],
        optional=right_sums.without_targets(window),
        faults=_faults(gradients, torch.cat([labels for _, labels in window])),
        loss_faults=[(accumulation.MEAN_OF_MEANS, losses.mean_of_means)],
        allowed=right_sums.peak_allowed(model, window, models.token_loss_sum),
    )


def _faults(gradients: Window, labels: Tensor) -> Faults:
    before_shift = "the targets were counted before the shift: a row of T tokens has T - 1."
    yield before_shift, gradients.total / int((labels != -100).sum())
    for counted in (labels[:, 1:].numel(), labels.numel()):
        words = "labels of -100 were counted, and they are no targets."
        yield words, gradients.total / counted
    yield accumulation.MEAN_OF_MEANS, gradients.mean_of_means
    yield accumulation.SUM_OF_MEANS, gradients.sum_of_means
    yield "nothing is divided: it is the sum over all targets.", gradients.total
    yield accumulation.LAST_ALONE, gradients.last_alone
    yield accumulation.OLD_GRADIENT, gradients.mean + 1


memory_and_windows = diagnosis(
    given.memory_and_windows,
    "case G holds no graph, and case H takes one window as one batch",
    {"G": (_right_validation, _judge_validation), "H": (_right_window, _judge_window)},
    lambda: {"G": ("", 0, _mean), "H": ("", 0, right_sums.train_on_tokens)},
    also=[{"case": "H", "empty": True}],
)
