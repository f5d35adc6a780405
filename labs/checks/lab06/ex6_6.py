"""The check of 6.6: ranks as threads of one process, their traffic counted."""

from collections.abc import Sequence
from itertools import dropwhile
from typing import Any

from tutorial_lib.checks.given import CheckError, observe
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, accumulation, check, expect
from tutorial_lib.checks.vocabulary.exercise import Seen
from tutorial_lib.checks.vocabulary.read import items, records

from . import given, right_sums
from .given import models, steps

_PASSED = "two and three ranks train like one batch, and send their gradients once"
_SMALL = 1024  # bytes: counts and losses, and no gradient


def _cases(draw: Draw) -> Cases:
    drawn = {"seed": draw.randrange(10**6), "masked": -1}

    def sizes(*lengths: int) -> list[list[int]]:
        return [[draw.randint(1, 4) for _ in range(length)] for length in lengths]

    yield {**drawn, "sizes": sizes(4, 4)}
    yield {**drawn, "sizes": sizes(3, 1, 4)}  # windows of different lengths
    yield {**drawn, "sizes": sizes(2, 2), "masked": 1}  # a rank without a target
    yield {**drawn, "sizes": [models.MANY, models.MANY]}


class _Oracle:
    """The windows of all ranks as one."""

    def __init__(self, case: Case) -> None:
        model, of_ranks = models.tiny_gpt(case["seed"]), steps.rank_windows_of(case)
        self.size = len(observe.parameter_vector(model))
        self.allowed = right_sums.peak_allowed(model, of_ranks[0], models.token_loss_sum)
        self.num_bytes = sum(parameter.nbytes for parameter in model.parameters())
        sums = [right_sums.token_sums(model, window) for window in of_ranks]
        self.gradients, self.losses = map(list, zip(*sums, strict=True))
        # of all ranks: one micro-batch a rank
        self.ranks = _joined(self.gradients)
        self.optional = [right_sums.without_targets(window) for window in of_ranks]

    def faults(self) -> expect.Faults:
        """Yield each fault, and a rank's update by it."""
        ranks, of_each = self.ranks, self.gradients
        num = len(of_each)
        yield from {
            f"it is 1/{num} of the whole batch's: DistributedDataParallel averages over the ranks, "
            "so each multiplies its loss by their number.": ranks.mean / num,
            "each rank divided by its own targets: add the counts up over the ranks before the "
            "first backward.": ranks.mean_of_means,
            "each rank divided by its own targets, then multiplied by the number of ranks: divide "
            "by the count of all ranks.": ranks.sum_of_means,
            "the .grad from before your call was added to the window.": ranks.mean + 1,
        }.items()
        first_alone = "only the first micro-batch was reduced."
        for words, place in ((accumulation.LAST_ALONE, -1), (first_alone, 0)):
            yield words, sum(window.sums[place] for window in of_each) / ranks.count


def _joined(each: Sequence[accumulation.Window]) -> accumulation.Window:
    return accumulation.Window([w.total for w in each], [w.count for w in each])


@check(given.rank_step, _PASSED, _cases, oracle=_Oracle)
def rank_step(case: Case, result: Result, oracle: _Oracle) -> None:
    num_ranks = len(case["sizes"])
    seen = [*map(Seen, records(result["ranks"], "what the ranks did", num_ranks))]
    updates = []
    for rank, of_rank in enumerate(seen):
        accumulation.expect_rows_at_most(of_rank, case["sizes"][rank])
        words = f"rank {rank} made {{}} updates instead of one."
        updates.append(right_sums.only_update(of_rank, oracle.size, words))
    for rank, of_rank in enumerate(seen):
        _judge_traffic(case, rank, result, of_rank["syncs"], oracle.num_bytes)
    for rank, update in enumerate(updates[1:], start=1):
        expect.fact(
            expect.is_close(update, updates[0], 1e-9),
            f"rank 0 and rank {rank} updated with different gradients, so from now on they are "
            "different models, without any error: reduce the gradient of the whole "
            "window, in its last backward.",
        )
    accumulation.expect_gradient(updates[0], oracle.ranks.mean, oracle.faults())
    losses = _joined(oracle.losses)
    for rank, of_rank in enumerate(seen):
        alone = losses.sums[rank] / losses.count
        faults = {
            "it is only this rank's part. Add up the parts of all ranks.": alone,
            "it is multiplied by the number of ranks.": losses.mean * num_ranks,
            "it is divided by the number of ranks.": losses.mean / num_ranks,
        }
        with expect.about(f"rank {rank}: "):
            expect.loss(of_rank["returned"], losses.mean, faults.items())
            accumulation.expect_each_once(of_rank, case["sizes"][rank], oracle.optional[rank])
            if models.MANY in case["sizes"]:
                accumulation.expect_one_graph(of_rank, oracle.allowed)
            expect.unchanged(of_rank)


def _judge_traffic(case: Case, rank: int, result: Result, syncs: Any, num_bytes: int) -> None:
    sent, num_parts = _bytes_sent(result["calls"], rank), len(case["sizes"][rank])
    through_ddp = items(syncs, "what went through DistributedDataParallel")
    if 0 <= sent - num_bytes <= _SMALL:
        return
    by_ddp = num_bytes * sum(map(bool, through_ddp))
    advice = "once is enough: all but the last micro-batch run under model.no_sync()."
    if by_ddp and result["used_no_sync"] is True:
        advice = "no_sync changed nothing, since DDP decides in forward: run forward inside, too."
    reduced = f"rank {rank} reduced {sent} bytes of gradients, and"
    faults = {
        "the gradients stayed on each rank, since model.module doesn't know about ranks: run the "
        "last micro-batch through the DistributedDataParallel itself.": sent <= _SMALL
        and not through_ddp,
        "no gradient was ever reduced: the last micro-batch, its forward too, must run outside of "
        "no_sync.": sent <= _SMALL,
        f"{reduced} only {by_ddp} by the backward of DistributedDataParallel: don't reduce by hand "
        "what it has averaged.": by_ddp > 0 and sent - by_ddp > _SMALL,
        f"rank {rank} reduced its gradients in each of {num_parts} micro-batches, and "
        f"{advice}": sent >= num_bytes * num_parts,
        f"{reduced} the parameters have {num_bytes}: run all but the last under no_sync.": True,
    }
    expect.no_fault(faults)


def _bytes_sent(calls: Any, rank: int) -> int:
    """Add up the bytes a rank sent, without the comparisons of a new DistributedDataParallel."""
    try:
        begun = dropwhile(lambda call: call[0] in ("all_gather", "broadcast"), calls[rank])
        return sum(num_bytes for _, num_bytes in begun)
    except (TypeError, ValueError, IndexError, KeyError):
        raise CheckError("the collectives of the ranks cannot be read.") from None
