"""Answers to 4.3, the fewest forwards."""

import math

from solutions.answers import right, wrong
from tutorial_lib.instruments import planning

uses_no_boundary = wrong(
    "that is with the input as the only boundary",
    "fewest(num_stages, num_places)",
    "num_stages * (num_stages + 1) // 2",
)
counts_what_runs_again = wrong(
    "the first runs are missing",
    "fewest(num_stages, num_places)",
    "fewest(num_stages, num_places) - num_stages",
)
gives_the_input_no_place = wrong(
    "your way needs one place more", "num_stages, num_places)", "num_stages, num_places + 1)"
)
gives_the_running_stage_a_place = wrong(
    "your way uses one place fewer",
    "num_stages, num_places)",
    "num_stages, max(1, num_places - 1))",
)
gives_no_place_back = wrong(
    "its places are free again",
    "fewest(k, c)",
    "fewest(k, c - 1)",
    "c == 0",
    "c == 1",
    "math.inf",
    "n * (n + 1) // 2",
)
looks_at_the_places_first = wrong(
    "a single stage needs one forward, even with no place",
    "            return 1\n",
    "            return 1 if c else math.inf\n",
)
takes_a_place_from_both_parts = wrong(
    "give the first part all c places", "fewest(k, c)", "fewest(k, c - 1)"
)
never_tries_the_last_k = wrong(
    "is every k tried, up to n - 1?",
    "for k in range(1, n))",
    "for k in range(1, n - 1)) if n > 2 else math.inf",
)
sets_boundaries_in_the_middle = wrong(
    "boundaries are set in the middle each time",
    "range(1, n)",
    "([n // 2] if c > 1 else range(1, n))",
)


looks_into_a_table = wrong(
    "forwards are fewer than are possible",
    "return fewest(num_stages, num_places)",
    "return fewest(min(num_stages, 60), min(num_places, 12))",
)


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
