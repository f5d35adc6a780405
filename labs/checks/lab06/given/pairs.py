"""The half of 6.1 that runs an answer: pairs of steps that differ in one thing, or in nothing."""

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from tutorial_lib.checks.given import Answer, Case, Result, forbid, observe, run_half, surroundings

Step = Callable[[nn.Module, Optimizer], float]
_KEPT = ("weights", "gradients", "random state", *surroundings.SWITCHES)
_NOT_ITSELF = forbid.Forbidden(
    "assert_same_training is what you are writing, so your answer may not call it.",
    (
        "tutorial_lib.checks.same_training.compare",
        "tutorial_lib.checks.same_training.record:Recorder",
    ),
)


def model_of(case: Case) -> nn.Module:
    """Build the model of a pair, from its seed."""
    torch.manual_seed(case["seed"])
    drop = nn.Dropout(0.5 if case["kind"] == "dropout" else 0.0)
    return nn.Sequential(nn.Linear(6, 20), nn.Tanh(), drop, nn.Linear(20, 3)).double()


def optimizer_of(case: Case) -> Callable[[Iterator[nn.Parameter]], Optimizer]:
    """Return the factory of a pair's optimizers."""
    if case["kind"] == "factor":
        return lambda parameters: AdamW(parameters, lr=1e-3)
    return lambda parameters: SGD(parameters, lr=0.1)


def steps_of(case: Case) -> tuple[Step, Step]:
    """Make the two steps of a pair."""
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
            for parameter in model.parameters():
                parameter.grad.copy_(parameter.grad.flip(0))  # type: ignore[union-attr]
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


@run_half("6.1", forbidden=[_NOT_ITSELF])
def first_difference(answer: Answer, case: Case) -> Result:
    model = model_of(case)
    observe.fill_gradients(model)
    with surroundings.watched(model, only=_KEPT) as changed:
        answered = answer(*steps_of(case), model, optimizer_of(case), case["tolerance"])
    is_pair = isinstance(answered, tuple | list) and len(answered) == 2
    part, difference = answered if is_pair else (answered, None)
    return {"part": part, "difference": difference, "changed": changed}
