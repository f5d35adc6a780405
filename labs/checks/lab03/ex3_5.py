"""The check of 3.5: a region with several backwards and early stop."""

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, check, expect, read

from . import beside_torch, given
from .given.checkpoints import REGION_RUNS

_PASSED = "one recomputation a backward, nothing kept, early stop"
_ADVICE = {
    "passes": "half of the graph is freed there, and its slots with it: fill only slots that are "
    "alive, and hold none yourself.",
    "chain": "does anything beside its slot hold a recomputed tensor?",
}


def _cases(draw: Draw) -> Cases:
    case = {**beside_torch.draw_case(draw), "num_blocks": 4, "input_needs_grad": True}
    yield from ({**case, "kind": kind} for kind in REGION_RUNS)


@check(
    given.region,
    _PASSED,
    _cases,
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
        expect.fact(
            begun == wanted or kind != "dead",
            f"the blocks ran {begun} times, and {wanted} are wanted: the last slot is dead there, "
            "and the recomputation goes on to its number all the same, since 3.6 compares all that "
            "it saves.",
        )
        side = "once for each backward" if max(begun) > max(wanted) else "for each backward"
        expect.fact(
            begun == wanted,
            f"the blocks ran {begun} times, and {wanted} are wanted: recompute {side}, "
            "and note its name in recomputed_for.",
        )
    if kind == "chain":
        expect.no_fault(_early_stop_faults(case, result))
    beside_torch.expect_gradients(result, exact["gradients"])
    if kind == "passes":
        stayed = read.integer(result["stayed"], "recomputed bytes that stayed")
        expect.fact(
            stayed == 0,
            f"{stayed} recomputed bytes stayed after a backward with retain_graph, and none need "
            "to: unpack takes the tensor out of its slot.",
        )
    if "peak" in exact:
        beside_torch.expect_peak(result, exact["peak"], _ADVICE[kind])


def _early_stop_faults(case: Case, result: Result) -> dict[str, bool]:
    ended, without = (
        read.integers(result[key], f"ends of each block{note}", case["num_blocks"])
        for key, note in (("ended", ""), ("ended_without_stop", ", with early_stop=False"))
    )
    return {
        f"the blocks came to their end {ended} times, and once is enough: stop at the last "
        "slot's number.": max(ended) > 1,
        f"with early_stop=False the blocks came to their end {without} times: the whole "
        "function is to be run again then.": min(without) < 2,
    }


def _twice_faults(said: str) -> dict[str, bool]:
    return {
        "a backward read the same saved tensor twice, and your region gave it out twice: raise "
        "CheckpointError where this backward has taken it out before.": not said,
        "a backward read the same saved tensor twice, and the error was "
        f"{said[:100]!r}: look into the slot before you take out, and raise CheckpointError "
        "where nothing is there.": not said.startswith("CheckpointError"),
    }
