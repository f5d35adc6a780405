"""The check of 3.2: a checkpoint with saved-tensor hooks."""

from functools import partial

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, check, expect, read

from . import beside_torch, given
from .given import chain

_PASSED = "gradients to the bit, two runs a block, and a peak like PyTorch's"


def _cases(draw: Draw) -> Cases:
    case = {**beside_torch.draw_case(draw), "num_blocks": draw.randint(3, 4)}
    yield from ({**case, "input_needs_grad": need} for need in (True, False))


@check(given.hooked, _PASSED, _cases, oracle=partial(chain.run, beside_torch.torch_checkpoint))
def hooked(case: Case, result: Result, exact: Result) -> None:
    begun = read.counts(result, "begun", case["num_blocks"], "runs of each block")
    first, *_ = read.tensors(result["gradients"], len(exact["gradients"]), "gradients")
    faults = {
        "the first block's parameters got no gradient where the input is data and needs none: "
        "an autograd.Function cuts the graph there. Let forward run in the open, under "
        "hooks.": first is None or not first.any(),
        f"the blocks ran {begun} times: nothing was recomputed, so pack kept the tensors, or "
        "something else did.": max(begun) < 2,
        f"the blocks ran {begun} times: one was recomputed in another's place. What your "
        "recomputation runs must belong to its own call: a local variable, not one that all "
        "calls share.": min(begun) < 2,
        f"the blocks ran {begun} times: that is a recomputation for every tensor. Keep what "
        "the first one collects, and recompute only when nothing is there.": max(begun) > 2,
    }
    expect.no_fault(faults)
    beside_torch.expect_gradients(result, exact["gradients"])
    if case["input_needs_grad"]:
        return  # an autograd.Function comes this far, and is told at the next case where it fails
    stayed = read.integer(result["stayed"], "recomputed bytes that stayed")
    expect.fact(
        stayed == 0,
        f"{stayed} recomputed bytes stayed after backward, until Python's "
        "garbage collector came by, and the gradients were right: what was collected holds "
        "its own graph. Store and return an alias without one.",
    )
    ended = read.counts(result, "ended", case["num_blocks"], "runs to the end")
    expect.fact(
        max(ended) < 2,
        f"the blocks came to their end {ended} times, and once is enough: what comes after the "
        "last saved tensor ran again. Leave the recomputation when that tensor is there.",
    )
    advice = (
        "what was used once lies there until the block's backward is over. Take it out of the "
        "dictionary when you hand it out."
    )
    if read.integer(result["made"], "bytes of all tensors made") > exact["made"]:
        advice = "collect makes copies. An alias of the same memory, without the graph, takes none."
    beside_torch.expect_peak(result, exact["peak"], advice)
