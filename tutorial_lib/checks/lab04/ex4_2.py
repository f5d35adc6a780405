"""The check of 4.2: a tree run on real layers with PyTorch's checkpoint."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib import plan
from tutorial_lib.checks import exam, expect, observe, read
from tutorial_lib.checks.core import Case, Check, CheckError, Result, plain
from tutorial_lib.checks.lab04 import models
from tutorial_lib.plan.simulate import Tree

_TOLERANCE = 0.03
_TREES = (
    (0, 1, 2, 3, 4, 5, 6, 7),
    ((0, 1, 2), (3, 4), 5, 6, 7),
    (((0,), 1, 2), 3, ((4, 5), 6), 7),
    ((((0,), 1), 2), (3,), (4, 5, 6), 7),
)


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    middles = sorted((draw.choice([128, 160, 192, 224]) for _ in range(8)), reverse=True)
    case = {"seed": draw.randrange(10**6), "width": 16, "middles": middles}
    case["rows"] = draw.choice([448, 512])
    return [{**case, "tree": tree} for tree in _as_lists(_TREES)]


def _as_lists(tree: Any) -> Any:
    return [_as_lists(item) if isinstance(item, tuple) else item for item in tree]


class Planned:
    """What a case's tree gives: gradients of the plain layers, counts and peak on paper."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.tree: Tree = models.read_tree(case["tree"], len(case["middles"]))

    @cached_property
    def plain(self) -> tuple[float, list[Tensor | None]]:
        """Loss and gradients of the layers without any checkpoint."""
        layers, rows = models.make_layers(self.case), models.make_rows(self.case)
        loss = layers(rows)
        loss.backward()
        return loss.item(), observe.gradients_of(layers)

    @cached_property
    def simulation(self) -> plan.Simulation:
        """The tree on paper."""
        layers, rows = models.make_layers(self.case), models.make_rows(self.case)
        return plan.simulate(models.chain_of(layers, rows), self.tree)


def _run(answer: Callable[..., Any], case: Case) -> Result:
    layers, rows = models.make_layers(case), models.make_rows(case)
    tree = models.read_tree(case["tree"], len(layers))
    runs = [0] * len(layers)

    def count(index: int) -> Callable[..., None]:
        def note(*_: Any) -> None:
            runs[index] += 1

        return note

    handles = [layer.register_forward_pre_hook(count(i)) for i, layer in enumerate(layers)]
    loss = answer(layers, tree, rows)
    if not isinstance(loss, Tensor):
        raise CheckError(f"a tensor is wanted, and {type(loss).__name__} came: return x.")
    has_graph, value = loss.requires_grad, float(loss.detach())
    said = observe.error_said(loss.backward) if has_graph else ""
    # a copy: the second step adds to the same gradients
    gradients = plain(observe.gradients_of(layers))
    del loss
    for handle in handles:
        handle.remove()
    is_wrong = bool(said) or gradients[0] is None
    peak = 0 if is_wrong else _peak(answer, layers, tree, rows)
    return {"said": said, "loss": value, "gradients": gradients, "runs": runs, "peak": peak}


def _peak(answer: Callable[..., Any], layers: nn.Sequential, tree: Tree, rows: Tensor) -> int:
    """Count a second step, whose gradients are there already."""
    return observe.peak_above(lambda: answer(layers, tree, rows).backward(), layers)[0]


def _judge(case: Case, result: Result, planned: Planned) -> None:
    where = f"tree {models.shown(planned.tree)}: "
    if said := str(result.get("said", "")):
        raise CheckError(
            f"{where}backward raised {said[:160]!r}. A segment must run again what it ran "
            "first: does a lambda in the loop look up a name that has moved on by then?"
        )
    loss, wanted = planned.plain
    expect.close(
        read.number(result.get("loss"), f"{where}the result"),
        loss,
        otherwise="the result is not what the layers give one after the other.",
        tolerance=0,
        where=where,
    )
    gradients = read.tensors(result.get("gradients"), len(wanted), "gradients")
    if all(gradient is None for gradient in gradients):
        raise CheckError(f"{where}no gradient came: does the result have a graph?")
    if any(gradient is None for gradient in gradients):
        raise CheckError(
            f"{where}some layers got no gradient. A batch needs none itself, and a reentrant "
            "checkpoint then cuts the graph: use_reentrant=False."
        )
    _expect_counts(result, planned, where)
    if not all(expect.same_bits(s, w) for s, w in zip(gradients, wanted, strict=True)):
        raise CheckError(
            f"{where}the runs are right, and gradients differ from those without checkpoints. The "
            "layers have dropout: does a segment draw the same random numbers again?"
        )
    seen, peak = read.integer(result.get("peak"), "the peak"), planned.simulation.peak_bytes
    expect.close(
        seen,
        peak,
        otherwise=f"gradients and runs are right, and the peak is off by {seen / peak - 1:+.0%} of "
        f"the planned one, where {_TOLERANCE:.0%} is allowed: what still holds tensors?",
        tolerance=_TOLERANCE,
        where=where,
    )


def _expect_counts(result: Result, planned: Planned, where: str) -> None:
    count, wanted = len(planned.case["middles"]), list(planned.simulation.counts)
    runs = read.integers(result.get("runs"), f"{where}runs of each layer", count)
    flat = [1 + (number > 1) for number in wanted]
    each = [number + 1 for number in wanted]
    expect.close(
        torch.tensor(runs, dtype=torch.float64),
        torch.tensor(wanted, dtype=torch.float64),
        (
            ("no layer ran twice: a tuple is to be a checkpoint.", _floats([1] * count)),
            (
                "a segment inside a segment was run as if it were kept: go down again.",
                _floats(flat),
            ),
            ("a number is a stage that is kept, and you checkpoint it too.", _floats(each)),
        ),
        otherwise=f"the layers ran {runs} times, and the plan says {wanted}.",
        where=where,
    )


def _floats(numbers: list[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def _exam(answer: Callable[..., Any], case: Case) -> Result:
    chain, rows = exam.make(case)
    each_dropped = tuple((number,) for number in range(len(chain)))
    exam.half_squares(answer(chain, each_dropped, rows)).backward()
    return exam.gradients(chain)


run_tree = Check(
    "lab04.run_tree",
    "4.2",
    "four trees: gradients to the bit, runs as planned, peaks within 3 % of the plan",
    _cases,
    _run,
    _judge,
    oracle=Planned,
    exam=exam.of(_exam),
    forbidden=[models.NO_RUNNER],
)
