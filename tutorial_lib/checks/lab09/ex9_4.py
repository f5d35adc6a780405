"""The check of 9.4: case G, a validation that keeps graphs, and case H, a mean of means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD

from tutorial_lib.checks.core import Case, CheckError, Result
from tutorial_lib.checks.given import observe, surroundings
from tutorial_lib.checks.lab06 import windows
from tutorial_lib.checks.lab06.given import models
from tutorial_lib.checks.lab09.scripts import BrokenScript, check_scripts, only_update
from tutorial_lib.checks.vocabulary import accumulation, expect, read
from tutorial_lib.models.lstm import LSTM, LSTMConfig

_SMALL = 64  # bytes: a loss or two


def _lstm(case: Case) -> tuple[LSTM, list[Tensor]]:
    torch.manual_seed(case["seed"])
    lstm = LSTM(LSTMConfig(vocab_size=32, d_model=16)).double()
    return lstm, list(torch.randint(32, (4 + case["seed"] % 4, 2, 20)))


def _validate(answer: Callable[..., Any], case: Case) -> Result:
    lstm, batches = _lstm(case)
    kept: list[Any] = []
    with surroundings.watched(lstm, only=surroundings.SWITCHES) as changed:
        peak, left = observe.peak_above(lambda: kept.append(answer(lstm, batches)), lstm)
    return {"returned": kept[0], "peak": peak, "left": left, "changed": changed}


def _right_validation(case: Case) -> Result:
    def mean(lstm: LSTM, batches: list[Tensor]) -> float:
        with torch.no_grad():
            return sum(lstm.loss(tokens).item() for tokens in batches) / len(batches)

    return _validate(mean, case)


def _judge_validation(case: Case, result: Result, right: Result) -> None:
    value = read.number(result.get("returned"), "case G: the loss")
    expect.close(
        value,
        right["returned"],
        [("it is the sum, and the mean is wanted.", len(_lstm(case)[1]) * right["returned"])],
        otherwise=f"{value:.6g} is not the mean of the batches' losses.",
        where="case G: ",
    )
    left = read.integer(result.get("left"), "case G: bytes left behind")
    if left > _SMALL:
        raise CheckError(f"case G: {left:,} bytes stay behind when it is over: what holds them?")
    peak = read.integer(result.get("peak"), "case G: the peak")
    if peak > 1.15 * right["peak"] + _SMALL:
        raise CheckError(
            f"case G: the mean is right. At the peak {peak:,} bytes are held, and "
            f"{right['peak']:,} are enough: nothing goes backward here, so no graph is needed, not "
            "for one batch."
        )
    expect.unchanged(result)


def _window(case: Case) -> tuple[list[models.MicroBatch], list[int]]:
    sizes = [1, 4, 2 + case["seed"] % 2, *[4] * 6]
    generator = torch.Generator().manual_seed(case["seed"])
    return models.token_window(sizes, generator), sizes


def _accumulate(answer: Callable[..., Any], case: Case) -> Result:
    model, (window, _) = models.tiny_gpt(case["seed"]), _window(case)
    optimizer = SGD(model.parameters(), lr=0.1)
    observe.fill_gradients(model)
    return models.train(lambda: answer(model, optimizer, window), model, optimizer)


def _right_window(case: Case) -> tuple[accumulation.Window, accumulation.Window]:
    model, (window, _) = models.tiny_gpt(case["seed"]), _window(case)
    return windows.token_sums(model, window)


def _judge_window(
    case: Case, result: Result, right: tuple[accumulation.Window, accumulation.Window]
) -> None:
    gradients, losses = right
    window, sizes = _window(case)
    gradient = only_update(result, len(gradients.mean), "case H: ")
    labels = torch.cat([labels for _, labels in window])
    faults = [
        (
            "the targets were counted before the shift: a row of T tokens has T - 1.",
            gradients.total / int((labels != -100).sum()),
        ),
        *(
            ("labels of -100 were counted, and they are no targets.", gradients.total / counted)
            for counted in (labels[:, 1:].numel(), labels.numel())
        ),
        (accumulation.MEAN_OF_MEANS, gradients.mean_of_means),
        (accumulation.SUM_OF_MEANS, gradients.sum_of_means),
        ("nothing is divided: it is the sum over all targets.", gradients.total),
        (accumulation.LAST_ALONE, gradients.last_alone),
        (accumulation.OLD_GRADIENT, gradients.mean + 1),
    ]
    accumulation.expect_window(
        result,
        gradient,
        gradients=gradients,
        losses=losses,
        sizes=sizes,
        faults=faults,
        loss_faults=[(accumulation.MEAN_OF_MEANS, losses.mean_of_means)],
        allowed=windows.peak_allowed(models.tiny_gpt(case["seed"]), window, models.token_loss_sum),
        where="case H: ",
    )


memory_and_windows = check_scripts(
    "lab09.memory_and_windows",
    "9.4",
    "case G holds no graph, and case H takes one window as one batch",
    {
        "G": BrokenScript(
            "kept graphs",
            6,
            "how many graphs are alive after broken_g on six batches of one size: the bytes left "
            "behind over those that one batch saves, rounded",
            _validate,
            _right_validation,
            _judge_validation,
        ),
        "H": BrokenScript(
            "unequal weights",
            8,
            "how many times as much a target of the shortest micro-batch in window_h() counts as "
            "one of the longest",
            _accumulate,
            _right_window,
            _judge_window,
        ),
    },
)
