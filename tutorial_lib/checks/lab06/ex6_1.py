"""The check of 6.1, a comparison: pairs of steps that differ in one thing, or in nothing."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.given import forbid, observe, surroundings
from tutorial_lib.checks.vocabulary import expect, read

Step = Callable[[nn.Module, Optimizer], float]

# Kinds of pairs: the part that differs first, and what to try where another was named.
_KINDS = {
    "dropout": (
        "nothing",
        "these two steps are one and the same, with dropout: the second drew other masks, or found "
        "another model. Start both from one random state and one model.",
    ),
    "loss": (
        "loss",
        "step_b returns three times its loss, and its gradients are four times too large: the "
        "first is asked for, and not the largest.",
    ),
    "factor": (
        "gradients",
        "step_b forgot to divide by the number of micro-batches, and AdamW hides that from the "
        "parameters: compare the gradients too, and first.",
    ),
    "direction": (
        "gradients",
        "both steps clip, so their gradients have equal norms and point elsewhere. Take the norm "
        "of the difference, not the difference of the norms.",
    ),
    "cleared": (
        "gradients",
        "these steps clear their gradients before they return: look at them at the moment when "
        "optimizer.step() is called, and copy them, for they are zeroed in place. "
        "register_step_pre_hook has you called then.",
    ),
    "rate": (
        "parameters",
        "gradients and losses agree here, and the updates have different learning rates.",
    ),
    "nan": (
        "loss",
        "step_b's loss is nan, and every comparison with nan is False: ask whether it is within "
        "the tolerance, not whether it is beyond.",
    ),
    "close": (
        "loss",
        "step_b's loss is larger by more than the tolerance, and by too little for float32, which "
        "is what torch.tensor makes of a float: give it dtype=torch.float64.",
    ),
    "tolerated": (
        "nothing",
        "these two steps differ by less than the tolerance that you were given.",
    ),
}


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    drawn = {"seed": draw.randrange(10**6), "rows": draw.choice([8, 12, 16]), "num": 4}
    strictly: dict[str, Any] = {**drawn, "tolerance": 1e-9, "factor": 1.2}
    *strict, tolerated = [{**strictly, "kind": kind} for kind in _KINDS]
    factor = draw.choice([1.0005, 1.009])  # so that the loss differs most, or the gradients
    return [*strict, {**tolerated, "tolerance": 1e-2, "factor": factor}]


def _model(case: Case) -> nn.Module:
    torch.manual_seed(case["seed"])
    drop = nn.Dropout(0.5 if case["kind"] == "dropout" else 0.0)
    return nn.Sequential(nn.Linear(6, 20), nn.Tanh(), drop, nn.Linear(20, 3)).double()


def _make_optimizer(case: Case) -> Callable[[Iterator[nn.Parameter]], Optimizer]:
    if case["kind"] == "factor":
        return lambda parameters: AdamW(parameters, lr=1e-3)
    return lambda parameters: SGD(parameters, lr=0.1)


def _steps(case: Case) -> tuple[Step, Step]:
    generator = torch.Generator().manual_seed(case["seed"])
    x = torch.randn(case["rows"], 6, generator=generator, dtype=torch.float64)
    y = torch.randn(case["rows"], 3, generator=generator, dtype=torch.float64)
    kind = case["kind"]

    def step(model: nn.Module, optimizer: Optimizer, *, num: int, has_fault: bool) -> float:
        optimizer.zero_grad()
        total = 0.0
        for micro_x, micro_y in zip(x.chunk(num), y.chunk(num), strict=True):
            loss = (model(micro_x) - micro_y).square().mean() / num
            (loss * num if has_fault and kind in ("factor", "loss") else loss).backward()
            total += loss.item()
        if has_fault and kind == "direction":
            _turn(model)
        if kind == "direction":
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        if has_fault and kind in ("cleared", "tolerated"):
            next(model.parameters()).grad.mul_(case["factor"])  # type: ignore[union-attr]
        if has_fault and kind == "rate":
            optimizer.param_groups[0]["lr"] *= 2
        optimizer.step()
        if kind == "cleared":
            optimizer.zero_grad(set_to_none=False)
        factors = {"loss": 3.0, "nan": math.nan, "close": 1 + 2e-9, "tolerated": 1.002}
        return total * factors.get(kind, 1.0) if has_fault else total

    num = 1 if kind == "dropout" else case["num"]
    return partial(step, num=1, has_fault=False), partial(step, num=num, has_fault=True)


def _turn(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.copy_(parameter.grad.flip(0))


_ON_A_COPY = (
    "the model that was handed over has changed, its gradients perhaps: run each step on a deep "
    "copy of its own."
)
_KEPT = ("weights", "gradients", "random state", *surroundings.SWITCHES)
_MESSAGES = {
    "random state": "the random state is elsewhere after your call: a comparison draws nothing "
    "from the training that it looks at. Put it back.",
}

_NOT_ITSELF = forbid.Forbidden(
    "assert_same_training is what you are writing, so your answer may not call it.",
    (
        "tutorial_lib.checks.same_training.compare",
        "tutorial_lib.checks.same_training.record:Recorder",
    ),
)


def _run(answer: Callable[..., Any], case: Case) -> Result:
    model = _model(case)
    observe.fill_gradients(model)
    with surroundings.watched(model, only=_KEPT) as changed:
        answered = answer(*_steps(case), model, _make_optimizer(case), case["tolerance"])
    is_pair = isinstance(answered, tuple | list) and len(answered) == 2
    part, difference = answered if is_pair else (answered, None)
    return {"part": part, "difference": difference, "changed": changed}


def _oracle(case: Case) -> float:
    """Give the difference in the part where the steps first differ, or else the largest."""
    first, second = (_parts_after(step, case) for step in _steps(case))
    part, _ = _KINDS[case["kind"]]
    names = first if part == "nothing" else [part]
    return max(expect.relative_error(second[name], first[name]) for name in names)


def _parts_after(step: Step, case: Case) -> dict[str, Tensor]:
    model = _model(case)
    optimizer = _make_optimizer(case)(model.parameters())
    torch.manual_seed(0)
    with observe.updates_seen(model, optimizer) as updates:
        loss = torch.tensor([step(model, optimizer)], dtype=torch.float64)
    parameters = observe.parameter_vector(model)
    return {"loss": loss, "gradients": updates[0], "parameters": parameters}


def _judge(case: Case, result: Result, right: float) -> None:
    part, (wanted, advice) = result.get("part"), _KINDS[case["kind"]]
    if part not in ("loss", "gradients", "parameters", "nothing"):
        raise CheckError(
            'a pair is to be returned: the part, one of "loss", "gradients", "parameters" and '
            '"nothing", and the difference as a float.'
        )
    changed = expect.changes(result)
    if "weights" in changed or "gradients" in changed:
        raise CheckError(_ON_A_COPY)
    if part != wanted:
        found = f"the first difference beyond {case['tolerance']:g} is in {wanted}, not in {part}"
        if wanted == "nothing":
            found = f"nothing differs by more than {case['tolerance']:g}, and {part} was the answer"
        raise CheckError(f"{found}: {advice}")
    seen = read.number(result.get("difference"), "the second of the pair, the difference,")
    agrees = math.isclose(seen, right, rel_tol=1e-6, abs_tol=1e-12)
    if not agrees and not (case["kind"] == "nan" and not math.isfinite(seen)):
        if wanted == "nothing":
            raise CheckError(
                f'"nothing" is right, and {seen:.4g} is not the largest of the three differences.'
            )
        raise CheckError(
            f'"{wanted}" is right, with a difference of {seen:.4g}, which is not the norm of the '
            "difference divided by the norm in step_a."
        )
    expect.unchanged(result, _MESSAGES)


first_difference = Check(
    "lab06.first_difference",
    "6.1",
    "finds a factor behind AdamW, a turn behind clipping, a nan, and calls rounding nothing",
    _cases,
    _run,
    _judge,
    oracle=_oracle,
    forbidden=[_NOT_ITSELF],
)
