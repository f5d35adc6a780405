"""Answers to 4.6, the fastest tree within a budget."""

import math
from functools import cache

from solutions.answers import right, solved, wrong
from tutorial_lib.instruments import planning
from tutorial_lib.instruments.planning.chain.solve import solve

keeps_everything = wrong(
    "It keeps everything",
    "return fastest(0, len(stages) - 1, budget_bytes - stages[0].input_bytes)[1]",
    "return tuple(range(len(stages)))",
)
refuses_nothing = wrong(
    "a tree came back for a budget that no tree fits into",
    'raise ValueError(f"{budget_bytes} bytes are too few: at least {floor} bytes.")',
    "budget_bytes = floor",
)
names_no_floor = wrong(
    "raise a ValueError that names the smallest budget in bytes",
    "{floor} bytes",
    "{floor / 1024:.1f} KiB",
)
names_everything = wrong(
    "the error has 1002 numbers",
    "{floor} bytes.",
    "{[*range(floor - 500, floor + 501)]} bytes.",
)
refuses_the_floor_itself = wrong("the budget is exactly the smallest one", "< floor", "<= floor")
forgets_the_input = wrong(
    "The chain's own input is held all the time", " - stages[0].input_bytes", ""
)
keeps_as_at_the_end = wrong(
    "`kept_needs` was asked for the end of the chain",
    "kept_needs(stages, start, end)",
    "kept_needs(stages, start, len(stages) - 1)",
)
drops_as_at_the_end = wrong(
    "`dropped_needs` was asked for the end of the chain",
    "split, end) <=",
    "split, len(stages) - 1) <=",
)
stays_at_the_floor = wrong(
    "it is the tree with the smallest peak", "budget_bytes - stages", "floor - stages"
)
sorts_the_ways = right(
    "min(ways, key=lambda way: way[0])", "sorted(ways, key=lambda way: way[0])[0]"
)


def refuse(stages, budget_bytes):
    floor = solved("lab04").smallest_budget(stages)
    if budget_bytes < floor:
        raise ValueError(f"{budget_bytes} bytes are too few: at least {floor:,} are needed.")


@wrong("it is the best tree without a segment inside a segment")
def nests_nothing(stages, budget_bytes):
    lab, last = solved("lab04"), len(stages) - 1

    @cache
    def fits(start, end, room):
        inside = room - stages[start].saved_bytes
        fits_itself = lab.kept_needs(stages, start, end) <= room
        return fits_itself and (start == end or fits(start + 1, end, inside))

    @cache
    def best(start, room):
        ways = [(math.inf, ())]
        if lab.kept_needs(stages, start, last) <= room:
            if start == last:
                return 0.0, (start,)
            seconds, rest = best(start + 1, room - stages[start].saved_bytes)
            ways.append((seconds, (start, *rest)))
        for split in range(start + 1, last + 1):
            needs = lab.dropped_needs(stages, start, split, last)
            if needs <= room and fits(start, split - 1, room):
                later, rest = best(split, room - stages[split].input_bytes)
                seconds = sum(stage.forward_seconds for stage in stages[start:split])
                ways.append((seconds + later, (tuple(range(start, split)), *rest)))
        return min(ways, key=lambda way: way[0])

    any_tree = lab.fastest_tree(stages, budget_bytes)
    return best(0, budget_bytes - stages[0].input_bytes)[1] or any_tree


@wrong("is every way tried")
def keeps_what_fits_at_the_end(stages, budget_bytes):
    refuse(stages, budget_bytes)
    count = len(stages)
    for first in range(count):
        tree = (*((index,) for index in range(first)), *range(first, count))
        if planning.simulate(stages, tree).peak_bytes <= budget_bytes:
            return tree
    return solved("lab04").fastest_tree(stages, budget_bytes)


@wrong("planning.solve and planning.floor_bytes are the library's solver")
def asks_the_solver(stages, budget_bytes):
    return solve(stages, budget_bytes=budget_bytes).tree


@right
def from_lists_of_all_that_is_worth_it(stages, budget_bytes):
    lab, parts = solved("lab04"), {}

    def worth_it(ways):
        good = []
        for needs, seconds, tree in sorted(ways):
            if not good or seconds < good[-1][1]:
                good.append((needs, seconds, tree))
        return good

    for end in range(len(stages)):
        for start in range(end, -1, -1):
            own, saved = lab.kept_needs(stages, start, end), stages[start].saved_bytes
            ways = [(own, 0.0, (start,))] if start == end else []
            for needs, seconds, rest in parts.get((start + 1, end), []) if start < end else []:
                ways.append((max(own, saved + needs), seconds, (start, *rest)))
            for split in range(start + 1, end + 1):
                least = lab.dropped_needs(stages, start, split, end)
                forward = sum(stage.forward_seconds for stage in stages[start:split])
                for needs, seconds, rest in parts[split, end]:
                    held = stages[split].input_bytes + needs
                    for inner, again, inside in parts[start, split - 1]:
                        total = forward + seconds + again
                        ways.append((max(least, held, inner), total, (inside, *rest)))
            parts[start, end] = worth_it([(n, s, _Tree(t)) for n, s, t in ways])
    refuse(stages, budget_bytes)
    room = budget_bytes - stages[0].input_bytes
    return [tree for needs, _, tree in parts[0, len(stages) - 1] if needs <= room][-1]


class _Tree(tuple):
    """A tuple that never decides an order: numbers and tuples cannot be compared."""

    def __lt__(self, other):
        return False
