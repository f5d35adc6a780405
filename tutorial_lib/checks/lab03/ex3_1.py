"""The check of 3.1: a checkpoint as an autograd.Function."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch

from tutorial_lib import memory
from tutorial_lib.checks.core import Answer, Case, Check, CheckError, Result
from tutorial_lib.checks.given import exam
from tutorial_lib.checks.lab03 import chain
from tutorial_lib.checks.vocabulary import expect, read


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    case = chain.draw_case(draw)
    return [{**case, "num_blocks": draw.randint(3, 4), "input_needs_grad": True}]


def _run(answer: Answer, case: Case) -> Result:
    apply = getattr(answer, "apply", None)
    if apply is None:
        raise CheckError("Discard has no apply: it is a subclass of torch.autograd.Function.")
    with _forbid_recursion(answer):
        try:
            seen = chain.run(apply, case)
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            raise CheckError(
                "backward ran on through the saved inputs into the blocks before this one, which "
                "then had nothing left for their own turn. Recompute from detached inputs."
            ) from error
        return {**seen, "saved": _saved_multiples(apply, case)}


@contextlib.contextmanager
def _forbid_recursion(answer: Any) -> Iterator[None]:
    """Refuse a backward inside itself: it would go on until the machine's memory is used up."""
    inherited = getattr(answer, "backward", None) is torch.autograd.Function.backward
    name = "vjp" if inherited else "backward"  # two names for one method
    plain: Any = getattr(answer, name, None)
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

    with mock.patch.object(answer, name, staticmethod(guarded), create=True):
        yield


def _saved_multiples(call: chain.Call, case: Case) -> float:
    """Tell how many times its input autograd saves for a block."""
    (block, *_), x, gate = chain.make_chain(case)
    block.run_name = "_apart"
    h = x.clone()
    saved = memory.saved(lambda: call(block, h, gate), params_of=block)
    return sum(row.num_bytes for row in saved.rows if row.shape != tuple(gate.shape)) / h.nbytes


def _judge(case: Case, result: Result, plain: Result) -> None:
    number, exact = case["num_blocks"], plain["gradients"]
    begun = read.counts(result, "begun", number, "runs of each block")
    again = read.counts(result, "again", number, "runs in backward")
    *of_weights, of_input = read.tensors(result.get("gradients"), len(exact), "gradients")
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
    chain.expect_gradients(result, exact)
    saved = read.number(result.get("saved"), "what autograd saved of the input")
    what = "nothing" if saved == 0 else f"{saved} times the input"
    faults = {
        f"the blocks ran {begun} times, and each should run twice.": max(begun) > 2,
        f"autograd saved {what} for a block, and once the input is wanted: what is set on ctx "
        "as an attribute is hidden from autograd, so use ctx.save_for_backward, for the "
        "inputs.": saved != 1,
    }
    expect.no_fault(faults)


discard = Check(
    "lab03.discard",
    "3.1",
    "gradients to the bit, two runs a block, and its input is all that is saved",
    _cases,
    _run,
    _judge,
    oracle=partial(chain.run, chain.without_checkpoint),
    exam=exam.of_checkpoint(lambda answer: answer.apply),
    forbidden=[chain.NO_TORCH_CHECKPOINT],
)
