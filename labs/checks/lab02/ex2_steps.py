"""The checks of 2.6 and 2.7: a step's profile, and the smallest card on which it may run."""

from collections.abc import Mapping

from tutorial_lib import memory
from tutorial_lib.checks.given import answered, observe
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read
from tutorial_lib.units import MIB

from . import given
from .ex2_seconds import expect_time
from .given.machine import PretendGPU

_PASSED_2_6 = "right times of forward and backward, and right samples per second, in each step"
_PHASES = ("forward_bytes", "backward_bytes")
_INCREMENT = "You subtracted what was there before, as in 2.3: here, return the whole peak"
_PASSED_2_7 = "finds the smallest card that leaves PyTorch what the step needs"


def _cases_2_6(draw: Draw) -> Cases:
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
    yield plain | {"rows": rows, "checkpointed": True, "repeats": 1}  # no median hides the queue
    yield plain | {"rows": rows, "scratch": scratch, "optimizer": "momentum"}


def phases_of(case: Case) -> Mapping[str, int]:
    """Measure the peak of each phase of a case's step."""
    training = given.TimedTraining(PretendGPU(), case)
    step = observe.training_step(training.loss, training.optimizer)
    return memory.measure(step, model=training.model, optimizer=training.optimizer).phases


@check(given.profile_step, _PASSED_2_6, _cases_2_6, oracle=phases_of)
def profile_step(case: Case, result: Result, phases: Mapping[str, int]) -> None:
    seen = answered.fields(result["profile"], (*_PHASES, "samples_per_second"))
    updates = read.integer(result["updates"], "number of steps")
    faults = {
        f"{updates} steps ran, but one of warm-up and {case['repeats']} timed ones are needed: "
        "repeats says how many.": updates <= case["repeats"],
    }
    for key in _PHASES:
        is_negative = isinstance(seen[key], int) and seen[key] < 0
        faults[f"{key}: a negative number came. {_INCREMENT}."] = is_negative
    expect.no_fault(faults)
    for key in _PHASES:
        phase = key.removesuffix("_bytes")
        expect.number_of_bytes(seen[key], phases[phase], key, _faults_2_6(case, phase))
    rate, step = read.positive(seen["samples_per_second"], "samples_per_second"), _seconds(case)
    wanted = case["num_samples"] / step
    expect_time(rate, wanted, "samples_per_second", _rate_faults(case, step))


def _faults_2_6(case: Case, phase: str) -> expect.Faults:
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
            "You reset the peak before zero_grad, so it includes the last step's gradients: reset "
            "it after.": max(there, forward),
            f"{_INCREMENT}.": forward - there,
            f"{_INCREMENT}, parameters and optimizer state with it.": forward - cleared,
            "It is a first step's: no optimizer state is there yet.": cold_forward,
            "It is the peak of the whole step: reset the peak before each phase, and read it "
            "after each.": max(forward, backward, update),
            "It is the peak of forward and backward: read it before backward begins.": both,
            "It is what is allocated after forward: read the most during it.": between,
            "The last step's gradients are still there: zero_grad comes first.": uncleared,
            "The loss of the step before is still held by a variable: delete it.": forward + 4,
        },
        "backward": {
            f"{_INCREMENT}.": backward - there,
            f"{_INCREMENT}, parameters and optimizer state with it.": backward - cleared,
            f"{_INCREMENT}, what forward saved with it.": backward - between,
            "It is a first step's: no optimizer state is there yet.": cold_backward,
            "Your number includes forward's peak: reset it in between.": both,
            "It is what is allocated after backward: read the most during it.": after,
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
        "You left out the update: a step is forward, backward and update.": samples
        / (step - update),
        "It is seconds per sample: turn it round.": step / samples,
        "It is steps per second: each step sees num_samples samples.": 1 / step,
        "It is the seconds of a step.": step,
        "One slow step changed it a lot: take the median step.": samples / (step + slow),
        "Work of the warm-up was still in the queue when the clock started: wait for it "
        "first.": samples / (2 * step + 39 * update),  # the first update is 40 times as long
    }.items()


def _cases_2_7(draw: Draw) -> Cases:
    """Draw a step between whose numbers there are cards, unlike contexts, and too large a step."""
    needs, context = draw.randint(5_000, 9_000) * MIB, draw.randint(300, 500) * MIB
    reserved = int(1.2 * needs)
    seen = int(1.1 * reserved) + context
    spare = draw.randint(20, 60) * MIB
    edges = (needs, needs + context, reserved, reserved + context, seen, seen + context)
    cards = [[edge + spare, context + 1] for edge in edges]
    cards += [[needs + context, context], [int(1.08 * needs) + context, context]]
    cards += [[needs // 2, context // 4], [4 * seen, context]]
    draw.shuffle(cards)
    cards.insert(0, [2 * seen, context])  # the first one is neither the smallest nor the largest
    run = {"allocated": needs, "reserved": reserved, "seen": seen}
    yield {"run": run, "cards": cards}
    unlike = [[2 * seen, context], [needs + 2 * context, 2 * context], [needs + context, 9 * MIB]]
    yield {"run": run, "cards": unlike}
    yield {"run": {name: 9 * size for name, size in run.items()}, "cards": cards[:6]}


def _smallest(case: Case, number: str = "allocated", *, context: bool = True) -> int:
    room = {memory: memory - held * context for memory, held in case["cards"]}
    return min((m for m, free in room.items() if free >= case["run"][number]), default=0)


@check(given.smallest_card, _PASSED_2_7, _cases_2_7)
def smallest_card(case: Case, result: Result) -> None:
    name = f"smallest_card for {case['run']['allocated']:,} bytes allocated"
    seen = read.integer(result["memory"], name)
    expect.close(
        seen,
        _smallest(case),
        _faults_2_7(case),
        otherwise=f"{seen:,} bytes are not the memory of the smallest card that is not ruled out: "
        "which number does a capped run never go below, and what is left for PyTorch?",
        where=f"{name}: ",
    )


def _faults_2_7(case: Case) -> Faults:
    needs = case["run"]["allocated"]
    room = {memory: memory - held for memory, held in case["cards"] if memory - held >= needs}
    exact = min((memory for memory, free in room.items() if free > needs), default=0)
    without, seen = _smallest(case, context=False), _smallest(case, "seen", context=False)
    largest, first = max(room, default=0), next(iter(room), 0)
    narrowest, left = min(room, key=room.__getitem__, default=0), min(room.values(), default=0)
    yield from {
        "One that leaves PyTorch exactly what the step needs is enough: >=, not >.": exact,
        "PyTorch can't use what CUDA's context holds: subtract it.": without,
        "That card holds all that an uncapped run reserved. Under a cap the allocator gives back "
        "the blocks that it keeps, and the step runs on less.": _smallest(case, "reserved"),
        "That card holds all that the allocator reserved, but CUDA's context isn't "
        "subtracted.": _smallest(case, "reserved", context=False),
        "That holds what nvidia-smi showed uncapped, which takes more than it needs.": seen,
        "That card holds what nvidia-smi showed plus a second context, but nvidia-smi includes the "
        "context.": _smallest(case, "seen"),
        "The step may run on that card, and on a smaller one too: it is the largest.": largest,
        "The step runs on that card, and on a smaller one too: it is the first in the list.": first,
        "That card leaves PyTorch the least room that is enough, since its context holds more: a "
        "card with less memory is enough too.": narrowest,
        "That is what the card leaves to PyTorch: return the card's memory.": left,
    }.items()
