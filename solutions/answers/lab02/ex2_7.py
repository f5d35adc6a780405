"""The smallest card on which a step runs."""

from solutions.answers import right, wrong

goes_by_reserved = wrong(
    "blocks that it keeps, and the step runs", 'run["allocated"]', 'run["reserved"]'
)
goes_by_nvidia_smi = wrong(
    "which takes more than it needs",
    "memory - context",
    "memory",
    'run["allocated"]',
    'run["seen"]',
)
takes_the_context_off_what_shows_it = wrong("a second context", 'run["allocated"]', 'run["seen"]')
forgets_the_context = wrong("can't use what CUDA's context", "memory - context", "memory")
reserved_and_no_context = wrong(
    "context isn't subtracted", "memory - context", "memory", 'run["allocated"]', 'run["reserved"]'
)
takes_the_largest = wrong("it is the largest", "min(", "max(")
takes_the_first = wrong(
    "it is the first in the list", "min(enough, default=0)", "next(iter(enough), 0)"
)
gives_the_room = wrong("what the card leaves to PyTorch", "[memory for", "[room[memory] for")
leaves_a_share_free = wrong(
    "are not the memory of the smallest", 'run["allocated"]', 'run["allocated"] * 1.05'
)
gives_none = wrong("should be an int, but is None", "default=0", "default=None")
wants_more_than_enough = wrong("exactly what the step needs is enough", ">=", ">")
takes_the_least_room = wrong(
    "the least room that is enough",
    "return min(enough, default=0)",
    "return min(enough, key=room.get, default=0)",
)


@right
def sorts_the_cards(run, cards):
    for memory, context in sorted(cards):
        if run["allocated"] <= memory - context:
            return memory
    return 0


@right
def by_what_is_left(run, cards):
    left = {memory: memory - context - run["allocated"] for memory, context in cards}
    return min((memory for memory in left if left[memory] >= 0), default=0)
