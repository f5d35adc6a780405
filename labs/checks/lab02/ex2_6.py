"""The check of 2.6: forward peak, backward peak and samples per second of a step."""

from collections.abc import Mapping

from tutorial_lib import memory
from tutorial_lib.checks.given import answered, observe
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, check, expect, read

from . import given
from .given.machine import PretendGPU
from .timing import expect_time

_PASSED = "forward, backward and samples per second of three steps, two plain, one checkpointed"
_PHASES = ("forward_bytes", "backward_bytes")
_INCREMENT = "What lay there before is subtracted, as in 2.3: here the whole is wanted"


def _cases(draw: Draw) -> Cases:
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
    yield plain
    yield plain | {"rows": rows, "checkpointed": True}
    yield plain | {"rows": rows, "scratch": scratch, "optimizer": "momentum"}


def phases_of(case: Case) -> Mapping[str, int]:
    """Measure the peak of each phase of a case's step."""
    training = given.TimedTraining(PretendGPU(), case)
    step = observe.training_step(training.loss, training.optimizer)
    return memory.measure(step, model=training.model, optimizer=training.optimizer).phases


@check(given.profile_step, _PASSED, _cases, oracle=phases_of)
def profile_step(case: Case, result: Result, phases: Mapping[str, int]) -> None:
    seen = answered.fields(result["profile"], (*_PHASES, "samples_per_second"))
    updates = read.integer(result["updates"], "number of steps")
    faults = {
        f"{updates} steps ran, and one of warm-up and {case['repeats']} timed ones are wanted: "
        "repeats says how many.": updates <= case["repeats"],
    }
    for key in _PHASES:
        is_negative = isinstance(seen[key], int) and seen[key] < 0
        faults[f"{key}: a negative number came. {_INCREMENT}."] = is_negative
    expect.no_fault(faults)
    for key in _PHASES:
        phase = key.removesuffix("_bytes")
        expect.number_of_bytes(seen[key], phases[phase], key, _faults(case, phase))
    rate, step = read.positive(seen["samples_per_second"], "samples_per_second"), _seconds(case)
    wanted = case["num_samples"] / step
    expect_time(rate, wanted, "samples_per_second", _rate_faults(case, step))


def _faults(case: Case, phase: str) -> expect.Faults:
    # the phases of a first and a second step, read in other ways
    with PretendGPU() as gpu:
        training = given.TimedTraining(gpu, case)
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
    uncleared = forward + sum(p.nbytes for p in training.model.parameters())
    both = max(forward, backward)
    yield from {
        "forward": {
            "The peak was reset before zero_grad, so the last step's gradients are in it: reset "
            "it after.": max(there, forward),
            f"{_INCREMENT}.": forward - there,
            f"{_INCREMENT}, parameters and optimizer state with it.": forward - cleared,
            "It is a first step's: no optimizer state is there yet.": cold_forward,
            "It is the peak of the whole step: reset the peak before each phase, and read it "
            "after each.": max(forward, backward, update),
            "It is the peak of forward and backward: read it before backward begins.": both,
            "It is what is there when forward is over: ask for the most there was.": between,
            "The last step's gradients are still there: zero_grad comes first.": uncleared,
            "The loss of the step before is still there, in a variable: let go of it.": forward + 4,
        },
        "backward": {
            f"{_INCREMENT}.": backward - there,
            f"{_INCREMENT}, parameters and optimizer state with it.": backward - cleared,
            f"{_INCREMENT}, what forward saved with it.": backward - between,
            "It is a first step's: no optimizer state is there yet.": cold_backward,
            "Forward's peak is in it: reset the peak between the two.": both,
            "It is what is there when backward is over: ask for the most there was.": after,
        },
    }[phase].items()


def _seconds(case: Case) -> float:
    forwards = 2 if case["checkpointed"] else 1
    block = forwards * case["forward_seconds"] + case["backward_seconds"]
    return float(case["num_blocks"] * block + case["update_seconds"])


def _rate_faults(case: Case, step: float) -> expect.Faults:
    samples, update = case["num_samples"], case["update_seconds"]
    slow = 4 * update / case["repeats"]
    yield from {
        "The update is not in it: a step is forward, backward and update.": samples
        / (step - update),
        "It is seconds a sample, the other way round.": step / samples,
        "It is steps a second: each step sees num_samples of them.": 1 / step,
        "It is the seconds of a step.": step,
        "A slow step has moved it: take the median step.": samples / (step + slow),
    }.items()
