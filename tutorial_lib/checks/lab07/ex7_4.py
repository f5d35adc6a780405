"""The check of 7.4, the second pass: backward from the cached gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.given import observe, surroundings
from tutorial_lib.checks.lab07 import models
from tutorial_lib.checks.lab07.expectations import expect_gradients, expect_runs, times_in
from tutorial_lib.checks.vocabulary import expect, read


def _cases(seed: int) -> list[Case]:
    case = models.case_of_parts(seed)
    return [case, {**case, "dropout": 0.3}]


class _BufferSavingTower(models.CountingTower):
    """Saves its buffer for backward, which a moment changes in place when it is left."""

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows) * self.drift


def _handed(case: Case, times: int = 1) -> tuple[Any, ...]:
    """Make what an answer is handed: tower, micro-batches, gradients and moments."""
    tower, parts = models.seeded_tower(case, _BufferSavingTower), models.parts_of(case, times)
    moments = [partial(_moment, case, number, tower) for number in range(len(parts))]
    return tower, parts, _cached_gradients(case, times), moments


def _cached_gradients(case: Case, times: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(case["seed"] + 1)
    shape = (times * sum(case["sizes"]), case["features"])
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@contextlib.contextmanager
def _moment(case: Case, number: int, tower: models.CountingTower) -> Iterator[None]:
    """Seed by number; what autograd kept of `drift` is of no use once this is left."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case["seed"] + number)
        tower.drift.fill_(1)
        yield
    tower.drift.fill_(1)


def _call(answer: Callable[..., Any], handed: Sequence[Any]) -> None:
    try:
        answer(*handed)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        raise CheckError(
            "backward ran after its moment was left, and found a buffer that had been put back in "
            "between: forward and backward of a micro-batch both belong inside the moment."
        ) from error


def _run(answer: Callable[..., Any], case: Case) -> Result:
    tower, parts, cached, _ = handed = _handed(case)
    but = ["gradients", "random state"]
    with surroundings.watched(tower, [*parts, cached], but=but) as changed:
        _call(answer, handed)
    peaks = {}
    for name, times in models.TIMES.items():
        more = _handed(case, times)
        peaks[name] = observe.peak_above(partial(_call, answer, more), more[0])[0]
    return {
        **peaks,
        "gradients": observe.gradients_of(tower),
        "changed": changed,
        "rows": tower.rows_seen,
        "was_evaluated": tower.was_evaluated,
    }


def _judge(case: Case, result: Result) -> None:
    expect.unchanged(result)
    expect_runs(result, case["sizes"])
    wanted = _one_backward(case, _cached_gradients(case))
    seen = read.tensors(result.get("gradients"), len(wanted), "gradients")
    expect_gradients(seen, wanted, case, _faults(case, wanted), partial(_counted, case, seen))
    few, many = (read.integer(result.get(name), f"peak of {name}") for name in models.TIMES)
    if many > 1.25 * few:
        raise CheckError(
            f"with four times the micro-batches the peak went from {few} to {many} bytes: go "
            "backward from each before the next goes forward."
        )


def _one_backward(case: Case, cached: Tensor, moment: Callable[[int], int] = int) -> list[Tensor]:
    """Go backward once, from all embeddings, each made in the moment with that number."""
    tower = models.seeded_tower(case, _BufferSavingTower)
    embeddings = []
    for number, part in enumerate(models.parts_of(case)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(case["seed"] + moment(number))
            embeddings.append(tower(part))
    torch.cat(embeddings).backward(cached)  # type: ignore[no-untyped-call]
    return [p.grad for p in tower.parameters() if p.grad is not None]


def _of_one(case: Case, number: int) -> list[Tensor]:
    """Give what one micro-batch adds to the gradients."""
    parts = torch.split(_cached_gradients(case), case["sizes"])
    alone = torch.cat([part * (place == number) for place, part in enumerate(parts)])
    return [gradient - 1 for gradient in _one_backward(case, alone)]


def _faults(case: Case, wanted: list[Tensor]) -> expect.Faults:
    cached, number = _cached_gradients(case), len(case["sizes"])
    yield from {
        "the gradients were not used, as if each were 1: hand them to backward.": (
            _one_backward(case, torch.ones_like(cached))
        ),
        "what the parameters had in .grad before is gone: backward adds to it, so clear nothing.": (
            [gradient - 1 for gradient in wanted]
        ),
        "only the last micro-batch is in it: .grad was cleared, or set, in the loop.": (
            _of_one(case, number - 1)
        ),
        "every micro-batch was run in the first one's moment, and so with its dropout masks.": (
            _one_backward(case, cached, lambda i: 0)
        ),
        "the moments were entered from the last to the first, and the rows were not.": (
            _one_backward(case, cached, lambda i: number - 1 - i)
        ),
        f"they are {number} times too small: they come from the loss of the whole batch, and its "
        "mean has been taken there.": [(gradient - 1) / number + 1 for gradient in wanted],
    }.items()


def _counted(case: Case, seen: Sequence[Tensor | None]) -> str:
    """Tell what is wrong with gradients that none of the usual faults gives."""
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


push = Check(
    "lab07.push",
    "7.4",
    "the gradients of one large graph, from one small graph at a time",
    _cases,
    _run,
    _judge,
    forbidden=[models.NO_CHECKPOINT],
)
