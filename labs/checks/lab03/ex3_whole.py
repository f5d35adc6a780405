"""The checks of 3.5 and 3.6: a region, and checkpoint as a whole, beside PyTorch's."""

from typing import Any

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, check, expect, read

from . import beside_torch, given
from .given.checkpoints import REGION_RUNS

_PASSED_3_5 = "recomputes once in each backward, stops early, and keeps nothing"
_ADVICE_3_5 = {
    "passes": "half of the graph is freed there, with its slots: fill only slots that are alive, "
    "and hold no slot yourself.",
    "chain": "does anything beside its slot hold a recomputed tensor?",
}
_PASSED_3_6 = "gradients and peaks equal PyTorch's exactly, and errors name what differs"
# what differs, the options, and what the error says: nothing where the recomputation may pass
_DIFFERENCES: list[tuple[str, dict[str, Any], str]] = [
    ("more", {"early_stop": False}, "trying to save more tensors during recomputation"),
    ("fewer", {}, "A different number of tensors was saved"),
    ("shape", {}, "different metadata"),
    ("dtype", {}, "different metadata"),
    ("operation", {}, ""),
    ("dtype", {"determinism_check": "none"}, ""),
    ("shape", {"debug": True}, "You are seeing this error because"),
]
_ADVICE_3_6 = {
    "chain": "something beside the slots holds recomputed tensors.",
    "nested": "a checkpoint inside a checkpoint saves nothing while a closure holds its inputs: "
    "use save_arguments. If you do: a function in bring_back that calls itself, or a class, holds "
    "what it reads until Python's garbage collector runs. Hand that over as an argument.",
}
_MAY_PASS = {
    "operation": "another operation made a tensor of the same shape, dtype and device, and the "
    "error says {!r}: operations may differ, so compare what comes after them.",
    "dtype": 'determinism_check="none" was passed, but the error says {!r}: pass '
    "options.describe to the region, so that it has nothing to compare.",
}


def _cases_3_5(draw: Draw) -> Cases:
    case = {**beside_torch.draw_case(draw), "num_blocks": 4, "input_needs_grad": True}
    yield from ({**case, "kind": kind} for kind in REGION_RUNS)


@check(
    given.region,
    _PASSED_3_5,
    _cases_3_5,
    oracle=lambda case: REGION_RUNS[case["kind"]](beside_torch.torch_checkpoint, case),
)
def region(case: Case, result: Result, exact: Result) -> None:
    kind = case["kind"]
    if kind == "twice":
        expect.no_fault(_twice_faults(str(result["said"])))
        return
    if "begun" in exact:
        wanted = exact["begun"]
        begun = read.counts(result, "begun", len(wanted), "runs of each block")
        side = "once for each backward" if max(begun) > max(wanted) else "for each backward"
        advice = f"recompute {side}, and note its name in recomputed_for."
        if kind == "dead":
            advice = "the last slot is dead there, but go on to its number: 3.6 compares all."
        words = f"the blocks ran {begun} times instead of {wanted}: {advice}"
        expect.fact(begun == wanted, words)
    if kind == "dead":
        ended = read.counts(result, "ended", len(wanted), "ends of each block")
        words = f"where its last slot is dead, a region ran {ended} blocks to the end"
        expect.fact(ended == exact["ended"], f"{words}: stop at that slot's number all the same.")
    if kind == "chain":
        expect.no_fault(_early_stop_faults(case, result))
    beside_torch.expect_gradients(result, exact["gradients"])
    if kind == "passes":
        stayed = read.integer(result["stayed"], "recomputed bytes that stayed")
        expect.fact(
            stayed == 0,
            f"{stayed} recomputed bytes stayed after a backward with retain_graph, but none "
            "should: unpack takes the tensor out of its slot.",
        )
    if "peak" in exact:
        beside_torch.expect_peak(result, exact["peak"], _ADVICE_3_5[kind])


def _early_stop_faults(case: Case, result: Result) -> dict[str, bool]:
    keys = ("ended", "ended_without_stop")
    ended, without = (read.integers(result[key], key, case["num_blocks"]) for key in keys)
    return {
        f"the blocks came to their end {ended} times, but once is enough: stop at the last slot's "
        "number.": max(ended) > 1,
        f"with early_stop=False the blocks came to their end {without} times: run the whole "
        "function again then.": min(without) < 2,
    }


def _twice_faults(said: str) -> dict[str, bool]:
    return {
        "a backward read the same saved tensor twice, and your region returned it twice: raise "
        "CheckpointError if this backward has taken it out before.": not said,
        f"a backward read the same saved tensor twice, and the error was {said[:100]!r}: look into "
        "the slot before you empty it, and raise CheckpointError if nothing is "
        "there.": not said.startswith("CheckpointError"),
    }


def _cases_3_6(draw: Draw) -> Cases:
    case = {**beside_torch.draw_case(draw, dropout=0.2), "num_blocks": 4, "input_needs_grad": False}
    yield {**case, "kind": "chain", "training": False}
    yield {**case, "kind": "nested", "num_blocks": 12, "group": 4}
    yield {**case, "kind": "call"}
    yield {**case, "kind": "not preserved"}
    yield {**case, "kind": "dead"}
    for how, options, words in _DIFFERENCES:
        yield {**case, "kind": "differs", "how": how, "options": options, "words": words}


def _exact(case: Case) -> Result:
    is_compared = case["kind"] in ("call", *_ADVICE_3_6)
    return given.checkpoint.run(beside_torch.torch_checkpoint, case) if is_compared else {}


@check(given.checkpoint, _PASSED_3_6, _cases_3_6, oracle=_exact)
def checkpoint(case: Case, result: Result, exact: Result) -> None:
    kind = case["kind"]
    if kind == "differs":
        _judge_differs(case, result)
    elif kind == "dead":
        said = str(result["said"])
        words = (
            "one of two results was deleted, then backward through the other raised "
            f"{said[:120]!r}. The recomputation stops at the last slot's number, dead or alive."
        )
        if said.startswith("IndexError"):
            words = "the function emptied its list argument: save the arguments before it runs."
        expect.fact(not said, words)
    elif kind == "not preserved":
        expect.fact(
            not read.flag(result, "random_state_kept"),
            "preserve_rng_state=False was passed, but the recomputation kept the random state all "
            "the same: pass that option to remember_surroundings.",
        )
    else:
        faults = {"chain": _chain_faults, "call": _call_faults}
        expect.no_fault(faults[kind](case, result, exact) if kind in faults else {})
        beside_torch.expect_gradients(result, exact["gradients"])
        if kind in _ADVICE_3_6:
            beside_torch.expect_peak(result, exact["peak"], _ADVICE_3_6[kind])


def _chain_faults(case: Case, result: Result, exact: Result) -> dict[str, bool]:
    number, wanted = case["num_blocks"], exact["ended_without_stop"]
    begun = read.counts(result, "begun", number, "runs of each block")
    name = "ends of each block, with early_stop=False"
    ended = read.counts(result, "ended_without_stop", number, name)
    return {
        "in eval mode nothing was checkpointed: with gradients on, tensors are saved, whatever the "
        "training flag says.": max(begun) < 2,
        f"the blocks ran {begun} times: one was recomputed in another's place. What a "
        "recomputation runs must belong to its own call.": min(begun) < 2,
        f"with early_stop=False the blocks came to their end {ended} times instead of {wanted}: "
        "pass options.early_stop to the region.": ended != wanted,
    }


def _call_faults(case: Case, result: Result, exact: Result) -> dict[str, bool]:
    events, wanted = result["events"], exact["events"]
    changed = result["output"] != exact["output"]
    return {
        "with gradients off, a context of context_fn was entered, but nothing is saved then: just "
        "call the function.": events == [*wanted[:-1], "forward", "run"],
        f"the contexts of context_fn and the function came in the order {events} instead of "
        f"{wanted}, where the last run is the one without gradients.": events != wanted,
        "the function's result, a dict with a number in it, came back changed.": changed,
    }


def _judge_differs(case: Case, result: Result) -> None:
    said, how, words = str(result["said"]), case["how"], case["words"]
    if not words:
        expect.fact(not said, _MAY_PASS.get(how, "").format(said[:200]))
        return
    named = {"fewer": ["2", "1"], "more": ["2", "3"], "shape": ["(3,)", f"({case['rows']},)"]}
    named |= {"dtype": ["float64", "float32"]}
    missing = [word for word in named[how] if word not in said]
    if how in ("shape", "dtype") and "Backward" not in said:
        missing.append("the operation that made the tensor")
    debug, lost = "debug" in case["options"], not read.flag(result, "random_state_kept")
    faults = {
        f"a recomputation that saved something else ({how}) passed: a region calls compare only "
        "after you set its forward_is_done, when forward is over.": not said,
        "debug=True was passed, but the error does not name the first operation that differs: pass "
        "options.compare to the region.": debug and words not in said,
        f"the recomputation differed ({how}), and the error says {said[:200]!r}: begin compare's "
        "three messages as the given one does.": words not in said,
        f"the error for a recomputation that differs ({how}) does not name "
        f"{' and '.join(missing)}: its reader must find the line at fault.": bool(missing),
        "a recomputation that failed left the random state changed: run it in restored().": lost,
    }
    expect.no_fault(faults)
