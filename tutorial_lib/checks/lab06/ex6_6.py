"""The check of 6.6: ranks as threads of one process, their traffic counted."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.given import observe
from tutorial_lib.checks.lab06 import models
from tutorial_lib.checks.lab06.models import num_targets, token_loss_sum
from tutorial_lib.checks.vocabulary import accumulation, expect, read
from tutorial_lib.instruments import ranks

_RATE = 0.1
_SMALL = 64  # bytes: a count and a loss, and no gradient

_EXCHANGES = (
    " The last backward of a window is such a call too: does every rank make it, whatever it has?"
)


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    drawn = {"seed": draw.randrange(10**6), "masked": -1}

    def sizes(num: int) -> list[int]:
        return [draw.randint(1, 4) for _ in range(num)]

    return [
        {**drawn, "sizes": [sizes(4), sizes(4)]},
        {**drawn, "sizes": [sizes(3), sizes(1), sizes(4)]},  # windows of different lengths
        {**drawn, "sizes": [sizes(2), sizes(2)], "masked": 1},  # a rank without a target
        {**drawn, "sizes": [models.MANY, models.MANY]},
    ]


def _windows(case: Case) -> list[list[models.MicroBatch]]:
    generator = torch.Generator().manual_seed(case["seed"])
    return [
        models.token_window(sizes, generator, range(9) if rank == case["masked"] else [])
        for rank, sizes in enumerate(case["sizes"])
    ]


def _run(answer: Callable[..., Any], case: Case) -> Result:
    windows = _windows(case)
    replicas = [models.tiny_gpt(case["seed"]) for _ in windows]
    entries: list[mock.Mock] = []  # into no_sync

    def work(rank: int) -> dict[str, Any]:
        model = DistributedDataParallel(replicas[rank])
        optimizer = SGD(model.parameters(), lr=_RATE)
        observe.fill_gradients(model)
        entries.append(mock.Mock(wraps=model.no_sync))
        model.no_sync = entries[-1]  # type: ignore[method-assign]
        syncs: list[bool] = []  # of each forward through DDP, whether its backward will reduce
        model.register_forward_pre_hook(lambda *_: syncs.append(model.require_backward_grad_sync))
        options = {"loss_sum": token_loss_sum, "count_terms": num_targets}
        seen = models.train(
            lambda: answer(model, optimizer, windows[rank], **options), replicas[rank], optimizer
        )
        return {**seen, "syncs": syncs}

    try:
        seen, traffic = ranks.in_threads(work, len(windows))
    except Exception as error:
        if "rank" in str(error) and "LeftAlone" in f"{type(error).__name__} {error}":
            size = sum(parameter.numel() for parameter in replicas[0].parameters())
            raise CheckError(
                f"{error}{_EXCHANGES if f'({size},)' in str(error) else ''}"
            ) from error
        raise
    calls = [[list(call) for call in of_rank.calls] for of_rank in traffic]
    return {"ranks": seen, "calls": calls, "used_no_sync": any(entry.called for entry in entries)}


class _Oracle:
    """The windows of all ranks as one."""

    def __init__(self, case: Case) -> None:
        model, windows = models.tiny_gpt(case["seed"]), _windows(case)
        self.size = len(observe.parameter_vector(model))
        self.allowed = models.peak_allowed(model, windows[0], token_loss_sum)
        self.num_bytes = sum(parameter.nbytes for parameter in model.parameters())
        sums = [models.token_sums(model, window) for window in windows]
        self.gradients, self.losses = map(list, zip(*sums, strict=True))
        # of all ranks: one micro-batch a rank
        self.ranks = _joined(self.gradients)
        self.optional = [
            [len(part[0]) for part in window if not num_targets(*part)] for window in windows
        ]

    def faults(self) -> expect.Faults:
        """Give what a rank's update is by each fault."""
        ranks, of_each = self.ranks, self.gradients
        num = len(of_each)
        yield (
            f"it is 1/{num} of the whole batch's: DistributedDataParallel averages over the ranks, "
            "so each multiplies its loss by their number.",
            ranks.mean / num,
        )
        yield (
            "each rank divided by its own targets: add the counts up over the ranks before the "
            "first backward.",
            ranks.mean_of_means,
        )
        yield (
            "each rank divided by its own targets, and multiplied by the number of ranks besides: "
            "the count is that of all ranks.",
            ranks.sum_of_means,
        )
        yield "what was handed over in .grad was added to the window.", ranks.mean + 1
        for words, place in ((accumulation.LAST_ALONE, -1), (_FIRST_ALONE, 0)):
            yield words, sum(window.sums[place] for window in of_each) / ranks.count


_FIRST_ALONE = "only the first micro-batch was reduced."


def _joined(windows: Sequence[accumulation.Window]) -> accumulation.Window:
    return accumulation.Window([w.total for w in windows], [w.count for w in windows])


def _judge(case: Case, result: Result, oracle: _Oracle) -> None:
    num_ranks = len(case["sizes"])
    seen = read.records(result.get("ranks"), "what the ranks did", num_ranks)
    updates = []
    for rank, of_rank in enumerate(seen):
        accumulation.expect_rows_at_most(of_rank, case["sizes"][rank])
        gradients = read.vectors(of_rank.get("gradients"), oracle.size, "the gradients")
        if len(gradients) != 1:
            raise CheckError(f"rank {rank} made {len(gradients)} updates, and one is wanted.")
        updates += gradients
    for rank, of_rank in enumerate(seen):
        _judge_traffic(case, rank, result, of_rank.get("syncs"), oracle.num_bytes)
    for rank, update in enumerate(updates[1:], start=1):
        if not expect.is_close(update, updates[0], 1e-9):
            raise CheckError(
                f"rank 0 and rank {rank} updated with different gradients, so from now on they "
                "are different models, and no error will ever say so: what is reduced has to be "
                "the whole window, with its last backward."
            )
    accumulation.expect_gradient(updates[0], oracle.ranks.mean, oracle.faults())
    losses = _joined(oracle.losses)
    for rank, of_rank in enumerate(seen):
        faults = [
            (
                "it is the part of this rank alone. Add up what the ranks have.",
                losses.sums[rank] / losses.count,
            ),
            ("it is multiplied by the number of ranks.", losses.mean * num_ranks),
            ("it is divided by the number of ranks.", losses.mean / num_ranks),
        ]
        expect.loss(of_rank.get("returned"), losses.mean, faults, where=f"rank {rank}: ")
        accumulation.expect_each_once(of_rank, case["sizes"][rank], oracle.optional[rank])
        if models.MANY in case["sizes"]:
            accumulation.expect_one_graph(of_rank, oracle.allowed, f"rank {rank}: ")
        expect.unchanged(of_rank)


def _judge_traffic(case: Case, rank: int, result: Result, syncs: Any, num_bytes: int) -> None:
    sent, num_parts = sum(_large_calls(result.get("calls"), rank)), len(case["sizes"][rank])
    syncs = read.items(syncs, "what went through DistributedDataParallel")
    if 0 <= sent - num_bytes <= _SMALL:
        return
    if not sent and not syncs:
        raise CheckError(
            "the gradients stayed on each rank, for model.module knows nothing of ranks: the last "
            "micro-batch has to go through the DistributedDataParallel itself."
        )
    if not sent:
        raise CheckError(
            "no gradient was ever reduced: the last micro-batch, its forward too, must run "
            "outside of no_sync."
        )
    by_ddp = num_bytes * sum(map(bool, syncs))
    if by_ddp and sent - by_ddp > _SMALL:
        raise CheckError(
            f"rank {rank} reduced {sent} bytes of gradients, and only {by_ddp} by the backward of "
            "DistributedDataParallel: what it has averaged needs no reducing by hand."
        )
    if sent >= num_bytes * num_parts:
        advice = "once is enough: all but the last micro-batch run under model.no_sync()."
        if by_ddp and result.get("used_no_sync") is True:
            advice = (
                "no_sync changed nothing. Whether a backward will reduce is decided in "
                "forward: no_sync has to be around both."
            )
        raise CheckError(
            f"rank {rank} reduced its gradients in each of {num_parts} micro-batches, and {advice}"
        )
    raise CheckError(
        f"rank {rank} reduced {sent} bytes of gradients, and the parameters have "
        f"{num_bytes}: all but the last micro-batch run under no_sync."
    )


def _large_calls(calls: Any, rank: int) -> list[int]:
    try:
        return [n for name, n in calls[rank] if name == "all_reduce" and n > _SMALL]
    except (TypeError, ValueError, IndexError, KeyError):
        raise CheckError("the collectives of the ranks cannot be read.") from None


rank_step = Check(
    "lab06.rank_step",
    "6.6",
    "two and three ranks as one batch, and the gradients cross once",
    _cases,
    _run,
    _judge,
    oracle=_Oracle,
)
