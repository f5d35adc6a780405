"""The check of 2.7: the smallest card on which a step may run."""

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read
from tutorial_lib.units import MIB

from . import given

_PASSED = "the smallest card that leaves PyTorch what the step needs"


def _cases(draw: Draw) -> Cases:
    """Draw a step between whose numbers there are cards, unlike contexts, and too large a step."""
    needs, context = draw.randint(5_000, 9_000) * MIB, draw.randint(300, 500) * MIB
    reserved = int(1.2 * needs)
    seen = int(1.1 * reserved) + context
    spare = draw.randint(20, 60) * MIB
    edges = (needs, needs + context, reserved, reserved + context, seen, seen + context)
    cards = [[edge + spare, context + 1] for edge in edges]
    cards += [[needs + context, context], [int(1.08 * needs) + context, context]]
    cards += [[needs // 2, context // 4], [4 * seen, context]]
    draw.shuffle(cards)
    cards.insert(0, [2 * seen, context])  # the first one is neither the smallest nor the largest
    run = {"allocated": needs, "reserved": reserved, "seen": seen}
    yield {"run": run, "cards": cards}
    unlike = [[2 * seen, context], [needs + 2 * context, 2 * context], [needs + context, 9 * MIB]]
    yield {"run": run, "cards": unlike}
    yield {"run": {name: 9 * size for name, size in run.items()}, "cards": cards[:6]}


def _smallest(case: Case, number: str = "allocated", *, context: bool = True) -> int:
    room = {memory: memory - held * context for memory, held in case["cards"]}
    return min((m for m, free in room.items() if free >= case["run"][number]), default=0)


@check(given.smallest_card, _PASSED, _cases)
def smallest_card(case: Case, result: Result) -> None:
    name = f"smallest_card for {case['run']['allocated']:,} bytes allocated"
    seen = read.integer(result["memory"], name)
    expect.close(
        seen,
        _smallest(case),
        _faults(case),
        otherwise=f"{seen:,} bytes are not the memory of the smallest card that is not ruled out: "
        "which number does a capped run never go below, and what is left to PyTorch?",
        where=f"{name}: ",
    )


def _faults(case: Case) -> Faults:
    needs = case["run"]["allocated"]
    room = {memory: memory - held for memory, held in case["cards"] if memory - held >= needs}
    exact = min((memory for memory, free in room.items() if free > needs), default=0)
    without, seen = _smallest(case, context=False), _smallest(case, "seen", context=False)
    largest, first = max(room, default=0), next(iter(room), 0)
    narrowest, left = min(room, key=room.__getitem__, default=0), min(room.values(), default=0)
    yield from {
        "One that leaves PyTorch exactly what the step needs is enough: >=, not >.": exact,
        "PyTorch cannot have what CUDA's context holds: take it off.": without,
        "That card holds all that a free run reserved. Under a cap the allocator gives back the "
        "blocks that it keeps, and the step runs on a smaller one.": _smallest(case, "reserved"),
        "That card holds all that the allocator reserved, and nothing is taken off for CUDA's "
        "context.": _smallest(case, "reserved", context=False),
        "That card holds what nvidia-smi showed of a free run, which takes more than it "
        "needs.": seen,
        "That card holds what nvidia-smi showed, and a second context beside the one in "
        "it.": _smallest(case, "seen"),
        "The step may run on that card, and on a smaller one too: it is the largest.": largest,
        "The step may run on that card, and on a smaller one too: it is the first in the "
        "list.": first,
        "That card leaves PyTorch the least room that is enough, since its context holds more: one "
        "with less memory is enough too.": narrowest,
        "That is what the card leaves to PyTorch: the card's memory is wanted.": left,
    }.items()
