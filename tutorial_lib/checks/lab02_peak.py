"""The check of lab 02 that reads the peak of a step."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tutorial_lib import memory
from tutorial_lib.checks import lab02_oracles as oracles
from tutorial_lib.checks.core import Case, Check, Result
from tutorial_lib.checks.lab02_machine import PretendGPU
from tutorial_lib.checks.lab02_steps import ColdStep
from tutorial_lib.checks.results import expect_bytes


def _peak_cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    leaky = {**_cold(draw, "momentum", warmup=1), "kept": draw.randint(10_000, 20_000)}
    return [_cold(draw, "adamw", warmup=1), _cold(draw, "momentum", warmup=2), leaky]


def _cold(draw: random.Random, optimizer: str, *, warmup: int) -> Case:
    inner, outer = draw.sample(range(48, 80), 2)
    return {
        "widths": [outer, inner, outer],
        "rows": draw.randint(300, 400),
        "optimizer": optimizer,
        "warmup": warmup,
        "workspace": draw.randint(400_000, 500_000),
        "kept": 0,
        "earlier": draw.randint(900_000, 990_000),
        "left": draw.randint(10_000, 20_000),
    }


def _run_peak(answer: Callable[..., Any], case: Case) -> Result:
    with PretendGPU() as gpu:
        torch.zeros(case["earlier"])  # the run before this one
        left = torch.zeros(case["left"])
        step = ColdStep(case)
        with oracles.by_hand():
            peak = answer(step, gpu, warmup=case["warmup"])
    del left  # it has lain there all the time
    return {"bytes": peak}


def _judge_peak(case: Case, result: Result) -> None:
    step = ColdStep(case)
    report = memory.measure(step, model=step.model, optimizer=step.optimizer)
    wanted = report.peak_bytes - report.baseline_bytes
    expect_bytes(result.get("bytes"), wanted, "steady_peak(step, gpu)", _peak_slips(case))


def _peak_slips(case: Case) -> Mapping[str, int]:
    """Read everything at every moment; give what each reading is the wrong answer to."""
    with PretendGPU() as gpu:
        left = torch.zeros(case["left"])
        step = ColdStep(case)
        before = gpu.memory_allocated()
        gpu.reset_peak_memory_stats()
        step()
        cold = gpu.max_memory_allocated()
        base = gpu.memory_allocated()
        gpu.reset_peak_memory_stats()
        step()
        steady, after = gpu.max_memory_allocated(), gpu.memory_allocated()
    del left
    ever = _highest_ever(case)
    return {
        "What lay there before the step is in it: read that too, and subtract it.": steady,
        "It is the first step, without optimizer state, while kernels are tried out: warm up.": cold
        - before,
        "It is all there was in the first step: warm up, and subtract what lay there before.": cold,
        "It is the mark of an earlier run: wipe it off before the step.": ever - base,
        "It is the highest mark that any run has left: wipe it off, and subtract what lay there "
        "before the step.": ever,
        "It is the mark of the warm-up: wipe it off between warm-up and step.": cold - base,
        "Nothing is left when a step is over: ask for the most that was there meanwhile, not for "
        "what is there now.": after - base,
        "It is what is there when the step is over: ask for the most that was there "
        "meanwhile.": after,
        "What is there after the step was subtracted, so what the step leaves behind is missing: "
        "read what lies there before it.": steady - after,
        "What lay there was read before the warm-up, which has left gradients and optimizer state "
        "behind: read it after.": steady - before,
    }


def _highest_ever(case: Case) -> int:
    with PretendGPU() as gpu:
        torch.zeros(case["earlier"])
        step = ColdStep(case)
        step()
        step()
        peak: int = gpu.max_memory_allocated()
    return peak


steady_peak = Check(
    name="lab02.steady_peak",
    exercise="2.3",
    passed="equal to memory.measure, whatever ran before",
    cases=_peak_cases,
    run=_run_peak,
    judge=_judge_peak,
)
