"""Answers to 5.4, an option for each part within a budget."""

import functools
import itertools

from solutions.answers import right, wrong
from tutorial_lib.instruments import planning

ignores_the_budget = wrong(
    "every part has its fewest FLOPs",
    "list(min(best.values())[1])",
    "[min(range(len(p)), key=lambda i, p=p: p[i].flops) for p in parts]",
)
pops_the_parts = wrong(
    "your call changed its arguments", "    return list", "    parts.clear()\n    return list"
)


def held(options):
    """Return the most bytes held at once; a graded process sees no check."""
    kept = itertools.accumulate((option.kept_bytes for option in options), initial=0)
    return max(k + option.working_bytes for k, option in zip(kept, options, strict=False))


def flops(options):
    return sum(option.flops for option in options)


def tried(parts, budget, peak=held, best=flops):
    """Try every choice: the right answer where no word is given."""
    numbered = [list(enumerate(part)) for part in parts]
    ways = []
    for choice in itertools.product(*numbered):
        numbers, options = zip(*choice, strict=True)
        if peak(options) <= budget:
            ways.append((best(options), list(numbers)))
    if not ways:
        raise ValueError(f"nothing fits into {budget} bytes.")
    return min(ways)[1]


@wrong("that is the least memory possible")
def takes_the_least_memory(parts, budget):
    tried(parts, budget)
    return tried(parts, min(map(held, itertools.product(*parts))))


@wrong("each part's working bytes come on top")
def adds_up_what_is_kept(parts, budget):
    tried(parts, budget)
    return tried(parts, budget, peak=lambda options: sum(o.kept_bytes for o in options))


@wrong("those after it are done")
def holds_all_at_once(parts, budget):
    def all_at_once(options):
        return sum(o.kept_bytes for o in options) + max(o.working_bytes for o in options)

    tried(parts, budget)
    return tried(parts, budget, peak=all_at_once)


@wrong("that is the greedy choice")
def is_greedy(parts, budget):
    tried(parts, budget)
    numbers = [min(range(len(part)), key=lambda i, p=part: p[i].flops) for part in parts]
    while held(chosen := [part[n] for part, n in zip(parts, numbers, strict=True)]) > budget:
        exchanges = [
            ((was.kept_bytes - option.kept_bytes) / max(option.flops - was.flops, 1), i, number)
            for i, (part, was) in enumerate(zip(parts, chosen, strict=True))
            for number, option in enumerate(part)
            if option.kept_bytes < was.kept_bytes
        ]
        if not exchanges:
            break
        _, i, number = max(exchanges)
        numbers[i] = number
    return numbers


@wrong("but a mixture needs fewer FLOPs")
def treats_all_alike(parts, budget):
    tried(parts, budget)
    ways = [[i] * len(parts) for i in range(min(map(len, parts)))]
    chosen = [[part[i] for part, i in zip(parts, way, strict=True)] for way in ways]
    fitting = [(flops(c), w) for c, w in zip(chosen, ways, strict=True)
               if held(c) <= budget]  # fmt: skip
    return min(fitting)[1]


@wrong("no choice fits, so raise a ValueError")
def refuses_nothing(parts, budget):
    return tried(parts, max(budget, min(map(held, itertools.product(*parts)))))


@wrong("and there is a choice")
def refuses_the_smallest_budget(parts, budget):
    tried(parts, budget - 1)
    return tried(parts, budget)


@wrong("planning.solve and planning.floor_bytes are the library's solver")
def asks_the_planner(parts, budget):
    stages = [
        planning.Stage(forward_seconds=1, backward_seconds=2, input_bytes=1, saved_bytes=1)
        for _ in parts
    ]
    planning.solve(stages, budget_bytes=budget)
    return tried(parts, budget)


@wrong("or all combinations tried?")
def tries_all(parts, budget):
    return tried(parts, budget)


@wrong("which include them")
def adds_its_own_kept_bytes(parts, budget):
    def own_too(options):
        kept = itertools.accumulate(option.kept_bytes for option in options)
        return max(k + option.working_bytes for k, option in zip(kept, options, strict=True))

    tried(parts, budget)
    return tried(parts, budget, peak=own_too)


@right
def without_choices_that_another_beats(parts, budget):
    ways = [(0, 0, ())]  # bytes kept, FLOPs, options
    for options in parts:
        longer = sorted(
            (kept + option.kept_bytes, flops + option.flops, (*chosen, number))
            for kept, flops, chosen in ways
            for number, option in enumerate(options)
            if kept + option.working_bytes <= budget
        )
        ways = []
        for way in longer:
            if not ways or way[1] < ways[-1][1]:
                ways.append(way)
    if not ways:
        raise ValueError(f"budget (={budget}) is too small for any choice.")
    return list(ways[-1][2])


@right
def by_recursion_from_the_first_part(parts, budget):
    @functools.cache
    def best(i, room):
        if i == len(parts):
            return 0, ()
        ways = []
        for number, option in enumerate(parts[i]):
            later = best(i + 1, room - option.kept_bytes) if option.working_bytes <= room else None
            if later is not None:
                ways.append((option.flops + later[0], (number, *later[1])))
        return min(ways, default=None)

    found = best(0, budget)
    if found is None:
        raise ValueError(f"budget (={budget}) is too small for any choice.")
    return found[1]
