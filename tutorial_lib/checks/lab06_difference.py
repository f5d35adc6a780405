"""The check of lab 06's judge (6.1): pairs of steps that differ in one thing, or in nothing."""

from __future__ import annotations

import contextlib
import copy
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from tutorial_lib.checks import lab06_demands as demands
from tutorial_lib.checks import lab06_oracles as oracles
from tutorial_lib.checks import same_training
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.running import refused
from tutorial_lib.checks.training_record import Recorder

Step = Callable[[nn.Module, Optimizer], float]

_WANTED = {
    "dropout": "nothing",
    "loss": "loss",
    "factor": "gradients",
    "direction": "gradients",
    "cleared": "gradients",
    "rate": "parameters",
    "nan": "loss",
    "close": "loss",
    "tolerated": "nothing",
}
_ADVICE = {
    "tolerated": "these two steps differ by less than the tolerance that you were given.",
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
}


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    drawn = {"seed": draw.randrange(10**6), "rows": draw.choice([8, 12, 16]), "num": 4}
    strict = [
        {**drawn, "kind": k, "tolerance": 1e-9, "factor": 1.2} for k in _WANTED if k != "tolerated"
    ]
    factor = draw.choice([1.0005, 1.009])  # so that the loss differs most, or the gradients
    return [*strict, {**drawn, "kind": "tolerated", "tolerance": 1e-2, "factor": factor}]


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

    def step(model: nn.Module, optimizer: Optimizer, *, num: int, slip: bool) -> float:
        optimizer.zero_grad()
        total = 0.0
        for micro_x, micro_y in zip(x.chunk(num), y.chunk(num), strict=True):
            loss = (model(micro_x) - micro_y).square().mean() / num
            (loss * num if slip and kind in ("factor", "loss") else loss).backward()
            total += loss.item()
        if slip and kind == "direction":
            _turn(model)
        if kind == "direction":
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        if slip and kind in ("cleared", "tolerated"):
            next(model.parameters()).grad.mul_(case["factor"])  # type: ignore[union-attr]
        if slip and kind == "rate":
            optimizer.param_groups[0]["lr"] *= 2
        optimizer.step()
        if kind == "cleared":
            optimizer.zero_grad(set_to_none=False)
        factors = {"loss": 3.0, "nan": math.nan, "close": 1 + 2e-9, "tolerated": 1.002}
        return total * factors.get(kind, 1.0) if slip else total

    def step_a(model: nn.Module, optimizer: Optimizer) -> float:
        return step(model, optimizer, num=1, slip=False)

    def step_b(model: nn.Module, optimizer: Optimizer) -> float:
        return step(model, optimizer, num=1 if kind == "dropout" else case["num"], slip=True)

    return step_a, step_b


def _turn(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.copy_(parameter.grad.flip(0))


@contextlib.contextmanager
def _without_the_courses() -> Iterator[None]:
    message = "assert_same_training is what you are writing, so your answer may not call it."
    with (
        refused(same_training, "_two_trainings", message),
        refused(Recorder, "call", message),
    ):
        yield


def _run(answer: Callable[..., Any], case: Case) -> Result:
    model = _model(case)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = oracles.vector([*model.parameters()])
    random_state, switches = torch.get_rng_state(), oracles.switches(model)
    with _without_the_courses():
        answered = answer(*_steps(case), model, _make_optimizer(case), case["tolerance"])
    if not isinstance(answered, tuple) or len(answered) != 2:
        answered = (answered, None)
    return {
        "part": answered[0],
        "difference": answered[1],
        "model_kept": torch.equal(before, oracles.vector([*model.parameters()])),
        "gradients_kept": bool((oracles.gradients_of(model) == 1).all()),
        "random_kept": torch.equal(random_state, torch.get_rng_state()),
        "switches_kept": switches == oracles.switches(model),
    }


def _wanted(case: Case) -> float:
    """Measure the difference in the part where the steps first differ, or else the largest."""
    seen: list[Any] = []
    for step in _steps(case):
        torch.manual_seed(0)
        model = copy.deepcopy(_model(case))
        made = (model, _make_optimizer(case)(model.parameters()))
        record = Recorder(made, dtype=None, num_terms=1, bitwise=True).call(step)
        gradients = [g for g in record.updates[0].gradients.values() if g is not None]
        parts: dict[str, Tensor] = {
            "loss": torch.tensor([record.loss], dtype=torch.float64),
            "gradients": oracles.vector(gradients),
            "parameters": oracles.vector(list(record.parameters.values())),
        }
        seen.append(parts)
    part = _WANTED[case["kind"]]
    names = seen[0] if part == "nothing" else [part]
    return max(oracles.off(seen[1][name], seen[0][name]) for name in names)


def _judge(case: Case, result: Result) -> None:
    part = result.get("part")
    if part not in ("loss", "gradients", "parameters", "nothing"):
        raise CheckError(
            'a pair is to be returned: the part, one of "loss", "gradients", "parameters" and '
            '"nothing", and the difference as a float.'
        )
    if result.get("model_kept") is not True or result.get("gradients_kept") is not True:
        raise CheckError(
            "the model that was handed over has changed, its gradients perhaps: run each step on "
            "a deep copy of its own."
        )
    wanted = _WANTED[case["kind"]]
    if part != wanted:
        found = f"the first difference beyond {case['tolerance']:g} is in {wanted}, not in {part}"
        if wanted == "nothing":
            found = f"nothing differs by more than {case['tolerance']:g}, and {part} was the answer"
        raise CheckError(f"{found}: {_ADVICE[case['kind']]}")
    seen = result.get("difference")
    if isinstance(seen, bool) or not isinstance(seen, float | int):
        raise CheckError("the second of the pair should be the relative difference, a float.")
    difference = _wanted(case)
    agrees = math.isclose(seen, difference, rel_tol=1e-6, abs_tol=1e-12)
    if not agrees and not (case["kind"] == "nan" and not math.isfinite(seen)):
        if wanted == "nothing":
            raise CheckError(
                f'"nothing" is right, and {seen:.4g} is not the largest of the three differences.'
            )
        raise CheckError(
            f'"{wanted}" is right, with a difference of {seen:.4g}, which is not the norm of the '
            "difference divided by the norm in step_a."
        )
    if result.get("random_kept") is not True:
        raise CheckError(
            "the random state is elsewhere after your call: a judge draws nothing from the "
            "training that it looks at. Put it back."
        )
    demands.same_switches(result)


first_difference = Check(
    name="lab06.first_difference",
    exercise="6.1",
    passed="finds a factor behind AdamW, a turn behind clipping, a nan, and calls rounding nothing",
    cases=_cases,
    run=_run,
    judge=_judge,
)
