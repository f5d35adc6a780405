"""The check of 7.4, the second pass: backward from the cached gradients."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read

from . import given
from .expectations import draw_parts, expect_gradients, expect_runs, read_peaks, times_in
from .given import stages, towers

_PASSED = "the gradients of one large graph, from one small graph at a time"


def _cases(draw: Draw) -> Cases:
    case = {**draw_parts(draw), "saves_drift": True}
    yield from (case, {**case, "dropout": 0.3})


@check(given.push, _PASSED, _cases)
def push(case: Case, result: Result) -> None:
    expect.unchanged(result)
    expect_runs(result, case["sizes"])
    wanted = _one_backward(case, stages.gradients_to_push(case))
    seen = read.tensors(result["gradients"], len(wanted), "gradients")
    expect_gradients(seen, wanted, _faults(case, wanted), partial(_counted, case, seen))
    few, many = read_peaks(result)
    expect.fact(
        many <= 1.25 * few,
        f"with four times the micro-batches the peak went from {few} to {many} bytes: go backward "
        "from each before the next goes forward.",
    )


def _one_backward(case: Case, cached: Tensor, moment: Callable[[int], int] = int) -> list[Tensor]:
    """Go backward once, from all embeddings, each made in the moment with that number."""
    tower = towers.seeded_tower(case)
    embeddings = []
    for number, part in enumerate(towers.parts_of(case)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(case["seed"] + moment(number))
            embeddings.append(tower(part))
    torch.cat(embeddings).backward(cached)  # type: ignore[no-untyped-call]
    return [p.grad for p in tower.parameters() if p.grad is not None]


def _of_one(case: Case, number: int) -> list[Tensor]:
    """Return the addition of one micro-batch to the gradients."""
    parts = torch.split(stages.gradients_to_push(case), case["sizes"])
    alone = torch.cat([part * (place == number) for place, part in enumerate(parts)])
    return [gradient - 1 for gradient in _one_backward(case, alone)]


def _faults(case: Case, wanted: list[Tensor]) -> Faults:
    cached, number = stages.gradients_to_push(case), len(case["sizes"])
    backward = partial(_one_backward, case)
    as_ones, last_alone = backward(torch.ones_like(cached)), _of_one(case, number - 1)
    new_ones = [gradient - 1 for gradient in wanted]
    yield from {
        "the gradients were not used, as if each were 1: hand them to backward.": as_ones,
        "what the parameters had in .grad before is gone: backward adds to it, so clear "
        "nothing.": new_ones,
        "only the last micro-batch is in it: .grad was cleared, or set, in the loop.": last_alone,
        "every micro-batch was run in the first one's moment, and so with its dropout "
        "masks.": backward(cached, lambda i: 0),
        "the moments were entered from the last to the first, and the rows were not.": (
            backward(cached, lambda i: number - 1 - i)
        ),
        f"they are {number} times too small: they come from the loss of the whole batch, and its "
        "mean has been taken there.": [1 + gradient / number for gradient in new_ones],
    }.items()


def _counted(case: Case, seen: Sequence[Tensor | None]) -> str:
    """Describe gradients that none of the usual faults gives."""
    if case["dropout"]:
        return "the dropout masks are not those of the first pass: enter moments[i] around run i."
    of_each = [_of_one(case, number) for number in range(len(case["sizes"]))]
    times = times_in(seen, [[torch.ones_like(g) for g in of_each[0]], *of_each])
    if not times:
        return "row i of the gradients belongs to row i of the batch: split them as the batch is."
    return (
        f"what .grad held before counts {times[0]:.3g} times in them, and the micro-batches count "
        f"{', '.join(f'{n:.3g}' for n in times[1:])} times. Each counts once: the mean was taken "
        "in the loss, and backward wants the cached gradients as they are."
    )
