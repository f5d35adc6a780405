"""The peak of a steady step."""

from solutions.answers import right, wrong
from tutorial_lib import memory

subtracts_nothing = wrong("You counted what was there before the step", " - there_before", "")
measures_the_first_step = wrong(
    "It is the first step, without optimizer state",
    "    for _ in range(warmup):\n        step()\n",
    "",
)
measures_the_first_step_and_all_there_is = wrong(
    "It is all memory of the first step", "range(warmup)", "range(0)", " - there_before", ""
)
never_resets = wrong("It is the peak of an earlier run", "    gpu.reset_peak_memory_stats()\n", "")
reads_the_mark_that_is_there = wrong(
    "It is the highest peak of any run",
    "    gpu.reset_peak_memory_stats()\n",
    "",
    " - there_before",
    "",
)
resets_before_the_warmup = wrong(
    "It is the peak of the warm-up",
    "    gpu.reset_peak_memory_stats()\n",
    "",
    "    for _",
    "    gpu.reset_peak_memory_stats()\n    for _",
)
reads_what_is_left = wrong(
    "Nothing is left when a step is over", "gpu.max_memory_allocated()", "gpu.memory_allocated()"
)
reads_what_is_there = wrong(
    "It is what is allocated after the step",
    "gpu.max_memory_allocated() - there_before",
    "gpu.memory_allocated()",
)
reads_the_ground_too_early = wrong(
    "You read what was there before the warm-up",
    "    there_before = gpu.memory_allocated()\n",
    "",
    "    for _",
    "    there_before = gpu.memory_allocated()\n    for _",
)
reads_the_ground_too_late = wrong(
    "You subtracted what is there after the step", "- there_before", "- gpu.memory_allocated()"
)
gives_mebibytes = wrong(
    "should be an int, but is 0.", "- there_before", "/ 2**20 - there_before / 2**20"
)
warms_up_once = wrong("2 steps ran, but 3 should", "range(warmup)", "range(1)")
wipes_then_reads = right(
    "    there_before = gpu.memory_allocated()\n",
    "",
    "stats()\n    step()",
    "stats()\n    there_before = gpu.max_memory_allocated()\n    step()",
)


@wrong("memory.predict and memory.capped count as the oracle does")
def asks_the_meter(step, gpu, *, warmup):
    report = memory.measure(step, warmup=warmup)
    return report.peak_bytes - report.baseline_bytes


@right
def takes_the_last_of_several(step, gpu, *, warmup):
    for _ in range(warmup + 1):
        gpu.synchronize()
        before = gpu.memory_allocated()
        gpu.reset_peak_memory_stats()
        step()
        peak = gpu.max_memory_allocated()
    return peak - before
