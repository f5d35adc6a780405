"""The checks of 3.1 to 3.4, the pieces of a checkpoint."""

from typing import Any

from torch import Tensor

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, check, expect, read

from . import beside_torch, given
from .given.pieces import flat, make_arguments

_PASSED_3_1 = "exact gradients; each block runs twice, and only its input is saved"
_PASSED_3_2 = "exact gradients; each block runs twice, and the peak is as low as PyTorch's"
_PASSED_3_3 = "recomputes with forward's random state, autocast and BatchNorm, then restores them"
_PASSED_3_4 = "hands all tensors to autograd, keeps none itself, and brings back the arguments"


def _cases_3_1(draw: Draw) -> Cases:
    case = beside_torch.draw_case(draw)
    yield {**case, "num_blocks": draw.randint(3, 4), "input_needs_grad": True}


@check(given.discard, _PASSED_3_1, _cases_3_1, oracle=beside_torch.run_plain)
def discard(case: Case, result: Result, plain: Result) -> None:
    number, exact = case["num_blocks"], plain["gradients"]
    begun = read.counts(result, "begun", number, "runs of each block")
    again = read.counts(result, "again", number, "runs in backward")
    *of_weights, of_input = read.tensors(result["gradients"], len(exact), "gradients")
    any_weight = any(gradient is not None and gradient.any() for gradient in of_weights)
    faults = {
        f"the blocks ran {begun} times: nothing was recomputed, so you kept forward's graph. Keep "
        "only the inputs, and run the function again in backward.": max(begun) < 2,
        f"the blocks ran {begun} times, but never in backward: you kept a graph that forward made. "
        "Keep only the inputs, and run the function when the gradient comes.": not any(again),
        "no gradient came back to the input: detached inputs need requires_grad_ where the "
        "originals needed a gradient, and backward returns their .grad.": of_input is None,
        "parameters got no gradient: torch.autograd.grad leaves .grad alone, but "
        "torch.autograd.backward fills it, the parameters' too.": not any_weight,
    }
    expect.no_fault(faults)
    beside_torch.expect_gradients(result, exact)
    saved = read.number(result["saved"], "what autograd saved of the input")
    what = "nothing" if saved == 0 else f"{saved} times the input"
    faults = {
        f"the blocks ran {begun} times, and each should run twice.": max(begun) > 2,
        f"autograd saved {what} for a block, but should save the input once: autograd can't see "
        "what you set as an attribute of ctx, so use ctx.save_for_backward for the "
        "inputs.": saved != 1,
    }
    expect.no_fault(faults)


def _cases_3_2(draw: Draw) -> Cases:
    case = {**beside_torch.draw_case(draw), "num_blocks": draw.randint(3, 4)}
    yield from ({**case, "input_needs_grad": need} for need in (True, False))


@check(given.hooked, _PASSED_3_2, _cases_3_2, oracle=beside_torch.run_torch)
def hooked(case: Case, result: Result, exact: Result) -> None:
    begun = read.counts(result, "begun", case["num_blocks"], "runs of each block")
    first, *_ = read.tensors(result["gradients"], len(exact["gradients"]), "gradients")
    faults = {
        "the first block's parameters got no gradient where the input is data and needs none: "
        "an autograd.Function cuts the graph there. Call the function directly, under "
        "hooks.": first is None or not first.any(),
        f"the blocks ran {begun} times: nothing was recomputed, so pack kept the tensors, or "
        "something else did.": max(begun) < 2,
        f"the blocks ran {begun} times: one was recomputed in another's place. Keep what your "
        "recomputation runs in a local variable of its own call, not in one that all calls "
        "share.": min(begun) < 2,
        f"the blocks ran {begun} times: that is one recomputation per tensor. Keep what the first "
        "one collects, and recompute only when nothing is there.": max(begun) > 2,
    }
    expect.no_fault(faults)
    beside_torch.expect_gradients(result, exact["gradients"])
    if case["input_needs_grad"]:
        return  # an autograd.Function comes this far, and is told at the next case where it fails
    stayed = read.integer(result["stayed"], "recomputed bytes that stayed")
    ended = read.counts(result, "ended", case["num_blocks"], "runs to the end")
    faults = {
        f"the gradients are right, but {stayed} recomputed bytes stayed after backward until "
        "Python's garbage collector ran: each tensor you collected holds its own graph. Store and "
        "return an alias without a graph.": stayed != 0,
        f"the blocks came to their end {ended} times: what comes after the last saved tensor ran "
        "again. Leave the recomputation when that tensor is there.": max(ended) > 1,
    }
    expect.no_fault(faults)
    advice = (
        "a tensor that was used stays in your dictionary until the block's backward is over. Take "
        "it out when you return it."
    )
    if read.integer(result["made"], "bytes of all tensors made") > exact["made"]:
        advice = "collect makes copies. An alias of the same memory, without the graph, takes none."
    beside_torch.expect_peak(result, exact["peak"], advice)


def _cases_3_3(draw: Draw) -> Cases:
    case = {"seed": draw.randrange(10**6), "rows": draw.randint(4, 9), "width": 16}
    first, second = draw.sample(["bfloat16", "float16"], 2)
    yield {**case, "kind": "random", "preserve": True}
    yield {**case, "kind": "random", "preserve": False}
    yield {**case, "kind": "devices"}
    yield {**case, "kind": "autocast", "forward": second, "backward": first, "cached": True}
    yield {**case, "kind": "autocast", "forward": "", "backward": second, "cached": True}
    yield {**case, "kind": "norm"}
    yield {**case, "kind": "autocast", "forward": first, "backward": "", "cached": False}


@check(given.remember_surroundings, _PASSED_3_3, _cases_3_3)
def remember_surroundings(case: Case, result: Result) -> None:
    faults = {"random": _random_faults, "devices": _device_faults}
    faults |= {"autocast": _autocast_faults, "norm": _norm_faults}
    expect.no_fault(faults[case["kind"]](case, result))


def _random_faults(case: Case, result: Result) -> dict[str, bool]:
    same, put_back = read.flag(result, "same"), read.flag(result, "put_back")
    if not case["preserve"]:
        return {
            "preserve_rng_state=False was passed, but the random state was handled anyway: "
            "leave it alone then.": same or put_back
        }
    return {
        "your call moved the random state, so forward draws other numbers than without "
        "checkpointing: read the state, but don't seed.": read.flag(result, "moved_by_call"),
        "dropout drew a different mask in the recomputation: you read the state when the context "
        "was entered. Read it above, in the part that runs in forward.": (put_back and not same),
        "the recomputation drew a different mask: set forward's random state.": not same,
        "the recomputation was right, but left its random state behind: whatever draws next draws "
        "the same numbers again. Put back the state that was there before.": not put_back,
        "an error in the recomputation (early stop is one) leaves the random state behind: put it "
        "back with stack.callback or finally.": not read.flag(result, "put_back_after_error"),
        "the second recomputation drew a different mask: keep what you read in forward, for every "
        "use.": not read.flag(result, "same_again"),
    }


def _device_faults(case: Case, result: Result) -> dict[str, bool]:
    inside = read.integer(result["inside"], "a GPU's state")
    return {
        "a GPU in `devices` drew other numbers in the recomputation than in forward: read its "
        "random state as well as the CPU's, and set it.": inside != case["seed"] % 100,
        "the random state of a GPU in `devices` stayed as the recomputation left it: put it back, "
        "like the CPU's.": not read.flag(result, "put_back"),
    }


def _autocast_faults(case: Case, result: Result) -> dict[str, bool]:
    forward, backward = (f"torch.{case[key] or 'float32'}" for key in ("forward", "backward"))
    seen, cached, wanted = result["inside"], read.flag(result, "cached"), case["cached"]
    afterwards, is_lost = [result["outside"], result["at_the_end"]], seen != forward
    if forward == "torch.float32":
        advice = "autocast was off in forward, but is on in the recomputation: turn it off there."
    elif seen == backward:
        advice = "forward's autocast is lost: backward runs outside its block, so turn it on again."
    else:
        advice = "autocast is on, but not with forward's dtype: restore that too."
    return {
        f"a product was {seen} in the recomputation, but {forward} in forward: {advice}": is_lost,
        f"autocast came back with cache_enabled={cached}, but forward had {wanted}: pass on all "
        "three settings that read_autocast returns.": case["forward"] != "" and cached != wanted,
        "autocast stayed on after the recomputation: leave the context, so that the code after it "
        "computes as before.": afterwards != [backward, "torch.float32"],
    }


def _norm_faults(case: Case, result: Result) -> dict[str, bool]:
    counted, unmoved, same = result["counted"], *(read.flag(result, k) for k in ("unmoved", "same"))
    return {
        "a BatchNorm computed something else when it ran again: leave it in training "
        "mode.": not same,
        "BatchNorm no longer counts after the recomputation: restore its settings when the context "
        "is left.": not read.flag(result, "counts_later"),
        f"one batch was counted {counted} times by BatchNorm, or its running averages moved once "
        "more: enter uncounted(batch_norms(function)) as well.": counted != 1 or not unmoved,
    }


def _cases_3_4(draw: Draw) -> Cases:
    case = {"seed": draw.randrange(10**6), "size": draw.randint(3, 9), "number": draw.random()}
    yield from ({**case, "kind": kind} for kind in ("kept", "in place", "again"))


@check(given.save_arguments, _PASSED_3_4, _cases_3_4)
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
        "checkpoint around this one cannot free them. Pass them to SaveInputs.apply.": not packed,
        f"one of the {len(parts)} tensors was not saved: was it taken for the anchor, which comes "
        "before the tensors, or is it deeper in a container?": packed == len(parts) - 1,
        f"{packed} tensors were saved, and the arguments hold {len(parts)}: look into lists, "
        "tuples and dicts, and into the keyword arguments.": packed != len(parts),
        f"all tensors were saved, and {held} of them are held by your closure too: put None in "
        "their place.": held != 0,
        f"all tensors were saved, and {by_cycle} of them live until Python's garbage collector "
        "runs: something of yours refers to itself, as an inner function that calls itself does, "
        "and holds them. Empty what it holds, as list.clear() does.": by_cycle != 0,
        "the arguments came back changed: other values, another order, or fewer.": not same,
        f"{packed} tensors were saved, and one call of bring_back read {unpacked}: each reading of "
        "saved_tensors asks the hooks for all of them. Read it once per call.": unpacked > packed,
    }


def _in_place_faults(case: Case, result: Result) -> dict[str, bool]:
    return {
        "a tensor was changed in place after it was saved, but no error came: pass the tensors "
        "themselves to SaveInputs, not their data or a copy.": not read.flag(result, "noticed")
    }


def _again_faults(case: Case, result: Result) -> dict[str, bool]:
    lists = read.integers(result["lists"], "items of the list", 2)
    kinds = read.items(result["kinds"], "types of the containers")
    later = read.integer(result["held_later"], "tensors held after a recomputation")
    needs_it, identical = (read.flag(result, name) for name in ("needs_grad", "identical"))
    return {
        "a tensor that needs a gradient came back detached: a detached input makes the "
        "recomputation save other tensors than the forward. Save the tensor itself.": not needs_it,
        "copies came back: return the tensors themselves, since copies take memory.": not identical,
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
