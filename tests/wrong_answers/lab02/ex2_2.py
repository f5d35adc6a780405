"""How much slower one step is than another."""

import statistics

from wrong_answers import right, solved, wrong


def pairs(plain, other, gpu, clock, repeats, *, untimed=True):
    """Time pairs in turn, after one untimed run of each."""
    if untimed:
        plain()
        other()
    for _ in range(repeats):
        yield tuple(timed(step, gpu, clock) for step in (plain, other))


def timed(step, gpu, clock):
    return solved("lab02").step_seconds(step, gpu, clock, warmup=0, repeats=1)


@wrong("The two did not run in turn")
def times_one_after_the_other(plain, other, gpu, clock, *, repeats):
    first, second = (
        solved("lab02").step_seconds(step, gpu, clock, warmup=1, repeats=repeats)
        for step in (plain, other)
    )
    return second / first


@wrong("run each step once before the first pair")
def warms_up_each_pair(plain, other, gpu, clock, *, repeats):
    one = {"warmup": 1, "repeats": 1}
    steps = [solved("lab02").step_seconds] * repeats
    return statistics.median(
        seconds(other, gpu, clock, **one) / seconds(plain, gpu, clock, **one) for seconds in steps
    )


@wrong("It is a ratio of two medians")
def divides_the_medians(plain, other, gpu, clock, *, repeats):
    first, second = zip(*pairs(plain, other, gpu, clock, repeats), strict=True)
    return statistics.median(second) / statistics.median(first)


@wrong("It is a ratio of two sums")
def divides_the_totals(plain, other, gpu, clock, *, repeats):
    first, second = zip(*pairs(plain, other, gpu, clock, repeats), strict=True)
    return sum(second) / sum(first)


@wrong("It is the mean of the ratios")
def takes_the_mean(plain, other, gpu, clock, *, repeats):
    return statistics.mean(b / a for a, b in pairs(plain, other, gpu, clock, repeats))


@wrong("It is the other way round")
def divides_the_other_way(plain, other, gpu, clock, *, repeats):
    return statistics.median(a / b for a, b in pairs(plain, other, gpu, clock, repeats))


@wrong("It is what comes on top")
def gives_what_comes_on_top(plain, other, gpu, clock, *, repeats):
    return statistics.median(b / a - 1 for a, b in pairs(plain, other, gpu, clock, repeats))


@wrong("The first run of each is cold, and yours")
def times_the_cold_runs(plain, other, gpu, clock, *, repeats):
    ratios = (b / a for a, b in pairs(plain, other, gpu, clock, repeats, untimed=False))
    return statistics.median(ratios)


@wrong("Two launches take the same time")
def never_waits(plain, other, gpu, clock, *, repeats):
    ratios = []
    for _ in range(repeats):
        start = clock()
        plain()
        middle = clock()
        other()
        ratios.append((clock() - middle) / (middle - start))
    return statistics.median(ratios)


@wrong("It is none of the usual faults")
def waits_once_a_pair(plain, other, gpu, clock, *, repeats):
    ratios = []
    for _ in range(repeats):
        start = clock()
        plain()
        middle = clock()
        other()
        gpu.synchronize()
        ratios.append((clock() - middle) / (middle - start))
    return statistics.median(ratios)


@right
def in_turn(plain, other, gpu, clock, *, repeats):
    return statistics.median(b / a for a, b in pairs(plain, other, gpu, clock, repeats))


@right
def the_other_first_in_every_second_pair(plain, other, gpu, clock, *, repeats):
    plain()
    other()
    ratios = []
    for index in range(repeats):
        order = (plain, other) if index % 2 else (other, plain)
        seconds = {step: timed(step, gpu, clock) for step in order}
        ratios.append(seconds[other] / seconds[plain])
    return statistics.median(ratios)
