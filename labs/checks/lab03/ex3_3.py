"""The check of 3.3: random state, autocast and BatchNorm as in the forward."""

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, check, expect, read

from . import given

_PASSED = "random state, autocast and BatchNorm as in the forward, and put back afterwards"


def _cases(draw: Draw) -> Cases:
    case = {"seed": draw.randrange(10**6), "rows": draw.randint(4, 9), "width": 16}
    first, second = draw.sample(["bfloat16", "float16"], 2)
    yield {**case, "kind": "random", "preserve": True}
    yield {**case, "kind": "random", "preserve": False}
    yield {**case, "kind": "devices"}
    yield {**case, "kind": "autocast", "forward": second, "backward": first, "cached": True}
    yield {**case, "kind": "autocast", "forward": "", "backward": second, "cached": True}
    yield {**case, "kind": "norm"}
    yield {**case, "kind": "autocast", "forward": first, "backward": "", "cached": False}


@check(given.remember_surroundings, _PASSED, _cases)
def remember_surroundings(case: Case, result: Result) -> None:
    faults = {"random": _random_faults, "devices": _device_faults}
    faults |= {"autocast": _autocast_faults, "norm": _norm_faults}
    expect.no_fault(faults[case["kind"]](case, result))


def _random_faults(case: Case, result: Result) -> dict[str, bool]:
    same, put_back = read.flag(result, "same"), read.flag(result, "put_back")
    if not case["preserve"]:
        return {
            "preserve_rng_state=False was passed, and the random state was handled all the same: "
            "leave it alone then.": same or put_back
        }
    return {
        "your call moved the random state, so the forward draws other numbers than without "
        "checkpointing: read the state, and seed nothing.": read.flag(result, "moved_by_call"),
        "dropout drew another mask in the recomputation, and the state was put back: it was read "
        "when the context was entered. Read it in the upper part, which runs in forward.": (
            put_back and not same
        ),
        "dropout drew another mask in the recomputation: set the random state of the "
        "forward.": not same,
        "the recomputation was right, and left its random state behind: whatever draws next draws "
        "the same numbers twice. Put the state back that was there before.": not put_back,
        "an error in the recomputation (early stop is one) leaves the random state behind: put it "
        "back with stack.callback or finally.": not read.flag(result, "put_back_after_error"),
        "the second recomputation drew another mask: what was read in forward must still be there "
        "after one use.": not read.flag(result, "same_again"),
    }


def _device_faults(case: Case, result: Result) -> dict[str, bool]:
    inside = read.integer(result["inside"], "a GPU's state")
    return {
        "a GPU in `devices` drew other numbers in the recomputation than in forward: read its "
        "random state beside the CPU's, and set it.": inside != case["seed"] % 100,
        "the random state of a GPU in `devices` stayed as the recomputation left it: put it back, "
        "as the CPU's.": not read.flag(result, "put_back"),
    }


def _autocast_faults(case: Case, result: Result) -> dict[str, bool]:
    forward, backward = (f"torch.{case[key] or 'float32'}" for key in ("forward", "backward"))
    seen, cached, wanted = result["inside"], read.flag(result, "cached"), case["cached"]
    afterwards = [result["outside"], result["at_the_end"]]
    if forward == "torch.float32":
        advice = "autocast was off in forward and is on in backward: turn it off inside."
    elif seen == backward:
        advice = "autocast of the forward is lost: backward runs outside its block."
    else:
        advice = "autocast is on, with another dtype than the forward's: restore that too."
    return {
        f"a product was {seen} in the recomputation, and {forward} before: {advice}": (
            seen != forward
        ),
        f"autocast came back with cache_enabled={cached}, and forward had {wanted}: hand on all "
        "three settings that read_autocast gives.": case["forward"] != "" and cached != wanted,
        "autocast stayed as it was inside the recomputation: leave the context again, so that the "
        "code after it computes as before.": afterwards != [backward, "torch.float32"],
    }


def _norm_faults(case: Case, result: Result) -> dict[str, bool]:
    counted, unmoved = result["counted"], read.flag(result, "unmoved")
    return {
        "a BatchNorm gave another result when it ran again: leave it training.": (
            not read.flag(result, "same")
        ),
        "BatchNorm does not count any more after the recomputation: give it back what was taken, "
        "when the context is left.": not read.flag(result, "counts_later"),
        f"one batch was counted {counted} times by BatchNorm, or its running averages moved once "
        "more: enter uncounted(batch_norms(function)) as well.": counted != 1 or not unmoved,
    }
