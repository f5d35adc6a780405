"""Answers to 4.3, the fewest forwards."""

import math
from functools import cache

from tutorial_lib.instruments import planning
from wrong_answers import right, wrong


def fewest(num_stages, num_places, ways, alone=math.inf):
    """Solve the recursion; `ways` lists the sums over which the minimum is taken."""

    @cache
    def best(n, c):
        if n == 1:
            return 1
        return min(ways(best, n, c)) if c > 0 else alone

    return best(num_stages, num_places)


def usual(best, n, c):
    return [k + best(n - k, c - 1) + best(k, c) for k in range(1, n)]


@wrong("that is without any boundary but the input")
def uses_no_boundary(num_stages, num_places):
    return num_stages * (num_stages + 1) // 2


@wrong("the first runs are missing")
def counts_what_runs_again(num_stages, num_places):
    return fewest(num_stages, num_places, usual) - num_stages


@wrong("that needs one place more")
def gives_the_input_no_place(num_stages, num_places):
    return fewest(num_stages, num_places + 1, usual)


@wrong("that does with one place fewer")
def gives_the_running_stage_a_place(num_stages, num_places):
    if num_places == 1:
        return num_stages * (num_stages + 1) // 2
    return fewest(num_stages, num_places - 1, usual)


@wrong("its places are free again")
def gives_no_place_back(num_stages, num_places):
    def ways(best, n, c):
        splits = [k + best(n - k, c - 1) + best(k, c - 1) for k in range(1, n) if c > 1]
        return splits or [n * (n + 1) // 2]

    return fewest(num_stages, num_places, ways)


@wrong("a single stage needs one forward, without a place too")
def looks_at_the_places_first(num_stages, num_places):
    @cache
    def best(n, c):
        if c == 0:
            return math.inf
        return 1 if n == 1 else min(usual(best, n, c))

    return best(num_stages, num_places)


@wrong("give the first part all c places")
def takes_a_place_from_both_parts(num_stages, num_places):
    def ways(best, n, c):
        return [k + best(n - k, c - 1) + best(k, c - 1) for k in range(1, n)]

    return fewest(num_stages, num_places, ways)


@wrong("is every k tried, up to n - 1?")
def never_tries_the_last_k(num_stages, num_places):
    return fewest(
        num_stages,
        num_places,
        lambda best, n, c: usual(best, n, c)[:-1] or [math.inf],
    )


@wrong("boundaries are set in the middle each time")
def sets_boundaries_in_the_middle(num_stages, num_places):
    def ways(best, n, c):
        return usual(best, n, c) if c == 1 else [usual(best, n, c)[n // 2 - 1]]

    return fewest(num_stages, num_places, ways)


@wrong("planning.solve and planning.floor_bytes are the library's solver")
def asks_the_solver(num_stages, num_places):
    stage = planning.Stage(forward_seconds=1, backward_seconds=1, input_bytes=1, saved_bytes=99)
    found = planning.solve([stage] * num_stages, budget_bytes=num_places + 101)
    return sum(found.forward_executions)


@right
def with_the_closed_form(num_stages, num_places):
    if num_stages == 1:
        return 1
    times = 0
    while math.comb(num_places + times, times) < num_stages:
        times += 1
    return (times + 1) * num_stages - math.comb(num_places + times, num_places + 1)


@right
def from_the_smallest_up(num_stages, num_places):
    before = [1] + [math.inf] * (num_stages - 1)
    for _ in range(num_places):
        row = [1]
        for n in range(2, num_stages + 1):
            row.append(min(k + before[n - k - 1] + row[k - 1] for k in range(1, n)))
        before = row
    return before[-1]
