"""The check of lab 06's rank step (6.6): ranks as threads of one process, their traffic counted."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from tutorial_lib import ranks
from tutorial_lib.checks import lab06_demands as demands
from tutorial_lib.checks import lab06_oracles as oracles
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.lab06_tokens import loss_sum, num_targets

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
    ]


def _windows(case: Case) -> list[list[oracles.MicroBatch]]:
    generator = torch.Generator().manual_seed(case["seed"])
    return [
        oracles.token_window(sizes, generator, range(9) if rank == case["masked"] else [])
        for rank, sizes in enumerate(case["sizes"])
    ]


def _run(answer: Callable[..., Any], case: Case) -> Result:
    windows = _windows(case)
    models = [oracles.tiny_gpt(case["seed"]) for _ in windows]
    entered: list[list[int]] = []

    def work(rank: int) -> dict[str, Any]:
        model = DistributedDataParallel(models[rank])
        optimizer = SGD(model.parameters(), lr=_RATE)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        entered.append(_count_entries(model))
        syncs: list[bool] = []  # of each forward through DDP, whether its backward will reduce
        model.register_forward_pre_hook(lambda *_: syncs.append(model.require_backward_grad_sync))
        options = {"loss_sum": loss_sum, "count_terms": lambda tokens, labels: num_targets(labels)}
        seen = oracles.observe(
            lambda: answer(model, optimizer, windows[rank], **options), models[rank], optimizer
        )
        return {**seen, "syncs": syncs}

    try:
        seen, traffic = ranks.in_threads(work, len(windows))
    except Exception as error:
        if "rank" in str(error) and "LeftAlone" in f"{type(error).__name__} {error}":
            size = sum(parameter.numel() for parameter in models[0].parameters())
            raise CheckError(
                f"{error}{_EXCHANGES if f'({size},)' in str(error) else ''}"
            ) from error
        raise
    calls = [[list(call) for call in of_rank.calls] for of_rank in traffic]
    return {"ranks": seen, "calls": calls, "used_no_sync": any(map(len, entered))}


def _count_entries(model: Any) -> list[int]:
    """Note each use of no_sync in a list."""
    uses: list[int] = []
    plain = model.no_sync

    def no_sync() -> Any:
        uses.append(1)
        return plain()

    model.no_sync = no_sync
    return uses


def _judge(case: Case, result: Result) -> None:
    seen, calls = result.get("ranks"), result.get("calls")
    num_ranks = len(case["sizes"])
    if not isinstance(seen, list) or len(seen) != num_ranks:
        raise CheckError("what the ranks did cannot be read.")
    model = oracles.tiny_gpt(case["seed"])
    size = sum(parameter.numel() for parameter in model.parameters())
    updates = []
    for rank, of_rank in enumerate(seen):
        demands.few_rows(of_rank, case["sizes"][rank])
        gradients = demands.vectors(of_rank.get("gradients"), size, "the gradients")
        if len(gradients) != 1:
            raise CheckError(f"rank {rank} made {len(gradients)} updates, and one is wanted.")
        updates.append(gradients[0])
    for rank, of_rank in enumerate(seen):
        used_no_sync = result.get("used_no_sync") is True
        _judge_traffic(case, rank, calls, of_rank.get("syncs"), model, used_no_sync=used_no_sync)
    wanted, slips, loss, local = _expected(case, model)
    _judge_agreement(updates, slips)
    demands.demand_gradient(updates[0], wanted, slips)
    for rank, of_rank in enumerate(seen):
        own = {
            "it is the part of this rank alone. Add up what the ranks have.": local[rank],
            "it is multiplied by the number of ranks.": loss * num_ranks,
            "it is divided by the number of ranks.": loss / num_ranks,
        }
        demands.demand_loss(of_rank.get("returned"), loss, f"rank {rank}: ", own)
        window = _windows(case)[rank]
        optional = [len(labels) for _, labels in window if not num_targets(labels)]
        demands.same_rows(of_rank, case["sizes"][rank], optional)
        demands.same_switches(of_rank)


def _judge_traffic(
    case: Case, rank: int, calls: Any, syncs: Any, model: nn.Module, *, used_no_sync: bool
) -> None:
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    sent, num_parts = sum(_large_calls(calls, rank)), len(case["sizes"][rank])
    if not isinstance(syncs, list):
        raise CheckError("what went through DistributedDataParallel cannot be read.")
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
        if by_ddp and used_no_sync:
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


def _expected(case: Case, model: nn.Module) -> tuple[Tensor, dict[str, Tensor], float, list[float]]:
    windows, num_ranks = _windows(case), len(case["sizes"])
    sums = [[oracles.gradient(loss_sum(model, *item), model) for item in w] for w in windows]
    of_rank = [sum(gs, torch.zeros_like(gs[0])) for gs in sums]
    counts = [sum(num_targets(labels) for _, labels in window) for window in windows]
    count = sum(counts)
    total = sum(of_rank, torch.zeros_like(of_rank[0]))
    own = sum(
        (g / max(1, n) for g, n in zip(of_rank, counts, strict=True)), torch.zeros_like(total)
    )
    slips = {
        f"it is 1/{num_ranks} of the whole batch's: DistributedDataParallel averages over the "
        "ranks, so each multiplies its loss by their number.": total / count / num_ranks,
        "each rank divided by its own targets: add the counts up over the ranks before the first "
        "backward.": own / num_ranks,
        "each rank divided by its own targets, and multiplied by the number of ranks besides: the "
        "count is that of all ranks.": own,
        "what was handed over in .grad was added to the window.": total / count + 1,
    }
    losses = [sum(loss_sum(model, *item).item() for item in window) / count for window in windows]
    first = sum((gs[0] for gs in sums), torch.zeros_like(total)) / count
    last = sum((gs[-1] for gs in sums), torch.zeros_like(total)) / count
    slips["only the last micro-batch is in the gradient: zero once, at the start."] = last
    slips["only the first micro-batch was reduced."] = first
    return total / count, slips, sum(losses), losses


def _judge_agreement(updates: Sequence[Tensor], slips: dict[str, Tensor]) -> None:
    for rank, update in enumerate(updates[1:], start=1):
        if not oracles.is_close(update, updates[0], 1e-9):
            raise CheckError(
                f"rank 0 and rank {rank} updated with different gradients, so from now on they "
                "are different models, and no error will ever say so: what is reduced has to be "
                "the whole window, with its last backward."
            )


rank_step = Check(
    name="lab06.rank_step",
    exercise="6.6",
    passed="two and three ranks as one batch, and the gradients cross once",
    cases=_cases,
    run=_run,
    judge=_judge,
)
