"""The check of lab 06's tokens (6.3): the mean over the window's targets, masked and shifted."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from tutorial_lib.checks import lab06_demands as demands
from tutorial_lib.checks import lab06_oracles as oracles
from tutorial_lib.checks.core import Case, Check, CheckError, Result

_RATE = 0.1


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    drawn = {"seed": draw.randrange(10**6), "sizes": [draw.randint(2, 4) for _ in range(4)]}
    return [{**drawn, "masked": []}, {**drawn, "masked": [draw.randrange(4)]}]


def _window(case: Case) -> list[oracles.MicroBatch]:
    generator = torch.Generator().manual_seed(case["seed"])
    return oracles.token_window(case["sizes"], generator, case["masked"])


def _run(answer: Callable[..., Any], case: Case) -> Result:
    model = oracles.tiny_gpt(case["seed"])
    optimizer = SGD(model.parameters(), lr=_RATE)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return oracles.observe(lambda: answer(model, optimizer, _window(case)), model, optimizer)


def num_targets(labels: Tensor) -> int:
    """Count the labels `(B, T)` that are some token's next one: neither masked nor the first."""
    return int((labels[:, 1:] != -100).sum())


def loss_sum(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    """Add up the cross-entropies of all next tokens that are not masked."""
    logits = model(tokens)[:, :-1]
    targets = labels[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def _shifted_back(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    logits, targets = model(tokens)[:, 1:], labels[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def _unshifted(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), reduction="sum")


def _end_to_end(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    logits, targets = model(tokens).flatten(0, 1)[:-1], labels.flatten()[1:]
    return F.cross_entropy(logits, targets, reduction="sum")


def _judge(case: Case, result: Result) -> None:
    model, window = oracles.tiny_gpt(case["seed"]), _window(case)
    size = sum(parameter.numel() for parameter in model.parameters())
    demands.few_rows(result, case["sizes"])
    updates = demands.vectors(result.get("gradients"), size, "the gradients")
    if len(updates) != 1:
        raise CheckError(
            f"the optimizer made {len(updates)} updates, and a window is one update, made after "
            "its last micro-batch."
        )
    of_each = [oracles.gradient(loss_sum(model, *item), model) for item in window]
    total = sum(of_each, torch.zeros(size, dtype=torch.float64))
    count = sum(num_targets(labels) for _, labels in window)
    slips = _slips(model, window, of_each)
    demands.demand_gradient(updates[0], total / count, slips)
    losses = [loss_sum(model, *item).item() for item in window]
    means = [
        loss / max(1, num_targets(labels)) for loss, (_, labels) in zip(losses, window, strict=True)
    ]
    slip = {
        "it is the mean of the micro-batches' means.": sum(means) / len(means),
        "it is the sum over all tokens, and the mean is wanted.": sum(losses),
        "it is the last micro-batch's alone.": losses[-1] / count,
    }
    demands.demand_loss(result.get("returned"), sum(losses) / count, "", slip)
    optional = [len(labels) for _, labels in window if not num_targets(labels)]
    demands.same_rows(result, case["sizes"], optional)
    demands.same_switches(result)
    after = demands.one_vector(result.get("parameters"), size, "the parameters")
    if not oracles.is_close(
        after, oracles.vector(list(model.parameters())) - _RATE * total / count
    ):
        raise CheckError("the gradient is right, and something else changed the parameters.")


def _slips(
    model: nn.Module, window: Sequence[oracles.MicroBatch], of_each: Sequence[Tensor]
) -> dict[str, Tensor]:
    labels = [labels for _, labels in window]
    total = sum(of_each, torch.zeros_like(of_each[0]))
    counts = [num_targets(of_one) for of_one in labels]
    means = [g / max(1, n) for g, n in zip(of_each, counts, strict=True)]
    unmasked = sum(int((of_one != -100).sum()) for of_one in labels)
    unshifted = [oracles.gradient(_unshifted(model, *item), model) for item in window]
    joined = [oracles.gradient(_end_to_end(model, *item), model) for item in window]
    of_joined = sum(int((of_one.flatten()[1:] != -100).sum()) for of_one in labels)
    shifted = sum(of_one[:, 1:].numel() for of_one in labels)
    return _wrong_targets(model, window, sum(counts)) | {
        "each micro-batch counts the same, however many targets it has: divide each sum by the "
        "targets of the whole window.": sum(means, torch.zeros_like(total)) / len(window),
        "each micro-batch was divided by its own targets, and all were added up.": sum(
            means, torch.zeros_like(total)
        ),
        "the labels were counted before the shift. No token stands before the first of a row, so "
        "its label is nobody's target.": total / unmasked,
        "masked labels were counted: padding and prompts are tokens, and no targets.": (
            total / shifted
        ),
        "every position was counted, masked or not, the first of each row too.": (
            total / sum(of_one.numel() for of_one in labels)
        ),
        "the sum was divided by rows: the unit of this loss is the token.": (
            total / sum(len(of_one) for of_one in labels)
        ),
        "each token is asked to predict itself: the logits at a position are for the label one "
        "further on.": sum(unshifted, torch.zeros_like(total)) / unmasked,
        "the rows were put end to end before the shift, so the last token of each has to guess the "
        "first of the next: shift, then flatten.": sum(joined, torch.zeros_like(total)) / of_joined,
        "only the last micro-batch is in the gradient.": of_each[-1] / sum(counts),
        "what was handed over in .grad was added to the window: zero the gradients first.": (
            total / sum(counts) + 1
        ),
    }


def _wrong_targets(
    model: nn.Module, window: Sequence[oracles.MicroBatch], count: int
) -> dict[str, Tensor]:
    """Give gradients of sums over other targets, divided by their number and by the right one."""
    labels = [labels for _, labels in window]
    sums = {
        "the shift goes the wrong way, and each token has to guess the one before it.": (
            [oracles.gradient(_shifted_back(model, *item), model) for item in window],
            sum(int((of_one[:, :-1] != -100).sum()) for of_one in labels),
        ),
        "tokens were taken for targets: the labels are those tokens that count, and -100.": (
            [oracles.gradient(loss_sum(model, x, x), model) for x, _ in window],
            sum(of_one[:, 1:].numel() for of_one in labels),
        ),
    }
    slips = {}
    for words, (of_each, own_count) in sums.items():
        total = torch.stack(of_each).sum(0)
        slips[words] = total / own_count
        slips[f"{words} The count is right."] = total / count
    return slips


token_step = Check(
    name="lab06.token_step",
    exercise="6.3",
    passed="a mean over the window's targets: ragged, masked, shifted, none at all in one part",
    cases=_cases,
    run=_run,
    judge=_judge,
)
