"""The half of 7.6 that runs an answer: its gradients, its peaks, and its refusals."""

from functools import partial

import torch
from torch import Tensor, nn

from tutorial_lib.checks.given import Answer, Case, CheckError, Result, exam, observe, run_half
from tutorial_lib.checks.given.surroundings import watched

from .towers import NO_CHECKPOINT, NOT_FINITE, CountingTower, InBatch

_NOT_REFUSED = (
    "don't refuse a BatchNorm in eval mode, whose statistics are fixed, nor a micro_batch larger "
    "than the batch."
)
Handed = tuple[list[CountingTower], list[Tensor], InBatch, int]


def _handed(case: Case) -> Handed:
    """Make towers, inputs, the loss and micro_batch of a case, with its faults."""
    torch.manual_seed(case["seed"])
    number, hidden, wrong = case["towers"], case["hidden"], case.get("spoiled")
    towers = [CountingTower(case) for _ in range(number)]
    towers = towers[:1] * number if case.get("shared") else towers
    shape = (number, case["rows"], case["width"])
    inputs = list(torch.randn(shape, dtype=getattr(torch, case["dtype"])))
    if wrong == "uneven":
        inputs[-1] = inputs[-1][:-1]
    if wrong == "norm":  # of images, and not the tower's own child
        norm = nn.BatchNorm2d(hidden).to(inputs[0].dtype)
        towers[1].norm = nn.Sequential(nn.Unflatten(1, (hidden, 1, 1)), norm, nn.Flatten())
    if wrong == "nan":
        inputs[0][2, 1] = float("nan")
    torch.manual_seed(case["seed"] + 1)
    return towers, inputs, InBatch(case), case["micro_batch"]


def _gradients(answer: Answer, case: Case) -> Result:
    towers, inputs, loss_of, _ = handed = _handed(case)
    once = list(dict.fromkeys(towers))
    moved = ["gradients", "buffers", "random state"]
    with (
        watched([*once, loss_of], inputs, but=moved) as changed,
        torch.autocast("cpu", torch.bfloat16, enabled=bool(case.get("autocast"))),
    ):
        try:
            loss = answer(*handed)
        except ValueError as error:
            if not case.get("frozen"):
                raise
            raise CheckError(f"{_NOT_REFUSED} And this came: {error}") from error
    return {
        "changed": changed,
        "loss": loss,
        "gradients": observe.gradients_of([*once, loss_of]),
        "random_state": torch.get_rng_state(),
        "buffers": [buffer for tower in once for buffer in tower.buffers()],
        "rows": [tower.rows_seen for tower in once],
        "was_evaluated": any(tower.was_evaluated for tower in once),
    }


def _peaks(answer: Answer, case: Case) -> Result:
    (few, _), (many, left) = (_peak(answer, {**case, "rows": n}) for n in case["of_rows"])
    return {"few": few, "many": many, "left": left}


def _peak(answer: Answer, case: Case) -> tuple[int, int]:
    towers, _, loss_of, _ = handed = _handed(case)
    return observe.peak_above(partial(answer, *handed), [*towers, loss_of])


def _refusal(answer: Answer, case: Case) -> Result:
    towers, inputs, loss_of, _ = handed = _handed(case)
    with watched([*towers, loss_of], inputs) as changed:
        said = observe.error_said(lambda: answer(*handed), "ValueError", "FloatingPointError")
    seen = {"said": said, "changed": changed, "ran": any(tower.rows_seen for tower in towers)}
    if other := NOT_FINITE.get(case.get("spoiled", "")):
        again = _handed({**case, "spoiled": other})
        seen["of_the_other"] = observe.error_said(lambda: answer(*again), "FloatingPointError")
    return seen


def _exam(answer: Answer, case: Case) -> Result:
    chain, rows = exam.make(case)
    halves = list(rows.tensor_split(2))
    answer([chain, chain], halves, exam.HalfSquares(), len(rows) // 16)
    return exam.gradients(chain)


_KINDS = {"gradients": _gradients, "peak": _peaks, "refusal": _refusal}


@run_half("7.6", forbidden=[NO_CHECKPOINT], exam=exam.of(_exam))
def cached_backward(answer: Answer, case: Case) -> Result:
    return _KINDS[case["kind"]](answer, case)
