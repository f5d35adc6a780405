"""The check of 6.1, a comparison: pairs of steps that differ in one thing, or in nothing."""

import math

import torch
from torch import Tensor

from tutorial_lib.checks.given import observe
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, check, expect, read

from . import given
from .given import pairs

_PASSED = "finds a factor behind AdamW, a turn behind clipping, a nan, and calls rounding nothing"
# Kinds of pairs: the part that differs first, and what to try where another was named.
_WANTED = {"dropout": "nothing", "tolerated": "nothing", "rate": "parameters"}
_WANTED |= dict.fromkeys(("loss", "nan", "close"), "loss")
_WANTED |= dict.fromkeys(("factor", "direction", "cleared"), "gradients")
_ADVICE = {
    "dropout": "these two steps are one and the same, with dropout: the second drew other masks, "
    "or found another model. Start both from one random state and one model.",
    "loss": "step_b returns three times its loss, and its gradients are four times too large: the "
    "first is asked for, and not the largest.",
    "factor": "step_b forgot to divide by the number of micro-batches, and AdamW hides that from "
    "the parameters: compare the gradients too, and first.",
    "direction": "both steps clip, so their gradients have equal norms and point elsewhere. Take "
    "the norm of the difference, not the difference of the norms.",
    "cleared": "these steps clear their gradients before they return: look at them at the moment "
    "when optimizer.step() is called, and copy them, for they are zeroed in place. "
    "register_step_pre_hook has you called then.",
    "rate": "gradients and losses agree here, and the updates have different learning rates.",
    "nan": "step_b's loss is nan, and every comparison with nan is False: ask whether it is within "
    "the tolerance, not whether it is beyond.",
    "close": "step_b's loss is larger by more than the tolerance, and by too little for float32, "
    "which is what torch.tensor makes of a float: give it dtype=torch.float64.",
    "tolerated": "these two steps differ by less than the tolerance that you were given.",
}
_ON_A_COPY = (
    "the model that was handed over has changed, its gradients perhaps: run each step on a deep "
    "copy of its own."
)
_MESSAGES = {
    "random state": "the random state is elsewhere after your call: a comparison draws nothing "
    "from the training that it looks at. Put it back."
}


def _cases(draw: Draw) -> Cases:
    drawn = {"seed": draw.randrange(10**6), "rows": draw.choice([8, 12, 16]), "num": 4}
    *strict, tolerated = [{**drawn, "kind": kind} for kind in _ADVICE]
    yield from ({**case, "tolerance": 1e-9, "factor": 1.2} for case in strict)
    factor = draw.choice([1.0005, 1.009])  # so that the loss differs most, or the gradients
    yield {**tolerated, "tolerance": 1e-2, "factor": factor}


def _difference(case: Case) -> float:
    """Return the difference in the part where the steps first differ, or else the largest."""
    first, second = (_parts_after(step, case) for step in pairs.steps_of(case))
    part = _WANTED[case["kind"]]
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
    wanted = _WANTED[kind]
    expect.fact(
        part in ("loss", "gradients", "parameters", "nothing"),
        'a pair is to be returned: the part, one of "loss", "gradients", "parameters" and '
        '"nothing", and the difference as a float.',
    )
    expect.fact({"weights", "gradients"}.isdisjoint(expect.changes(result)), _ON_A_COPY)
    found = f"the first difference beyond {beyond:g} is in {wanted}, not in {part}"
    if wanted == "nothing":
        found = f"nothing differs by more than {beyond:g}, and {part} was the answer"
    expect.fact(part == wanted, f"{found}: {_ADVICE[kind]}")
    seen = read.number(result["difference"], "the second of the pair, the difference,")
    agrees = math.isclose(seen, right, rel_tol=1e-6, abs_tol=1e-12)
    words = (
        f'"{wanted}" is right, with a difference of {seen:.4g}, which is not the norm of the '
        "difference divided by the norm in step_a."
    )
    if wanted == "nothing":
        words = f'"nothing" is right, and {seen:.4g} is not the largest of the three differences.'
    expect.fact(agrees or (kind == "nan" and not math.isfinite(seen)), words)
    expect.unchanged(result, _MESSAGES)
