"""The peak of a steady step."""

from tutorial_lib import memory
from wrong_answers import right, wrong


def warmed(step, warmup):
    for _ in range(warmup):
        step()


def fresh_peak(step, gpu):
    gpu.reset_peak_memory_stats()
    step()
    return gpu.max_memory_allocated()


@wrong("What lay there before the step is in it: read")
def subtracts_nothing(step, gpu, *, warmup):
    warmed(step, warmup)
    return fresh_peak(step, gpu)


@wrong("It is the first step, without optimizer state")
def measures_the_first_step(step, gpu, *, warmup):
    before = gpu.memory_allocated()
    return fresh_peak(step, gpu) - before


@wrong("It is all there was in the first step")
def measures_the_first_step_and_all_there_is(step, gpu, *, warmup):
    return fresh_peak(step, gpu)


@wrong("It is the mark of an earlier run")
def never_resets(step, gpu, *, warmup):
    warmed(step, warmup)
    before = gpu.memory_allocated()
    step()
    return gpu.max_memory_allocated() - before


@wrong("It is the highest mark that any run has left")
def reads_the_mark_that_is_there(step, gpu, *, warmup):
    warmed(step, warmup)
    step()
    return gpu.max_memory_allocated()


@wrong("It is the mark of the warm-up")
def resets_before_the_warmup(step, gpu, *, warmup):
    gpu.reset_peak_memory_stats()
    warmed(step, warmup)
    before = gpu.memory_allocated()
    step()
    return gpu.max_memory_allocated() - before


@wrong("Nothing is left when a step is over")
def reads_what_is_left(step, gpu, *, warmup):
    warmed(step, warmup)
    before = gpu.memory_allocated()
    step()
    return gpu.memory_allocated() - before


@wrong("It is what is there when the step is over")
def reads_what_is_there(step, gpu, *, warmup):
    warmed(step, warmup)
    step()
    return gpu.memory_allocated()


@wrong("What lay there was read before the warm-up")
def reads_the_ground_too_early(step, gpu, *, warmup):
    before = gpu.memory_allocated()
    warmed(step, warmup)
    return fresh_peak(step, gpu) - before


@wrong("What is there after the step was subtracted")
def reads_the_ground_too_late(step, gpu, *, warmup):
    warmed(step, warmup)
    return fresh_peak(step, gpu) - gpu.memory_allocated()


@wrong("should be an int, and is 0.")
def gives_mebibytes(step, gpu, *, warmup):
    warmed(step, warmup)
    before = gpu.memory_allocated()
    return (fresh_peak(step, gpu) - before) / 2**20


@wrong("memory.predict and memory.capped count as the oracle does")
def asks_the_meter(step, gpu, *, warmup):
    report = memory.measure(step, warmup=warmup)
    return report.peak_bytes - report.baseline_bytes


@right
def wipes_then_reads(step, gpu, *, warmup):
    warmed(step, warmup)
    gpu.reset_peak_memory_stats()
    before = gpu.max_memory_allocated()
    step()
    return gpu.max_memory_allocated() - before


@right
def takes_the_last_of_several(step, gpu, *, warmup):
    for _ in range(warmup + 1):
        gpu.synchronize()
        before = gpu.memory_allocated()
        peak = fresh_peak(step, gpu)
    return peak - before
