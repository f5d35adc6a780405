"""The check of 3.1: a checkpoint as an autograd.Function."""

from functools import partial

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, check, expect, read

from . import beside_torch, given
from .given import chain

_PASSED = "gradients to the bit, two runs a block, and its input is all that is saved"


def _cases(draw: Draw) -> Cases:
    case = beside_torch.draw_case(draw)
    yield {**case, "num_blocks": draw.randint(3, 4), "input_needs_grad": True}


@check(given.discard, _PASSED, _cases, oracle=partial(chain.run, beside_torch.without_checkpoint))
def discard(case: Case, result: Result, plain: Result) -> None:
    number, exact = case["num_blocks"], plain["gradients"]
    begun = read.counts(result, "begun", number, "runs of each block")
    again = read.counts(result, "again", number, "runs in backward")
    *of_weights, of_input = read.tensors(result["gradients"], len(exact), "gradients")
    any_weight = any(gradient is not None and gradient.any() for gradient in of_weights)
    faults = {
        f"the blocks ran {begun} times: nothing was recomputed, so the graph of the forward was "
        "kept. Keep the inputs alone, and run the function again in backward.": max(begun) < 2,
        f"the blocks ran {begun} times, and never in backward: a graph that forward made was kept. "
        "Keep the inputs alone, and run the function when the gradient comes.": not any(again),
        "no gradient came back to the input: detached inputs need requires_grad_ where the "
        "originals needed a gradient, and backward returns their .grad.": of_input is None,
        "parameters got no gradient: torch.autograd.grad leaves .grad alone, and "
        "torch.autograd.backward fills it, the parameters' too.": not any_weight,
    }
    expect.no_fault(faults)
    beside_torch.expect_gradients(result, exact)
    saved = read.number(result["saved"], "what autograd saved of the input")
    what = "nothing" if saved == 0 else f"{saved} times the input"
    faults = {
        f"the blocks ran {begun} times, and each should run twice.": max(begun) > 2,
        f"autograd saved {what} for a block, and once the input is wanted: what is set on ctx "
        "as an attribute is hidden from autograd, so use ctx.save_for_backward, for the "
        "inputs.": saved != 1,
    }
    expect.no_fault(faults)
