"""The check of lab 07's second pass (7.4): backward from the cached gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.checks import lab07_demands as demands
from tutorial_lib.checks import lab07_kept as kept
from tutorial_lib.checks import lab07_oracles as oracles
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.results import whole_number


def _push_cases(seed: int) -> list[Case]:
    case = oracles.case_of_parts(seed)
    return [
        {**case, "kind": "gradients"},
        {**case, "kind": "gradients", "dropout": 0.3},
        {**case, "kind": "peak"},
    ]


def _gradient_rows(case: Case, times: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(case["seed"] + 1)
    shape = (times * sum(case["sizes"]), case["features"])
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@contextlib.contextmanager
def _moment(case: Case, number: int, tower: oracles.CountingTower) -> Iterator[None]:
    """Seed by number; what autograd kept of `drift` is of no use once this is left."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case["seed"] + number)
        tower.drift.fill_(1)
        yield
    tower.drift.fill_(1)


def _handed(
    case: Case, times: int = 1
) -> tuple[_Fragile, list[Tensor], Tensor, list[Callable[[], Any]]]:
    """Make what an answer is handed: tower, micro-batches, gradients and moments."""
    tower = _Fragile(case).double()
    oracles.add_gradients(tower)
    parts = oracles.parts_of(case, times)
    moments: list[Callable[[], Any]] = [
        partial(_moment, case, number, tower) for number in range(len(parts))
    ]
    return tower, parts, _gradient_rows(case, times), moments


class _Fragile(oracles.CountingTower):
    """Saves its buffer for backward, which a moment changes in place when it is left."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(case["seed"])
        super().__init__(case)

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows) * self.drift


def _in_the_moment(answer: Callable[..., Any], handed: Sequence[Any]) -> None:
    try:
        answer(*handed)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        raise CheckError(
            "backward ran after its moment was left, and found a buffer that had been put back in "
            "between: forward and backward of a micro-batch both belong inside the moment."
        ) from error


def _run_push(answer: Callable[..., Any], case: Case) -> Result:
    with oracles.without_torchs():
        if case["kind"] == "peak":
            return {name: _peak(answer, case, times) for name, times in (("few", 1), ("many", 4))}
        handed = _handed(case)
        tower, parts, rows, _ = handed
        before = kept.note([tower], [*parts, rows])
        _in_the_moment(answer, handed)
        after = kept.note([tower], [*parts, rows])
    return {
        "gradients": oracles.gradients_of([tower]),
        "changed": kept.changed(before, after, but=["gradients", "random state"]),
        "runs": tower.runs,
    }


def _peak(answer: Callable[..., Any], case: Case, times: int) -> int:
    handed = _handed(case, times)
    return oracles.peak_of(partial(_in_the_moment, answer, handed), [handed[0]])


def _pushed(
    case: Case, gradient: Tensor, moment: Callable[[int], int] = int
) -> list[Tensor | None]:
    """Go backward once, from all embeddings, each made in the moment with that number."""
    tower = _Fragile(case).double()
    oracles.add_gradients(tower)
    embeddings = []
    for number, part in enumerate(oracles.parts_of(case)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(case["seed"] + moment(number))
            embeddings.append(tower(part))
    torch.cat(embeddings).backward(gradient)  # type: ignore[no-untyped-call]
    return oracles.gradients_of([tower])


def _judge_push(case: Case, result: Result) -> None:
    if case["kind"] == "peak":
        few, many = (whole_number(result.get(name), f"peak of {name}") for name in ("few", "many"))
        if many > 1.25 * few:
            raise CheckError(
                f"with four times the micro-batches the peak went from {few} to {many} bytes: go "
                "backward from each before the next goes forward."
            )
        return
    kept.demand_kept(result)
    runs = result.get("runs", [])
    demands.demand_sizes(runs, case["sizes"], in_order=False)
    demands.demand_training_mode(runs)
    rows = _gradient_rows(case)
    exact = _pushed(case, rows)
    number, only_new = len(case["sizes"]), _minus_one
    last = torch.cat([torch.zeros_like(rows[: -case["sizes"][-1]]), rows[-case["sizes"][-1] :]])
    mistakes: dict[str, Callable[[], Sequence[Tensor | None]]] = {
        "the gradients were not used, as if each were 1: hand them to backward.": (
            lambda: _pushed(case, torch.ones_like(rows))
        ),
        "what the parameters had in .grad before is gone: backward adds to it, so clear nothing.": (
            lambda: only_new(exact)
        ),
        "only the last micro-batch is in it: .grad was cleared, or set, in the loop.": (
            lambda: only_new(_pushed(case, last))
        ),
        "every micro-batch was run in the first one's moment, and so with its dropout masks.": (
            lambda: _pushed(case, rows, lambda i: 0)
        ),
        "the moments were entered from the last to the first, and the rows were not.": (
            lambda: _pushed(case, rows, lambda i: number - 1 - i)
        ),
        f"they are {number} times too small: they come from the loss of the whole batch, and its "
        "mean has been taken there.": (lambda: [_over(g, number) for g in exact]),
    }
    demands.demand_close(result, exact, case, mistakes, partial(_told, case))


def _told(case: Case, seen: Sequence[Tensor | None]) -> str:
    """Tell what is wrong with gradients that are none of the usual mistakes'."""
    if case["dropout"]:
        return "the dropout masks are not those of the first pass: enter moments[i] around run i."
    rows = _gradient_rows(case)
    of_each = torch.eye(len(case["sizes"]), dtype=torch.float64).repeat_interleave(
        torch.tensor(case["sizes"]), dim=1
    )
    alone = [_minus_one(_pushed(case, rows * mask[:, None])) for mask in of_each]
    before = [None if g is None else torch.ones_like(g) for g in alone[0]]
    times = demands.times_in(seen, [before, *alone])
    if times is None:
        return "row i of the gradients belongs to row i of the batch: split them as the batch is."
    return (
        f"what .grad held before counts {times[0]:.3g} times in them, and the micro-batches count "
        f"{', '.join(f'{n:.3g}' for n in times[1:])} times. Each counts once: the mean was taken "
        "in the loss, and backward wants the cached gradients as they are."
    )


def _minus_one(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [None if g is None else g - 1 for g in gradients]


def _over(gradient: Tensor | None, number: int) -> Tensor | None:
    return None if gradient is None else (gradient - 1) / number + 1


push = Check(
    name="lab07.push",
    exercise="7.4",
    passed="the gradients of one large graph, from one small graph at a time",
    cases=_push_cases,
    run=_run_push,
    judge=_judge_push,
)
