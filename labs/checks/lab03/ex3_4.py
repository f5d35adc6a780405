"""The check of 3.4: arguments saved by autograd, and held by nobody else."""

from typing import Any

from torch import Tensor

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, check, expect, read

from . import given
from .given.pieces import flat, make_arguments

_PASSED = "every tensor saved by autograd, none held, and all put together again"


def _cases(draw: Draw) -> Cases:
    case = {"seed": draw.randrange(10**6), "size": draw.randint(3, 9), "number": draw.random()}
    yield from ({**case, "kind": kind} for kind in ("kept", "in place", "again"))


@check(given.save_arguments, _PASSED, _cases)
def save_arguments(case: Case, result: Result) -> None:
    faults = {"kept": _kept_faults, "in place": _in_place_faults, "again": _again_faults}
    expect.no_fault(faults[case["kind"]](case, result))


def _kept_faults(case: Case, result: Result) -> dict[str, bool]:
    parts, args, kwargs = make_arguments(case)
    packed = read.integer(result["packed"], "tensors saved")
    held = read.integer(result["held"], "tensors held")
    by_cycle = read.integer(result["held_by_cycle"], "tensors held by a cycle")
    unpacked = read.integer(result["unpacked"], "tensors read")
    exact, seen = flat((args, kwargs)), flat(result["brought"])
    same = len(seen) == len(exact) and all(map(_equal, seen, exact))
    return {
        f"autograd was given none of the {len(parts)} tensors: your closure holds them, and a "
        "checkpoint around this one cannot let them go. Pass them to SaveInputs.apply.": not packed,
        f"one of the {len(parts)} tensors was not saved: was it taken for the anchor, which comes "
        "before the tensors, or does it lie deeper in a container?": packed == len(parts) - 1,
        f"{packed} tensors were saved, and the arguments hold {len(parts)}: look into lists, "
        "tuples and dicts, and into the keyword arguments.": packed != len(parts),
        f"all tensors were saved, and {held} of them are held by your closure too: put None in "
        "their places.": held != 0,
        f"all tensors were saved, and {by_cycle} of them live until Python's garbage collector "
        "runs: something of yours refers to itself, as an inner function that calls itself does, "
        "and holds them. Empty what it holds, as list.clear() does.": by_cycle != 0,
        "the arguments came back changed: other values, another order, or some are "
        "missing.": not same,
        f"{packed} tensors were saved, and one call of bring_back read {unpacked}: each reading of "
        "saved_tensors asks the hooks for all of them. Read it once a call.": unpacked > packed,
    }


def _in_place_faults(case: Case, result: Result) -> dict[str, bool]:
    return {
        "a tensor was changed in place after it was saved, and nobody noticed: hand the very "
        "tensors to SaveInputs, not their data or a copy.": not read.flag(result, "noticed")
    }


def _again_faults(case: Case, result: Result) -> dict[str, bool]:
    lists = read.integers(result["lists"], "items of the list", 2)
    kinds = read.items(result["kinds"], "types of the containers")
    later = read.integer(result["held_later"], "tensors held after a recomputation")
    return {
        "a tensor that needs a gradient came back without: a detached input makes the "
        "recomputation save other tensors than the forward. Save the tensor itself.": (
            not read.flag(result, "needs_grad")
        ),
        "copies came back, and the very tensors are wanted: copies take memory.": (
            not read.flag(result, "identical")
        ),
        f"a list of two, which the function emptied, has {lists} items in the two recomputations: "
        "build new containers at each call, from your own leaves.": lists != [0, 2],
        f"tuples came back as {kinds}: tree_unflatten keeps them.": kinds != ["tuple", "tuple"],
        f"your closure held nothing at first, and holds {later} tensors after bring_back: fill a "
        "copy of your leaves at each call, not the list itself.": later != 0,
    }


def _equal(one: Any, other: Any) -> bool:
    if isinstance(other, Tensor):
        return expect.same_bits(one, other)
    return bool(type(one) is type(other) and one == other)
