"""Answers to 4.6, the fastest tree within a budget."""

import math
from functools import cache

from tutorial_lib.instruments import planning
from tutorial_lib.instruments.planning.chain.solve import solve
from wrong_answers import right, solved, wrong


def fastest(stages, room, *, inside=None, slip=None):
    """The right tree where no word is given."""
    lab, last = solved("lab04"), len(stages) - 1

    @cache
    def best(start, end, room):
        ways = [(math.inf, ())]
        if lab.kept_needs(stages, start, last if slip == "kept" else end) <= room:
            if start == end:
                return 0.0, (start,)
            seconds, rest = best(start + 1, end, room - stages[start].saved_bytes)
            ways.append((seconds, (start, *rest)))
        for split in range(start + 1, end + 1):
            needs = lab.dropped_needs(stages, start, split, last if slip == "dropped" else end)
            if needs <= room:
                later, rest = best(split, end, room - stages[split].input_bytes)
                again, part = (inside or best)(start, split - 1, room)
                if inside and not fits(start, split - 1, room):
                    continue
                seconds = sum(stage.forward_seconds for stage in stages[start:split])
                ways.append((seconds + later + again, (part, *rest)))
        return min(ways, key=lambda way: way[0])

    @cache
    def fits(start, end, room):
        needs = lab.kept_needs(stages, start, end)
        return needs <= room and (
            start == end or fits(start + 1, end, room - stages[start].saved_bytes)
        )

    return best(0, len(stages) - 1, room)


def refuse(stages, budget_bytes):
    floor = solved("lab04").smallest_budget(stages)
    if budget_bytes < floor:
        raise ValueError(f"{budget_bytes} bytes are too few: at least {floor:,} are needed.")


def room_of(stages, budget_bytes):
    refuse(stages, budget_bytes)
    return budget_bytes - stages[0].input_bytes


@wrong("It keeps everything")
def keeps_everything(stages, budget_bytes):
    refuse(stages, budget_bytes)
    return tuple(range(len(stages)))


@wrong("a tree came back for a budget that no tree fits into")
def refuses_nothing(stages, budget_bytes):
    floor = solved("lab04").smallest_budget(stages)
    return fastest(stages, max(floor, budget_bytes) - stages[0].input_bytes)[1]


@wrong("a ValueError that names the smallest budget in bytes is wanted")
def names_no_floor(stages, budget_bytes):
    if budget_bytes < (floor := solved("lab04").smallest_budget(stages)):
        raise ValueError(f"{budget_bytes} bytes are too few: at least {floor / 1024:.1f} KiB.")
    return fastest(stages, budget_bytes - stages[0].input_bytes)[1]


@wrong("the budget is the smallest one, and that is enough")
def refuses_the_floor_itself(stages, budget_bytes):
    refuse(stages, budget_bytes - 1)
    return fastest(stages, room_of(stages, budget_bytes))[1]


@wrong("The chain's own input is held all the time")
def forgets_the_input(stages, budget_bytes):
    refuse(stages, budget_bytes)
    return fastest(stages, budget_bytes)[1]


@wrong("`kept_needs` was asked for the end of the chain")
def keeps_as_at_the_end(stages, budget_bytes):
    return fastest(stages, room_of(stages, budget_bytes), slip="kept")[1]


@wrong("`dropped_needs` was asked for the end of the chain")
def drops_as_at_the_end(stages, budget_bytes):
    return fastest(stages, room_of(stages, budget_bytes), slip="dropped")[1]


@wrong("it is the tree with the smallest peak")
def stays_at_the_floor(stages, budget_bytes):
    refuse(stages, budget_bytes)
    return fastest(stages, solved("lab04").smallest_budget(stages) - stages[0].input_bytes)[1]


@wrong("it is the best tree without a segment inside a segment")
def nests_nothing(stages, budget_bytes):
    room = room_of(stages, budget_bytes)

    def kept(start, end, room):
        return 0.0, tuple(range(start, end + 1))

    seconds, tree = fastest(stages, room, inside=kept)
    return tree if seconds < math.inf else fastest(stages, room)[1]


@wrong("is every way tried")
def keeps_what_fits_at_the_end(stages, budget_bytes):
    refuse(stages, budget_bytes)
    count = len(stages)
    for first in range(count):
        tree = (*((index,) for index in range(first)), *range(first, count))
        if planning.simulate(stages, tree).peak_bytes <= budget_bytes:
            return tree
    return fastest(stages, room_of(stages, budget_bytes))[1]


@wrong("planning.solve and planning.floor_bytes are the library's solver")
def asks_the_solver(stages, budget_bytes):
    return solve(stages, budget_bytes=budget_bytes).tree


@right
def with_every_word_right(stages, budget_bytes):
    return fastest(stages, room_of(stages, budget_bytes))[1]


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
