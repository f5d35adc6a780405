"""The checks of lab 03, my checkpoint: here the first two exercises, which run whole chains."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from tutorial_lib.checks import lab03_oracles as oracles
from tutorial_lib.checks import results
from tutorial_lib.checks.calls import calls_of
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.lab03_arguments import save_arguments
from tutorial_lib.checks.lab03_checkpoint import checkpoint
from tutorial_lib.checks.lab03_region import region
from tutorial_lib.checks.lab03_surroundings import remember_surroundings

__all__ = [
    "checkpoint",
    "discard",
    "hooked",
    "region",
    "remember_surroundings",
    "save_arguments",
]

case = calls_of(__name__)


def _chain_cases(seed: int, *, input_needs_grad: bool) -> list[Case]:
    draw = random.Random(seed)
    case = {"seed": draw.randrange(10**6), "width": draw.choice([24, 32]), "dropout": 0.0}
    case |= {"rows": draw.randint(40, 60), "num_blocks": draw.randint(3, 4)}
    needs = [True] if input_needs_grad else [True, False]
    return [{**case, "input_needs_grad": need} for need in needs]


# 3.1


def _run_discard(answer: Callable[..., Any], case: Case) -> Result:
    apply = getattr(answer, "apply", None)
    if apply is None:
        raise CheckError("Discard has no apply: it is a subclass of torch.autograd.Function.")
    with oracles.without_torchs(), _ending(answer):
        try:
            seen = oracles.observe(apply, case)
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            raise CheckError(
                "backward ran on through the saved inputs into the blocks before this one, which "
                "then had nothing left for their own turn. Recompute from detached inputs."
            ) from error
        return {**seen, "saved": oracles.saved_multiples(apply, case)}


@contextlib.contextmanager
def _ending(answer: Any) -> Iterator[None]:
    """Refuse a backward inside itself: it would go on until the machine's memory is used up."""
    plain: Any = getattr(answer, "backward", None)
    inside: set[Any] = set()

    def guarded(ctx: Any, *gradients: Any) -> Any:
        if ctx in inside:
            raise CheckError(
                "backward was called inside your backward. The tensor that it goes backward from "
                "is the output of your Function, so that leads back to it, without end: run the "
                "function again, and go backward from what that gives."
            )
        inside.add(ctx)
        try:
            return plain(ctx, *gradients)
        finally:
            inside.discard(ctx)

    with mock.patch.object(answer, "backward", staticmethod(guarded), create=True):
        yield


def _judge_discard(case: Case, result: Result) -> None:
    plain = oracles.wanted(oracles.plainly, case)
    begun = results.counts(result.get("begun"), case["num_blocks"], "runs of each block")
    *weights, of_input = results.tensors(
        result.get("gradients"), len(plain["gradients"]), "gradients"
    )
    if max(begun) < 2:
        raise CheckError(
            f"the blocks ran {begun} times: nothing was recomputed, so the graph of the forward "
            "was kept. Keep the inputs alone, and run the function again in backward."
        )
    if not any(results.counts(result.get("again"), len(begun), "runs in backward")):
        raise CheckError(
            f"the blocks ran {begun} times, and never in backward: a graph that forward made was "
            "kept. Keep the inputs alone, and run the function when the gradient comes."
        )
    if of_input is None:
        raise CheckError(
            "no gradient came back to the input: detached inputs need requires_grad_ where the "
            "originals needed a gradient, and backward returns their .grad."
        )
    if not any(gradient is not None and gradient.any() for gradient in weights):
        raise CheckError(
            "parameters got no gradient: torch.autograd.grad leaves .grad alone, and "
            "torch.autograd.backward fills it, the parameters' too."
        )
    oracles.demand_gradients(result, plain)
    if max(begun) > 2:
        raise CheckError(f"the blocks ran {begun} times, and each should run twice.")
    saved = result.get("saved")
    if saved != 1:
        what = "nothing" if saved == 0 else f"{saved} times the input"
        raise CheckError(
            f"autograd saved {what} for a block, and once the input is wanted: what is set on ctx "
            "as an attribute is hidden from autograd, so use ctx.save_for_backward, for the inputs."
        )


discard = Check(
    name="lab03.discard",
    exercise="3.1",
    passed="gradients to the bit, two runs a block, and its input is all that is saved",
    cases=lambda seed: _chain_cases(seed, input_needs_grad=True),
    run=_run_discard,
    judge=_judge_discard,
)

# 3.2


def _run_hooked(answer: Callable[..., Any], case: Case) -> Result:
    with oracles.without_torchs():
        return oracles.observe(answer, case)


def _judge_hooked(case: Case, result: Result) -> None:
    plain = oracles.wanted(oracles.plainly, case)
    begun = results.counts(result.get("begun"), case["num_blocks"], "runs of each block")
    seen = results.tensors(result.get("gradients"), len(plain["gradients"]), "gradients")
    if seen[0] is None or not seen[0].any():
        raise CheckError(
            "the first block's parameters got no gradient where the input is data and needs none: "
            "an autograd.Function cuts the graph there. Let forward run in the open, under hooks."
        )
    if max(begun) < 2:
        raise CheckError(
            f"the blocks ran {begun} times: nothing was recomputed, so pack kept the tensors, or "
            "something else did."
        )
    if min(begun) < 2:
        raise CheckError(
            f"the blocks ran {begun} times: one was recomputed in another's place. What your "
            "recomputation runs must belong to its own call: a local variable, not one that all "
            "calls share."
        )
    if max(begun) > 2:
        raise CheckError(
            f"the blocks ran {begun} times: that is a recomputation for every tensor. Keep what "
            "the first one collects, and recompute only when nothing is there."
        )
    oracles.demand_gradients(result, plain)
    if case["input_needs_grad"]:
        return  # an autograd.Function comes this far, and is told at the next case where it fails
    if result.get("tangled") != 0:
        raise CheckError(
            f"{result.get('tangled')} recomputed bytes stayed after backward, until Python's "
            "garbage collector came by, and the gradients were right: what was collected holds "
            "its own graph. Store and return an alias without one."
        )
    exact = oracles.wanted(oracles.torch_to_the_end, case)
    advice = (
        "what was used once lies there until the block's backward is over. Take it out of the "
        "dictionary when you hand it out."
    )
    if results.whole_number(result.get("made"), "bytes of all tensors made") > exact["made"]:
        advice = "collect makes copies. An alias of the same memory, without the graph, takes none."
    oracles.demand_peak(result, exact, advice)


hooked = Check(
    name="lab03.hooked",
    exercise="3.2",
    passed="gradients to the bit, two runs a block, and a peak like PyTorch's",
    cases=lambda seed: _chain_cases(seed, input_needs_grad=False),
    run=_run_hooked,
    judge=_judge_hooked,
)
