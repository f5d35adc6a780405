"""Answers to 4.4, Revolve's tree."""

import math
from functools import cache

from tutorial_lib.instruments.planning import solve
from tutorial_lib.instruments.planning.chain.stages import Stage
from wrong_answers import right, wrong


@cache
def fewest(n, c):
    if n == 1:
        return 1, 0
    if c == 0:
        return math.inf, 1
    return min((k + fewest(n - k, c - 1)[0] + fewest(k, c)[0], k) for k in range(1, n))


def best_split(n, c):
    return fewest(n, c)[1]


def tree(start, n, c, split=best_split, inside=lambda c: c, later=lambda c: c - 1):
    """The right answer where no function is given."""
    if n == 1:
        return (start,)
    k = split(n, c)
    first = tree(start, k, inside(c), split, inside, later)
    return (first, *tree(start + k, n - k, later(c), split, inside, later))


@wrong("no stage runs twice in")
def keeps_everything(num_stages, num_places):
    return tuple(range(num_stages))


@wrong("stages are kept side by side in")
def takes_segments_of_three(num_stages, num_places):
    parts = [tuple(range(at, min(at + 3, num_stages))) for at in range(0, num_stages, 3)]
    return (*parts[:-1], *parts[-1])


@wrong("places are taken at once")
def checkpoints_each_stage(num_stages, num_places):
    return (*((index,) for index in range(num_stages - 1)), num_stages - 1)


@wrong("The first segment leaves places empty")
def gives_the_segment_one_place(num_stages, num_places):
    def split(n, c):
        return best_split(n, c) if c > 1 else n - 1

    return tree(0, num_stages, num_places, split, inside=lambda c: 1)


@wrong("A boundary stands in another place")
def splits_in_the_middle(num_stages, num_places):
    return tree(0, num_stages, num_places, lambda n, c: n // 2 if c > 1 else n - 1)


@wrong("in ((((0,), (1,)), (2,)), (3,)) a tuple ends with a tuple")
def nests_the_later_part(num_stages, num_places):
    def nested(start, n, c):
        k = best_split(n, c)
        return (nested(start, k, c), nested(start + k, n - k, c - 1)) if n > 1 else (start,)

    return nested(0, num_stages, num_places)


@wrong("those from 0 to 3 are needed, each once and in order")
def begins_each_part_with_zero(num_stages, num_places):
    if num_stages == 1:
        return (0,)
    k = best_split(num_stages, num_places)
    return (
        begins_each_part_with_zero(k, num_places),
        *begins_each_part_with_zero(num_stages - k, num_places - 1),
    )


@wrong("the tree should be a tuple, and is int")
def gives_the_number(num_stages, num_places):
    return fewest(num_stages, num_places)[0]


@wrong("planning.solve and planning.floor_bytes are the library's solver")
def asks_the_solver(num_stages, num_places):
    stage = Stage(forward_seconds=1, backward_seconds=1, input_bytes=1, saved_bytes=99)
    return solve([stage] * num_stages, budget_bytes=num_places + 101).tree


@right
def from_pairs(num_stages, num_places):
    return tree(0, num_stages, num_places)


@right
def with_the_later_of_equal_splits(num_stages, num_places):
    def split(n, c):
        return max(k for k in range(1, n) if sums(n, c, k) == fewest(n, c)[0])

    def sums(n, c, k):
        return k + fewest(n - k, c - 1)[0] + fewest(k, c)[0]

    return tree(0, num_stages, num_places, split)
