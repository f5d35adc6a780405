"""The check of 2.3: the peak of a step."""

import torch

from tutorial_lib import memory
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read

from . import given
from .given.machine import PretendGPU

_PASSED = "equal to memory.measure, whatever ran before"


def _cases(draw: Draw) -> Cases:
    inner, outer = draw.sample(range(48, 80), 2)
    case = {
        "widths": [outer, inner, outer],
        "rows": draw.randint(300, 400),
        "workspace": draw.randint(400_000, 500_000),
        "earlier": draw.randint(900_000, 990_000),
        "left": draw.randint(10_000, 20_000),
    }
    yield {**case, "optimizer": "adamw", "warmup": 1, "kept": 0}
    kept = draw.randint(10_000, 20_000)
    yield {**case, "optimizer": "momentum", "warmup": 2, "kept": kept}


def _peak(case: Case) -> int:
    step = given.ColdStep(case)
    report = memory.measure(step, model=step.model, optimizer=step.optimizer)
    return report.peak_bytes - report.baseline_bytes


@check(given.steady_peak, _PASSED, _cases, oracle=_peak)
def steady_peak(case: Case, result: Result, peak: int) -> None:
    expect.number_of_bytes(result["bytes"], peak, "steady_peak(step, gpu)", _faults(case))
    ran, wanted = read.integer(result["calls"], "steps that ran"), case["warmup"] + 1
    name = f"steady_peak with warmup={case['warmup']}"
    expect.fact(ran == wanted, f"{name}: {ran} steps ran, and {wanted} should: warmup, then one.")


def _faults(case: Case) -> Faults:
    # everything is read at every moment
    with PretendGPU() as gpu:
        torch.zeros(case["earlier"])
        left = torch.zeros(case["left"])
        earlier = gpu.max_memory_allocated()
        step = given.ColdStep(case)
        before = gpu.memory_allocated()
        gpu.reset_peak_memory_stats()
        step()
        cold, base = gpu.max_memory_allocated(), gpu.memory_allocated()
        gpu.reset_peak_memory_stats()
        step()
        steady, after = gpu.max_memory_allocated(), gpu.memory_allocated()
    del left
    ever = max(earlier, cold, steady)
    yield from {
        "What lay there before the step is in it: read that too, and subtract it.": steady,
        "It is the first step, without optimizer state, while kernels are tried out: warm up.": cold
        - before,
        "It is all there was in the first step: warm up, and subtract what lay there before.": cold,
        "It is the peak of an earlier run: reset it before the step.": ever - base,
        "It is the highest peak of any run: reset it before the step, and subtract what lay there "
        "before the step.": ever,
        "It is the peak of the warm-up: reset it between warm-up and step.": cold - base,
        "Nothing is left when a step is over: ask for the most that was there meanwhile, not for "
        "what is there now.": after - base,
        "It is what is there when the step is over: ask for the most that was there "
        "meanwhile.": after,
        "What is there after the step was subtracted, so what the step leaves behind is missing: "
        "read what lies there before it.": steady - after,
        "What lay there was read before the warm-up, which has left gradients and optimizer state "
        "behind: read it after.": steady - before,
    }.items()
