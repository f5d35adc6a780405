"""How much slower one step is than another."""

import statistics

from solutions.answers import right, solved, wrong

warms_up_each_pair = wrong(
    "run each step once before the first pair",
    "    plain()\n    other()\n",
    "",
    "(plain, gpu, clock, warmup=0",
    "(plain, gpu, clock, warmup=1",
    "(other, gpu, clock, warmup=0",
    "(other, gpu, clock, warmup=1",
)
takes_the_mean = wrong("It is the mean of the ratios", "statistics.median", "statistics.mean")
divides_the_other_way = wrong("It is upside down", "second / first", "first / second")
gives_what_comes_on_top = wrong("just the added share", "second / first", "second / first - 1")
times_the_cold_runs = wrong(
    "The first run of each is cold, but you", "    plain()\n    other()\n", ""
)
warms_up_plain_alone = wrong("One of the two was cold", "    other()\n", "")


def pairs(plain, other, gpu, clock, repeats):
    """Time pairs in turn, after one untimed run of each."""
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


@wrong("It is a ratio of two medians")
def divides_the_medians(plain, other, gpu, clock, *, repeats):
    first, second = zip(*pairs(plain, other, gpu, clock, repeats), strict=True)
    return statistics.median(second) / statistics.median(first)


@wrong("It is a ratio of two sums")
def divides_the_totals(plain, other, gpu, clock, *, repeats):
    first, second = zip(*pairs(plain, other, gpu, clock, repeats), strict=True)
    return sum(second) / sum(first)


def by_hand(wait):
    def slowdown(plain, other, gpu, clock, *, repeats):
        ratios = []
        for _ in range(repeats):
            start = clock()
            plain()
            middle = clock()
            other()
            wait(gpu)
            ratios.append((clock() - middle) / (middle - start))
        return statistics.median(ratios)

    return slowdown


never_waits = wrong("Two launches take the same time")(by_hand(lambda gpu: None))
waits_once_a_pair = wrong("It is none of the usual faults")(by_hand(lambda gpu: gpu.synchronize()))


@wrong("The untimed runs were still in the queue")
def waits_after_timed_runs_alone(plain, other, gpu, clock, *, repeats):
    plain()
    other()
    ratios = []
    for _ in range(repeats):
        times = [clock()]
        for step in (plain, other):
            step()
            gpu.synchronize()
            times.append(clock())
        ratios.append((times[2] - times[1]) / (times[1] - times[0]))
    return statistics.median(ratios)


@wrong("steps ran, but 4 should")
def always_times_nine_pairs(plain, other, gpu, clock, *, repeats):
    plain()
    other()
    ratios = [timed(other, gpu, clock) / timed(plain, gpu, clock) for _ in range(9)]
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
