"""The check of 6.1, a comparison: pairs of steps that differ in one thing, or in nothing."""

import math
import tomllib
from pathlib import Path

import torch
from torch import Tensor

from tutorial_lib.checks.given import observe
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, check, expect, read

from . import given
from .given import pairs

_PASSED = "finds a wrong factor under AdamW, a wrong turn under clipping, a nan; allows rounding"
_KINDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_MESSAGES = {
    "random state": "the random state has moved after your call: a comparison must not change the "
    "training's next random numbers. Put it back."
}


def _cases(draw: Draw) -> Cases:
    drawn = {"seed": draw.randrange(10**6), "rows": draw.choice([8, 12, 16]), "num": 4}
    *strict, tolerated = [{**drawn, "kind": kind} for kind in _KINDS]
    yield from ({**case, "tolerance": 1e-9, "factor": 1.2} for case in strict)
    factor = draw.choice([1.0005, 1.009])  # so that the loss differs most, or the gradients
    yield {**tolerated, "tolerance": 1e-2, "factor": factor}


def _difference(case: Case) -> float:
    """Return the difference in the part where the steps first differ, or else the largest."""
    first, second = (_parts_after(step, case) for step in pairs.steps_of(case))
    part = _KINDS[case["kind"]]["first"]
    names = first if part == "nothing" else [part]
    return max(expect.relative_error(second[name], first[name]) for name in names)


def _parts_after(step: pairs.Step, case: Case) -> dict[str, Tensor]:
    model = pairs.model_of(case)
    optimizer = pairs.optimizer_of(case)(model.parameters())
    torch.manual_seed(0)
    with observe.updates_seen(model, optimizer) as updates:
        loss = torch.tensor([step(model, optimizer)], dtype=torch.float64)
    parameters = observe.parameter_vector(model)
    return {"loss": loss, "gradients": updates[0], "parameters": parameters}


@check(given.first_difference, _PASSED, _cases, oracle=_difference)
def first_difference(case: Case, result: Result, right: float) -> None:
    part, kind, beyond = result["part"], case["kind"], case["tolerance"]
    wanted, advice = _KINDS[kind]["first"], _KINDS[kind]["advice"]
    found = f"the first difference beyond {beyond:g} is in {wanted}, not in {part}"
    if wanted == "nothing":
        found = f"nothing differs by more than {beyond:g}, but you answered {part}"
    parts = ("loss", "gradients", "parameters", "nothing")
    faults = {
        'return a pair: the part, one of "loss", "gradients", "parameters" and '
        '"nothing", and the difference as a float.': part not in parts,
        "the model that you were given has changed, perhaps its gradients: run each step on its "
        "own deep copy.": not {"weights", "gradients"}.isdisjoint(expect.changes(result)),
        f"{found}: {advice}": part != wanted,
    }
    expect.no_fault(faults)
    seen = read.number(result["difference"], "the second of the pair, the difference,")
    agrees = math.isclose(seen, right, rel_tol=1e-6, abs_tol=1e-12)
    words = f'"nothing" is right, but {seen:.4g} is not the largest of the three differences.'
    if wanted != "nothing":
        words = (
            f'"{wanted}" is right, with a difference of {seen:.4g}, which is not the norm of the '
            "difference divided by the norm in step_a."
        )
    expect.fact(agrees or (kind == "nan" and not math.isfinite(seen)), words)
    expect.unchanged(result, _MESSAGES)
