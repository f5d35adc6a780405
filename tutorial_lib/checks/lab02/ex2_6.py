"""The check of 2.6: forward peak, backward peak and samples per second of a step."""

from __future__ import annotations

import random
from collections.abc import Mapping

from tutorial_lib import memory
from tutorial_lib.checks.core import Answer, Case, Check, CheckError, Result
from tutorial_lib.checks.given import answered, observe
from tutorial_lib.checks.lab02 import machine
from tutorial_lib.checks.lab02.steps import TimedTraining
from tutorial_lib.checks.vocabulary import expect, read

_PHASES = ("forward_bytes", "backward_bytes")
_INCREMENT = "What lay there before is subtracted, as in 2.3: here the whole is wanted"


def _cases(seed: int) -> list[Case]:
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


def _run(answer: Answer, case: Case) -> Result:
    with machine.PretendGPU() as gpu:
        training = TimedTraining(gpu, case)
        options = {"num_samples": case["num_samples"], "repeats": case["repeats"]}
        with machine.without_instruments():
            profile = answer(training.loss, training.optimizer, gpu, gpu.now, **options)
    return {"profile": profile, "updates": training.updates}


def phases_of(case: Case) -> Mapping[str, int]:
    """Measure the peak of each phase of a case's step."""
    training = TimedTraining(machine.PretendGPU(), case)
    step = observe.training_step(training.loss, training.optimizer)
    return memory.measure(step, model=training.model, optimizer=training.optimizer).phases


def _judge(case: Case, result: Result, phases: Mapping[str, int]) -> None:
    seen = answered.fields(result.get("profile"), (*_PHASES, "samples_per_second"))
    updates = read.integer(result.get("updates"), "number of steps")
    if updates < case["repeats"] + 1:
        raise CheckError(
            f"{updates} steps ran, and one of warm-up and {case['repeats']} timed ones are wanted: "
            "repeats says how many."
        )
    for key in _PHASES:
        if isinstance(seen[key], int) and seen[key] < 0:
            raise CheckError(f"{key}: a negative number came. {_INCREMENT}.")
    for key in _PHASES:
        phase = key.removesuffix("_bytes")
        expect.number_of_bytes(seen[key], phases[phase], key, _faults(case, phase))
    rate, wanted = read.positive(seen["samples_per_second"], "samples_per_second"), _rate(case)
    machine.expect_time(rate, wanted, "samples_per_second", _rate_faults(case, wanted))


def _faults(case: Case, phase: str) -> expect.Faults:
    """Read the phases of a first and a second step in other ways."""
    with machine.PretendGPU() as gpu:
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
    yield from {
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
    }[phase].items()


def _rate(case: Case) -> float:
    forward, backward = case["forward_seconds"], case["backward_seconds"]
    again = forward if case["checkpointed"] else 0.0
    step = case["num_blocks"] * (forward + again + backward) + case["update_seconds"]
    return float(case["num_samples"] / step)


def _rate_faults(case: Case, rate: float) -> expect.Faults:
    samples, update = case["num_samples"], case["update_seconds"]
    step, slow = samples / rate, 4 * update / case["repeats"]
    yield from {
        "The update is not in it: a step is forward, backward and update.": samples
        / (step - update),
        "It is seconds a sample, the other way round.": 1 / rate,
        "It is steps a second: each step sees num_samples of them.": 1 / step,
        "It is the seconds of a step.": step,
        "A slow step has moved it: take the median step.": samples / (step + slow),
        "A slow step has moved it, and more than one: take the median.": samples
        / (step + 2 * slow),
    }.items()


profile_step = Check(
    "lab02.profile_step",
    "2.6",
    "forward, backward and samples per second of three steps, two plain, one checkpointed",
    _cases,
    _run,
    _judge,
    oracle=phases_of,
    forbidden=machine.NO_INSTRUMENTS,
)
