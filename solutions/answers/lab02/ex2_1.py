"""The seconds of a step."""

from solutions.answers import right, wrong

never_waits = wrong(
    "That is how long a launch takes",
    "        gpu.synchronize()\n        start",
    "        start",
    "        gpu.synchronize()\n        seconds",
    "        seconds",
)
starts_cold = wrong("steps were not warmed up", "    for _ in range(warmup):\n        step()\n", "")
forgets_to_wait_for_the_warmup = wrong(
    "when the clock started: wait for it first.",
    "        gpu.synchronize()\n        start",
    "        start",
)
takes_the_mean = wrong(
    "It is the mean, which one slow step changes", "statistics.median", "statistics.mean"
)
adds_them_up = wrong("It is the sum of all timed steps", "statistics.median", "sum")
takes_the_fastest = wrong("It is the fastest step", "statistics.median", "min")
times_the_warmup_too = wrong(
    "The warm-up steps are among the timed ones",
    "    for _ in range(warmup):\n        step()\n",
    "",
    "range(repeats)",
    "range(warmup + repeats)",
)
gives_milliseconds = wrong("It is in milliseconds", "return ", "return 1000 * ")
has_its_own_idea_of_how_often = wrong(
    "warmup and repeats say how many to run",
    "range(warmup)",
    "range(10)",
    "range(repeats)",
    "range(20)",
)
subtracts_the_wrong_way = wrong(
    "should be positive and finite, but is -", "clock() - start", "start - clock()"
)
prints_and_returns_nothing = wrong(
    "should be a number, but is None",
    "return statistics.median(seconds)",
    "print(statistics.median(seconds))",
)
waits_after_every_step = right(
    "        gpu.synchronize()\n        start",
    "        start",
    "    seconds = []",
    "    gpu.synchronize()\n    seconds = []",
)
takes_the_upper_one = wrong(
    "It is the upper of the two steps", "statistics.median", "statistics.median_high"
)
takes_a_low_median = wrong(
    "It is the lower of the two steps", "statistics.median", "statistics.median_low"
)
reads_the_computers_clock = wrong(
    "so these seconds come from a different clock",
    "    seconds =",
    "    from time import perf_counter as clock\n    seconds =",
)


def warmed(step, warmup):
    for _ in range(warmup):
        step()


@wrong("It is a mean that includes work of the warm-up")
def waits_at_the_very_end(step, gpu, clock, *, warmup, repeats):
    warmed(step, warmup)
    start = clock()
    warmed(step, repeats)
    gpu.synchronize()
    return (clock() - start) / repeats


def seconds_of_each(step, gpu, clock, warmup, repeats):
    ends = []
    for _ in range(warmup + repeats):
        gpu.synchronize()
        ends.append(clock())
        step()
    gpu.synchronize()
    ends.append(clock())
    return sorted(ends[i + 1] - ends[i] for i in range(warmup, warmup + repeats))


@right
def sorts_and_takes_the_middle(step, gpu, clock, *, warmup, repeats):
    times = seconds_of_each(step, gpu, clock, warmup, repeats)
    return (times[(repeats - 1) // 2] + times[repeats // 2]) / 2
