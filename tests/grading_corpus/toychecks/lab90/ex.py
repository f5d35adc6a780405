"""What is right."""

import torch

from toychecks.lab90 import given
from tutorial_lib.checks.vocabulary import CheckError, Exercise, read


def _area_cases(draw):
    return [{"width": draw.randint(2, 99), "height": draw.randint(100, 999)} for _ in range(2)]


def _judge_area(case, result):
    wanted = case["width"] * case["height"]
    seen = read.integer(result["area"], "the area")
    if seen != wanted:
        raise CheckError(f"the area is {seen}, which is off by {seen - wanted}: multiply both.")


def _seed_cases(draw):
    return [{"seed": draw.randint(1, 10**6)} for _ in range(2)]


def _tensor(result, name):
    value = result[name]
    if not isinstance(value, torch.Tensor):
        raise CheckError(f"{name} should be a tensor, and is {str(value)[:100]}.")
    return value


def _judge_doubled(case, result):
    seen, wanted = _tensor(result, "doubled"), 2 * given.vector(case)
    if seen.shape != wanted.shape or not torch.allclose(seen, wanted):
        raise CheckError("doubled differs from twice the vector.")


def _judge_slope(case, result):
    seen, wanted = _tensor(result, "slope"), 3 * given.vector(case) ** 2
    if seen.shape != wanted.shape or not torch.allclose(seen, wanted, rtol=1e-4):
        raise CheckError("the gradient differs from 3 x**2.")


area = Exercise(run=given.area, passed="the area is right", cases=_area_cases, judge=_judge_area)
doubled = Exercise(
    run=given.doubled,
    passed="every entry is doubled",
    cases=_seed_cases,
    judge=_judge_doubled,
)
slope = Exercise(
    run=given.slope, passed="the gradient is right", cases=_seed_cases, judge=_judge_slope
)
slope_twice = Exercise(
    run=given.slope_twice, passed="and right again", cases=_seed_cases, judge=_judge_slope
)
