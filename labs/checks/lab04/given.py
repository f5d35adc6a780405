"""The chains and layers of lab 04, and the halves that run its answers."""

import time
from collections.abc import Callable
from functools import partial
from sys import getprofile, setprofile  # gone from sys where an answer is graded
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.checks.given import answered, exam, forbid, observe, run_half, surroundings
from tutorial_lib.checks.given.values import Answer, Case, CheckError, Result, plain
from tutorial_lib.instruments.planning.chain.stages import Stage
from tutorial_lib.instruments.segments.tree import Tree

_MOST_SECONDS = 20  # for one answer of 4.3, which calls itself
_NO_SIMULATION = forbid.Forbidden(
    "planning.simulate and planning.Plan are the oracle here, so your function may not call them: "
    "add up what is held, stage by stage.",
    (
        "tutorial_lib.instruments.planning.chain.simulate:simulate",
        "tutorial_lib.instruments.planning.chain.simulate:_Machine",
    ),
)
NO_SOLVER = forbid.Forbidden(
    "planning.solve and planning.floor_bytes are the library's solver, and the solver is what you "
    "write here: your function may call neither them nor what is below them.",
    forbid.SOLVER,
)
_NO_RUNNER = forbid.Forbidden(
    "planning.apply runs a tree, and that is what you write here: use torch.utils.checkpoint.",
    ("tutorial_lib.instruments.segments.execution", "tutorial_lib.instruments.planning.run.apply"),
)


def stages_of(case: Case) -> list[Stage]:
    """Make a case's chain."""
    return [Stage(**stage) for stage in case["stages"]]


class MeanSquare(nn.Module):
    """The loss: one number."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean of the squares."""
        return x.square().mean()


def make_layers(case: Case) -> nn.Sequential:
    """Make blocks with dropout, unlike one another; the last one ends with the loss."""
    torch.manual_seed(case["seed"])
    width, layers = case["width"], list[nn.Module]()
    for middle in case["middles"]:
        wide = [nn.Linear(width, middle), nn.GELU(), nn.Dropout(0.2), nn.Linear(middle, width)]
        layers.append(nn.Sequential(*wide))
    layers[-1] = nn.Sequential(layers[-1], MeanSquare())
    return nn.Sequential(*layers)


def make_rows(case: Case) -> Tensor:
    """Make the batch `(rows, width)`; it needs no gradient, as no batch does."""
    generator = torch.Generator().manual_seed(case["seed"] + 1)
    return torch.randn(case["rows"], case["width"], generator=generator)


def tree_of(items: list[Any]) -> Tree:
    """Make a case's tree, which is a nesting of lists there."""
    return tuple(tree_of(item) if isinstance(item, list) else item for item in items)


@run_half("4.1", forbidden=[_NO_SIMULATION, NO_SOLVER])
def segments_cost(answer: Answer, case: Case) -> Result:
    stages = stages_of(case)
    returned = answer(stages, case["length"])
    surroundings.expect_unchanged(stages, stages_of(case))
    peak, seconds = answered.several(returned, 2, "the peak and the seconds")
    return {"peak": peak, "seconds": seconds}


def _exam(answer: Answer, case: Case) -> Result:
    chain, rows = exam.make(case)
    each_dropped = tuple((number,) for number in range(len(chain)))
    exam.half_squares(answer(chain, each_dropped, rows)).backward()
    return exam.gradients(chain)


@run_half("4.2", forbidden=[_NO_RUNNER], exam=exam.of(_exam))
def run_tree(answer: Answer, case: Case) -> Result:
    layers, rows, tree = make_layers(case), make_rows(case), tree_of(case["tree"])
    runs = [0] * len(layers)

    def count(index: int, *_: Any) -> None:
        runs[index] += 1

    hooks = [x.register_forward_pre_hook(partial(count, i)) for i, x in enumerate(layers)]
    loss = answer(layers, tree, rows)
    if not isinstance(loss, Tensor):
        raise CheckError(f"{type(loss).__name__} came, but a tensor is needed: return x.")
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


def in_time(call: Callable[[], Any], seconds: int = _MOST_SECONDS) -> Any:
    """Call a function that makes many calls of its own, and give up when it takes too long."""
    end, before = time.monotonic() + seconds, getprofile()

    def look(*_: Any) -> None:
        if time.monotonic() > end:
            raise CheckError(
                f"no answer after {seconds} seconds: are the same parts solved over and over, "
                "or all combinations tried? Keep each part's answer, as functools.cache does."
            )

    setprofile(look)
    try:
        return call()
    finally:
        setprofile(before)


@run_half("4.3", forbidden=[NO_SOLVER])
def fewest_forwards(answer: Answer, case: Case) -> Result:
    return {"forwards": in_time(lambda: answer(case["stages"], case["places"]))}


@run_half("4.4", forbidden=[NO_SOLVER])
def revolve_tree(answer: Answer, case: Case) -> Result:
    return {"tree": answer(case["stages"], case["places"])}


@run_half("4.5", forbidden=[NO_SOLVER])
def smallest_budget(answer: Answer, case: Case) -> Result:
    stages = stages_of(case)
    floor = answer(stages)
    surroundings.expect_unchanged(stages, stages_of(case))
    return {"floor": floor}


@run_half("4.6", forbidden=[NO_SOLVER])
def fastest_tree(answer: Answer, case: Case) -> Result:
    stages, trees = stages_of(case), list[Any]()
    said = observe.error_said(lambda: trees.append(answer(stages, case["budget"])), "ValueError")
    surroundings.expect_unchanged(stages, stages_of(case))
    return {"said": said, "tree": trees[0] if trees else None}
