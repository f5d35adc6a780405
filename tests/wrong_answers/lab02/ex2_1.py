"""The seconds of a step."""

import statistics
import time

from wrong_answers import right, wrong


def warmed(step, warmup):
    for _ in range(warmup):
        step()


def each(step, gpu, clock, repeats):
    """Time steps one by one; what was queued before is the first one's."""
    for _ in range(repeats):
        start = clock()
        step()
        gpu.synchronize()
        yield clock() - start


@wrong("That is how long a launch takes")
def never_waits(step, gpu, clock, *, warmup, repeats):
    warmed(step, warmup)
    start = clock()
    warmed(step, repeats)
    return (clock() - start) / repeats


@wrong("steps were not warmed up")
def starts_cold(step, gpu, clock, *, warmup, repeats):
    return statistics.median(each(step, gpu, clock, repeats))


@wrong("when the clock started: wait for it first.")
def forgets_to_wait_for_the_warmup(step, gpu, clock, *, warmup, repeats):
    warmed(step, warmup)
    return statistics.median(each(step, gpu, clock, repeats))


@wrong("It is a mean, with work of the warm-up")
def waits_at_the_very_end(step, gpu, clock, *, warmup, repeats):
    warmed(step, warmup)
    start = clock()
    warmed(step, repeats)
    gpu.synchronize()
    return (clock() - start) / repeats


@wrong("It is the mean, which one slow step has moved")
def takes_the_mean(step, gpu, clock, *, warmup, repeats):
    warmed(step, warmup)
    gpu.synchronize()
    return statistics.mean(each(step, gpu, clock, repeats))


@wrong("It is the sum of all timed steps")
def adds_them_up(step, gpu, clock, *, warmup, repeats):
    warmed(step, warmup)
    gpu.synchronize()
    return sum(each(step, gpu, clock, repeats))


@wrong("It is the fastest step")
def takes_the_fastest(step, gpu, clock, *, warmup, repeats):
    warmed(step, warmup)
    gpu.synchronize()
    return min(each(step, gpu, clock, repeats))


@wrong("The warm-up steps are among the timed ones")
def times_the_warmup_too(step, gpu, clock, *, warmup, repeats):
    return statistics.median(each(step, gpu, clock, warmup + repeats))


@wrong("It is in milliseconds")
def gives_milliseconds(step, gpu, clock, *, warmup, repeats):
    warmed(step, warmup)
    gpu.synchronize()
    return 1000 * statistics.median(each(step, gpu, clock, repeats))


@wrong("warmup and repeats say how many to run")
def has_its_own_idea_of_how_often(step, gpu, clock, *, warmup, repeats):
    warmed(step, 10)
    gpu.synchronize()
    return statistics.median(each(step, gpu, clock, 20))


@wrong("should be positive and finite, and is -")
def subtracts_the_wrong_way(step, gpu, clock, *, warmup, repeats):
    warmed(step, warmup)
    gpu.synchronize()
    return -statistics.median(each(step, gpu, clock, repeats))


@wrong("should be a number, and is None")
def prints_and_returns_nothing(step, gpu, clock, *, warmup, repeats):
    warmed(step, warmup)
    gpu.synchronize()
    print(statistics.median(each(step, gpu, clock, repeats)))


@right
def waits_after_every_step(step, gpu, clock, *, warmup, repeats):
    warmed(step, warmup)
    gpu.synchronize()
    return statistics.median(each(step, gpu, clock, repeats))


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


@wrong("It is the upper of the two steps")
def takes_the_upper_one(step, gpu, clock, *, warmup, repeats):
    return seconds_of_each(step, gpu, clock, warmup, repeats)[repeats // 2]


@wrong("It is the lower of the two steps")
def takes_a_low_median(step, gpu, clock, *, warmup, repeats):
    return statistics.median_low(seconds_of_each(step, gpu, clock, warmup, repeats))


@wrong("so these are the seconds of another one")
def reads_the_computers_clock(step, gpu, clock, *, warmup, repeats):
    return statistics.median(seconds_of_each(step, gpu, time.perf_counter, warmup, repeats))
