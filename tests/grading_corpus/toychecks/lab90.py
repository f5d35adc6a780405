"""Three exercises: a number, a tensor, and a gradient."""

import random

import torch

from tutorial_lib.checks import read
from tutorial_lib.checks.core import Check, CheckError


def _area_cases(seed):
    draw = random.Random(seed)
    return [{"width": draw.randint(2, 99), "height": draw.randint(100, 999)} for _ in range(2)]


def _judge_area(case, result):
    wanted = case["width"] * case["height"]
    seen = read.integer(result["area"], "the area")
    if seen != wanted:
        raise CheckError(f"the area is {seen}, which is off by {seen - wanted}: multiply both.")


def _vector(case):
    return torch.randn(64, generator=torch.Generator().manual_seed(case["seed"]))


def _seed_cases(seed):
    return [{"seed": seed + 1}, {"seed": seed + 2}]


def _tensor(result, name):
    value = result[name]
    if not isinstance(value, torch.Tensor):
        raise CheckError(f"{name} should be a tensor, and is {str(value)[:100]}.")
    return value


def _judge_doubled(case, result):
    seen, wanted = _tensor(result, "doubled"), 2 * _vector(case)
    if seen.shape != wanted.shape or not torch.allclose(seen, wanted):
        raise CheckError("doubled differs from twice the vector.")


def _run_slope(answer, case):
    x = _vector(case).requires_grad_()
    answer(x).backward()
    return {"slope": x.grad}


def _judge_slope(case, result):
    seen, wanted = _tensor(result, "slope"), 3 * _vector(case) ** 2
    if seen.shape != wanted.shape or not torch.allclose(seen, wanted, rtol=1e-4):
        raise CheckError("the gradient differs from 3 x**2.")


area = Check(
    name="lab90.area",
    exercise="1.1",
    passed="the area is right",
    cases=_area_cases,
    run=lambda answer, case: {"area": answer(case["width"], case["height"])},
    judge=_judge_area,
)
doubled = Check(
    name="lab90.doubled",
    exercise="1.2",
    passed="every entry is doubled",
    cases=_seed_cases,
    run=lambda answer, case: {"doubled": answer(_vector(case))},
    judge=_judge_doubled,
)
slope = Check(
    name="lab90.slope",
    exercise="2.1",
    passed="the gradient is right",
    cases=_seed_cases,
    run=_run_slope,
    judge=_judge_slope,
)
slope_twice = Check(
    name="lab90.slope_twice",
    exercise="2.1",
    passed="and right again",
    cases=lambda seed: [{"seed": seed + 3}],
    run=_run_slope,
    judge=_judge_slope,
)
