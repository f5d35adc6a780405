"""The check of 3.4: arguments saved by autograd, and held by nobody else."""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from tutorial_lib.checks import expect, read
from tutorial_lib.checks.core import Answer, Case, Check, Result, plain
from tutorial_lib.checks.lab03 import chain


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    case = {"seed": draw.randrange(10**6), "size": draw.randint(3, 9), "number": draw.random()}
    return [{**case, "kind": kind} for kind in _RUNS]


def _arguments(case: Case) -> tuple[dict[str, Tensor], tuple[Any, ...], dict[str, Any]]:
    """Build tensors, and the arguments that hold them."""
    torch.manual_seed(case["seed"])
    drawn = torch.randn(4, case["size"], requires_grad=True)
    # computed, so that no graph keeps them: only what was saved, and what holds on to them
    parts = {name: row * 2 for name, row in zip("abcd", drawn, strict=True)}
    args = (parts["a"], [parts["b"], "word"], case["number"])
    return parts, args, {"pair": (parts["c"], None), "deep": {"d": [parts["d"]]}}


def _run(answer: Answer, case: Case) -> Result:
    return _RUNS[case["kind"]](answer, case)


def _in_place(answer: Answer, case: Case) -> Result:
    parts, args, kwargs = _arguments(case)
    bring_back = read.function(answer(args, kwargs), "save_arguments")
    parts["b"].detach().add_(1)
    try:
        bring_back()
    except RuntimeError as error:
        return {"noticed": "inplace" in str(error)}
    return {"noticed": False}


def _again(answer: Answer, case: Case) -> Result:
    parts, args, kwargs = _arguments(case)
    bring_back = read.function(answer(args, kwargs), "save_arguments")
    args[1].pop()
    first, _ = bring_back()
    identical = first[0] is parts["a"] and first[1][0] is parts["b"]
    needs_grad = first[0].requires_grad
    first[1].clear()
    second, named = bring_back()
    return {
        "identical": identical,
        "needs_grad": needs_grad,
        "lists": [len(first[1]), len(second[1])],
        "kinds": [type(second).__name__, type(named["pair"]).__name__],
        "held_later": _kept(answer, case)["held_later"],
    }


def _kept(answer: Answer, case: Case) -> Result:
    parts, args, kwargs = _arguments(case)
    pool: list[Tensor] = []
    asked: list[int] = []

    def pack(tensor: Tensor) -> int:
        pool.append(tensor.detach().clone())
        return len(pool) - 1

    def unpack(number: int) -> Tensor:
        asked.append(number)
        return pool[number].clone()

    gc.disable()  # so that what a cycle holds is there when it is counted
    try:
        with saved_tensors_hooks(pack, unpack):
            bring_back = read.function(answer(args, kwargs), "save_arguments")
        alive = [weakref.ref(tensor) for tensor in parts.values()]
        del parts, args, kwargs
        for_now = _count_alive(alive)
    finally:
        gc.enable()
    gc.collect()
    held = _count_alive(alive)
    came = bring_back()
    alive, brought = [weakref.ref(t) for t in _flat(came) if isinstance(t, Tensor)], plain(came)
    del came
    gc.collect()
    seen = {"packed": len(pool), "held": held, "held_by_cycle": for_now - held}
    return {**seen, "unpacked": len(asked), "held_later": _count_alive(alive), "brought": brought}


def _count_alive(references: list[weakref.ref[Tensor]]) -> int:
    return sum(reference() is not None for reference in references)


_RUNS = {"kept": _kept, "in place": _in_place, "again": _again}


def _judge(case: Case, result: Result) -> None:
    faults = {"kept": _kept_faults, "in place": _in_place_faults, "again": _again_faults}
    expect.no_fault(faults[case["kind"]](case, result))


def _kept_faults(case: Case, result: Result) -> dict[str, bool]:
    parts, args, kwargs = _arguments(case)
    packed = read.integer(result.get("packed"), "tensors saved")
    held = read.integer(result.get("held"), "tensors held")
    by_cycle = read.integer(result.get("held_by_cycle"), "tensors held by a cycle")
    unpacked = read.integer(result.get("unpacked"), "tensors read")
    exact, seen = _flat((args, kwargs)), _flat(result.get("brought"))
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
    lists = read.integers(result.get("lists"), "items of the list", 2)
    kinds = read.items(result.get("kinds"), "types of the containers")
    later = read.integer(result.get("held_later"), "tensors held after a recomputation")
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


def _flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [item for key, part in value.items() for item in [key, *_flat(part)]]
    if isinstance(value, list | tuple):
        return [item for part in value for item in _flat(part)]
    return [value]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(other, Tensor):
        return expect.same_bits(one, other)
    return bool(type(one) is type(other) and one == other)


save_arguments = Check(
    "lab03.save_arguments",
    "3.4",
    "every tensor saved by autograd, none held, and all put together again",
    _cases,
    _run,
    _judge,
    forbidden=[chain.NO_TORCH_CHECKPOINT],
)
