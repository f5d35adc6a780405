"""The check of lab 02 that profiles a step: forward peak, backward peak, samples per second."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from tutorial_lib import memory
from tutorial_lib.checks import lab02_oracles as oracles
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.lab02_machine import PretendGPU
from tutorial_lib.checks.lab02_steps import TimedTraining
from tutorial_lib.checks.results import expect_bytes, whole_number
from tutorial_lib.checks.running import remembered

PHASES = ("forward_bytes", "backward_bytes")
_INCREMENT = "What lay there before is subtracted, as in 2.3: here the whole is wanted"


def _profile_cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    plain = {
        "num_blocks": 12,
        "width": draw.choice([24, 28, 32]),
        "rows": draw.randint(4, 6),
        "optimizer": "adamw",
        "checkpointed": False,
        "scratch": 4,
        "forward_seconds": draw.randint(10, 20) / 1000,
        "backward_seconds": draw.randint(25, 40) / 1000,
        "update_seconds": 0.25,
        "num_samples": draw.randint(6, 16),
        "repeats": 5,
    }
    # With few rows the update is the fullest phase. With many it is backward; and with a loss that
    # takes much for a moment, forward.
    rows, scratch = draw.randint(60, 90), draw.randint(800_000, 900_000)
    return [
        plain,
        plain | {"rows": rows, "checkpointed": True},
        plain | {"rows": rows, "scratch": scratch, "optimizer": "momentum"},
    ]


def _run_profile(answer: Callable[..., Any], case: Case) -> Result:
    with PretendGPU() as gpu:
        training = TimedTraining(gpu, case)
        options = {"num_samples": case["num_samples"], "repeats": case["repeats"]}
        with oracles.by_hand():
            profile = answer(training.loss, training.optimizer, gpu, gpu.now, **options)
    return {"profile": profile, "updates": training.updates}


def _judge_profile(case: Case, result: Result) -> None:
    seen, keys = result.get("profile"), (*PHASES, "samples_per_second")
    if not isinstance(seen, Mapping) or set(seen) != set(keys):
        shown = sorted(seen) if isinstance(seen, Mapping) else type(seen).__name__
        raise CheckError(f"a dict with the keys {', '.join(keys)} is needed, and {shown} came.")
    updates = whole_number(result.get("updates"), "number of steps")
    if updates < case["repeats"] + 1:
        raise CheckError(
            f"{updates} steps ran, and one of warm-up and {case['repeats']} timed ones are wanted: "
            "repeats says how many."
        )
    for key in PHASES:
        if isinstance(seen[key], int) and seen[key] < 0:
            raise CheckError(f"{key}: a negative number came. {_INCREMENT}.")
    phases = _measured(case)
    forward, backward = (whole_number(seen[key], key) for key in PHASES)
    slips = _profile_slips(case)
    expect_bytes(forward, phases["forward"], "forward_bytes", slips["forward"])
    expect_bytes(backward, phases["backward"], "backward_bytes", slips["backward"])
    _judge_rate(case, oracles.positive(seen["samples_per_second"], "samples_per_second"))


@remembered
def _measured(case: Case) -> Mapping[str, int]:
    training = TimedTraining(PretendGPU(), case)

    def step() -> None:
        training.optimizer.zero_grad()
        training.loss().backward()  # type: ignore[no-untyped-call]
        training.optimizer.step()

    return memory.measure(step, model=training.model, optimizer=training.optimizer).phases


@remembered
def _profile_slips(case: Case) -> Mapping[str, Mapping[str, int]]:
    """Read the phases of a first and a second step; give what each reading is wrong for."""
    with PretendGPU() as gpu:
        training = TimedTraining(gpu, case)
        readings = []
        for _ in range(2):
            there = gpu.memory_allocated()
            training.optimizer.zero_grad()
            cleared = gpu.memory_allocated()
            gpu.reset_peak_memory_stats()
            loss = training.loss()
            forward, between = gpu.max_memory_allocated(), gpu.memory_allocated()
            gpu.reset_peak_memory_stats()
            loss.backward()  # type: ignore[no-untyped-call]
            backward, after = gpu.max_memory_allocated(), gpu.memory_allocated()
            gpu.reset_peak_memory_stats()
            training.optimizer.step()
            readings.append((forward, backward, gpu.max_memory_allocated()))
            del loss
    (cold_forward, cold_backward, _), (forward, backward, update) = readings
    gradients = sum(p.nbytes for p in training.model.parameters())
    return {
        "forward": {
            "The mark was wiped before zero_grad, so the last step's gradients are in it: wipe it "
            "after.": max(there, forward),
            f"{_INCREMENT}.": forward - there,
            f"{_INCREMENT}, parameters and optimizer state with it.": forward - cleared,
            "It is a first step's: no optimizer state is there yet.": cold_forward,
            "It is the peak of the whole step: forget the peak before each phase, and read it "
            "after each.": max(forward, backward, update),
            "It is the peak of forward and backward: read it before backward begins.": max(
                forward, backward
            ),
            "It is what is there when forward is over: ask for the most there was.": between,
            "The last step's gradients are still there: zero_grad comes first.": forward
            + gradients,
            "The loss of the step before is still there, in a variable: let go of it.": forward + 4,
        },
        "backward": {
            f"{_INCREMENT}.": backward - there,
            f"{_INCREMENT}, parameters and optimizer state with it.": backward - cleared,
            f"{_INCREMENT}, what forward saved with it.": backward - between,
            "It is a first step's: no optimizer state is there yet.": cold_backward,
            "Forward's peak is in it: forget the peak between the two.": max(forward, backward),
            "The update is in it: read the peak before the optimizer's step.": max(
                backward, update
            ),
            "It is what is there when backward is over: ask for the most there was.": after,
        },
    }


def _judge_rate(case: Case, rate: float) -> None:
    blocks, samples = case["num_blocks"], case["num_samples"]
    forward, backward = (blocks * case[f"{phase}_seconds"] for phase in ("forward", "backward"))
    again = forward if case["checkpointed"] else 0.0
    step = forward + again + backward + case["update_seconds"]
    repeats, slow = case["repeats"], 4 * case["update_seconds"]
    mistakes = {
        "The update is not in it: a step is forward, backward and update.": samples
        / (step - case["update_seconds"]),
        "It is seconds a sample, the other way round.": step / samples,
        "It is steps a second: each step sees num_samples of them.": 1 / step,
        "It is the seconds of a step.": step,
        "A slow step has moved it: take the median step.": samples / (step + slow / repeats),
        "A slow step has moved it, and more than one: take the median.": samples
        / (step + 2 * slow / repeats),
    }
    oracles.expect_close(rate, samples / step, "samples_per_second", mistakes)


profile_step = Check(
    name="lab02.profile_step",
    exercise="2.6",
    passed="forward, backward and samples per second of three steps, two plain, one checkpointed",
    cases=_profile_cases,
    run=_run_profile,
    judge=_judge_profile,
)
