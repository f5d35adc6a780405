"""The check of 4.2: a tree run on real layers with PyTorch's checkpoint."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from tutorial_lib import plan
from tutorial_lib.checks import exam, expect, observe, read
from tutorial_lib.checks.core import Case, Check, CheckError, Result, plain
from tutorial_lib.checks.lab04 import models
from tutorial_lib.plan.simulate import leaves

_TOLERANCE = 0.03
_TREES = (
    [0, 1, 2, 3, 4, 5, 6, 7],
    [[0, 1, 2], [3, 4], 5, 6, 7],
    [[[0], 1, 2], 3, [[4, 5], 6], 7],
    [[[[0], 1], 2], [3], [4, 5, 6], 7],
)


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    middles = sorted((draw.choice([128, 160, 192, 224]) for _ in range(8)), reverse=True)
    case = {"seed": draw.randrange(10**6), "width": 16, "middles": middles}
    case["rows"] = draw.choice([448, 512])
    return [{**case, "tree": tree} for tree in _TREES]


class Planned:
    """What a case's tree gives: gradients of the plain layers, counts and peak on paper."""

    def __init__(self, case: Case) -> None:
        layers, rows = models.make_layers(case), models.make_rows(case)
        self.tree = models.read_tree(case["tree"], len(layers))
        loss = layers(rows)
        loss.backward()
        self.loss, self.gradients = loss.item(), observe.gradients_of(layers)
        stages = models.chain_of(models.make_layers(case), rows)
        self.simulation = plan.simulate(stages, self.tree)
        alone = [((i,) for i in leaves((item,))) if isinstance(item, tuple) else (item,)
                 for item in self.tree]  # fmt: skip
        self.each_alone = plan.simulate(stages, tuple(itertools.chain(*alone)))


def _run(answer: Callable[..., Any], case: Case) -> Result:
    layers, rows = models.make_layers(case), models.make_rows(case)
    tree = models.read_tree(case["tree"], len(layers))
    runs = [0] * len(layers)

    def count(index: int, *_: Any) -> None:
        runs[index] += 1

    hooks = [x.register_forward_pre_hook(partial(count, i)) for i, x in enumerate(layers)]
    loss = answer(layers, tree, rows)
    if not isinstance(loss, Tensor):
        raise CheckError(f"a tensor is wanted, and {type(loss).__name__} came: return x.")
    has_graph, value = loss.requires_grad, float(loss.detach())
    said = observe.error_said(loss.backward) if has_graph else ""
    # a copy: the second step adds to the same gradients
    gradients = plain(observe.gradients_of(layers))
    del loss
    for hook in hooks:
        hook.remove()
    peak = 0
    if not said and gradients[0] is not None:
        peak, _ = observe.peak_above(lambda: answer(layers, tree, rows).backward(), layers)
    return {"said": said, "loss": value, "gradients": gradients, "runs": runs, "peak": peak}


def _judge(case: Case, result: Result, planned: Planned) -> None:
    where = f"tree {models.shown(planned.tree)}: "
    if said := str(result.get("said", "")):
        raise CheckError(
            f"{where}backward raised {said[:160]!r}. A segment must run again what it ran "
            "first: does a lambda in the loop look up a name that has moved on by then?"
        )
    wanted = planned.gradients
    expect.close(
        read.number(result.get("loss"), f"{where}the result"),
        planned.loss,
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
    if not all(map(expect.same_bits, gradients, wanted)):
        raise CheckError(
            f"{where}the runs are right, and gradients differ from those without checkpoints. The "
            "layers have dropout: does a segment draw the same random numbers again?"
        )
    seen, peak = read.integer(result.get("peak"), "the peak"), planned.simulation.peak_bytes
    advice = "what still holds tensors?" if seen > peak else "what is kept outside of tensors?"
    expect.close(
        seen,
        peak,
        (
            (
                "that is the peak of a checkpoint around each layer of a tuple: one checkpoint "
                "goes around the whole tuple.",
                planned.each_alone.peak_bytes,
            ),
        ),
        otherwise=f"gradients and runs are right, and the peak is off by {seen / peak - 1:+.0%} of "
        f"the planned one, where {_TOLERANCE:.0%} is allowed: {advice}",
        tolerance=_TOLERANCE,
        where=where,
    )


def _expect_counts(result: Result, planned: Planned, where: str) -> None:
    wanted = list(planned.simulation.counts)
    runs = read.integers(result.get("runs"), f"{where}runs of each layer", len(wanted))
    expect.close(
        runs,
        wanted,
        (
            ("no layer ran twice: a tuple is to be a checkpoint.", [1] * len(wanted)),
            (
                "a segment inside a segment was run as if it were kept: go down again.",
                [min(number, 2) for number in wanted],
            ),
            (
                "a number is a stage that is kept, and you checkpoint it too.",
                [number + 1 for number in wanted],
            ),
        ),
        otherwise=f"the layers ran {runs} times, and the plan says {wanted}.",
        where=where,
    )


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
