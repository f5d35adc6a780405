"""The check of 6.2, an epoch: equal and ragged micro-batches, and the last window."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.given import exam, observe
from tutorial_lib.checks.lab06 import models
from tutorial_lib.checks.vocabulary import accumulation, expect, read

_RATE = 0.1
_EXAM_PARTS = 16  # micro-batches of its one window


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    size, num = draw.randint(3, 5), draw.randint(3, 4)
    equal = [size] * (2 * num + 1) + [draw.randint(1, size - 1)]  # two short of a window
    ragged = [draw.randint(1, 7) for _ in range(5)] + [9, 2]
    drawn = {"seed": draw.randrange(10**6), "kind": "gradients", "again": False}
    return [
        {**drawn, "sizes": equal, "num": num},
        {**drawn, "sizes": ragged, "num": 3},
        {**drawn, "sizes": [6] * 6, "num": 6, "kind": "peak"},
        {**drawn, "sizes": [4, 2], "num": 5, "again": True},  # less than one window
    ]


def _micro_batches(case: Case) -> list[models.MicroBatch]:
    return models.image_window(case["sizes"], torch.Generator().manual_seed(case["seed"]))


class _Reader:
    """Hands micro-batches out one by one, as a loader does, and notes how far it was read ahead."""

    def __init__(self, items: list[models.MicroBatch], rows: list[int]) -> None:
        self.items, self.rows, self.taken, self.ahead = items, rows, 0, 0

    def __iter__(self) -> Iterator[models.MicroBatch]:
        if self.taken:
            raise CheckError(
                "micro_batches was begun a second time, and a list or a loader then begins with "
                "its first micro-batch again: call iter once, before the loop."
            )
        for item in self.items:
            self.taken += 1
            self.ahead = max(self.ahead, self.taken - len(self.rows))
            yield item


def _run(answer: Callable[..., Any], case: Case) -> Result:
    model = models.tiny_vit(case["seed"])
    optimizer = SGD(model.parameters(), lr=_RATE)
    observe.fill_gradients(model)  # what another loop has left
    with observe.rows_seen(model) as rows:
        reader = _Reader(_micro_batches(case), rows)
        given = reader if case["again"] else iter(reader)
        call = lambda: answer(model, optimizer, given, case["num"])  # noqa: E731
        seen = models.train(call, model, optimizer)
    return {**seen, "ahead": reader.ahead}


class _Oracle:
    def __init__(self, case: Case) -> None:
        self.case, items, num = case, _micro_batches(case), case["num"]
        self.windows = [items[at : at + num] for at in range(0, len(items), num)]

    @cached_property
    def updates(self) -> tuple[list[accumulation.Window], list[accumulation.Window], Tensor]:
        """Gradients and losses of each window, and the parameters after the last update."""
        model, gradients, losses = models.tiny_vit(self.case["seed"]), [], []
        for window in self.windows:
            of_gradients, of_losses = models.image_sums(model, window)
            gradients.append(of_gradients)
            losses.append(of_losses)
            models.move(model, -_RATE * of_gradients.mean)
        return gradients, losses, observe.parameter_vector(model)


def _judge(case: Case, result: Result, oracle: _Oracle) -> None:
    accumulation.expect_rows_at_most(result, case["sizes"])
    _judge_updates(case, result, oracle)
    accumulation.expect_each_once(result, case["sizes"])
    losses = oracle.updates[1]
    seen = read.items(result.get("returned"), "the losses")
    if len(seen) != len(losses):
        raise CheckError(f"a list of {len(losses)} losses is wanted, one for each update.")
    for turn, (loss, window) in enumerate(zip(seen, losses, strict=True), start=1):
        expect.loss(loss, window.mean, _loss_faults(window), where=f"update {turn}: ")
    expect.unchanged(result)
    ahead = read.integer(result.get("ahead"), "ahead")
    if ahead > case["num"]:
        raise CheckError(
            f"{ahead} micro-batches were read before the model had seen the first of them, and a "
            f"window has {case['num']}: an epoch does not fit into memory, read a window at a time."
        )
    if case["kind"] == "peak":
        model, first = models.tiny_vit(case["seed"]), oracle.windows[0]
        accumulation.expect_one_graph(
            result, models.peak_allowed(model, first, models.image_loss_sum)
        )


def _loss_faults(losses: accumulation.Window) -> expect.Faults:
    yield accumulation.MEAN_OF_MEANS, losses.mean_of_means
    yield accumulation.SUM_OF_MEANS, losses.sum_of_means
    yield "it is that of the last micro-batch.", losses.sums[-1] / losses.counts[-1]


def _judge_updates(case: Case, result: Result, oracle: _Oracle) -> None:
    gradients, _, parameters = oracle.updates
    seen = read.vectors(result.get("gradients"), len(parameters), "the gradients")
    if seen and not expect.is_close(seen[0], gradients[0].mean):
        _judge_length(case, seen[0], gradients[0])
    if len(seen) != len(gradients):
        advice = "update once a window, after its last micro-batch."
        if len(seen) < len(gradients):
            short = gradients[-1].counts
            advice = f"the last one has {len(short)} of {case['num']} micro-batches, and counts."
        raise CheckError(
            f"the optimizer made {len(seen)} updates, and there are {len(gradients)} windows: "
            f"{advice}"
        )
    old = torch.ones_like(parameters)
    for turn, (window, update) in enumerate(zip(gradients, seen, strict=True), start=1):
        where = f"window {turn} of {len(gradients)}: "
        accumulation.expect_gradient(update, window.mean, _faults(case, window, old), where)
        old = window.mean
    after = read.vector(result.get("parameters"), len(parameters), "the parameters")
    if not expect.is_close(after, parameters):
        raise CheckError("the gradients are right, and something else changed the parameters.")


def _faults(case: Case, window: accumulation.Window, old: Tensor) -> expect.Faults:
    yield from accumulation.faults(window, "images")
    yield (
        f"the sum was divided by the {case['num']} micro-batches that were asked for, and this "
        f"window has {len(window.counts)} of {window.counts} images.",
        window.sum_of_means / case["num"],
    )
    yield (
        "what the window before left in .grad was added to the window: zero the gradients before "
        "its first backward.",
        window.mean + old,
    )


def _judge_length(case: Case, seen: Tensor, right: accumulation.Window) -> None:
    """Tell from the first update how many micro-batches were taken for a window."""
    model, items = models.tiny_vit(case["seed"]), _micro_batches(case)
    each, _ = models.image_sums(model, items)
    for num in range(1, len(items) + 1):
        taken = accumulation.Window(each.sums[:num], each.counts[:num])
        if num != len(right.sums) and expect.is_close(seen, taken.mean):
            raise CheckError(
                f"the first update has {num} of the micro-batches in it, and a window has "
                f"{case['num']}: update once a window, after its last micro-batch."
            )


def _one_window(
    answer: Callable[..., Any], chain: exam.Chain, optimizer: Optimizer, rows: Tensor
) -> None:
    parts = rows.tensor_split(_EXAM_PARTS)
    answer(chain, optimizer, ((part, part) for part in parts), _EXAM_PARTS)


train_epoch = Check(
    "lab06.train_epoch",
    "6.2",
    "every window is one batch, ragged or short, and no more than a micro-batch in memory",
    _cases,
    _run,
    _judge,
    oracle=_Oracle,
    exam=exam.of_update(_one_window),
)
