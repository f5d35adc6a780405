"""The checks of 9.1, 9.2, 9.3 and 9.5: cases A to F and I, a step through checkpoints each."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tutorial_lib.checks.vocabulary import Case, CheckError, Result, expect, read

from . import given
from .given import steps
from .scripts import FINDINGS, Judge, Oracle, diagnosis, only_update

_SLACK = 1.5  # of the peak: a script may hold its logits while it goes backward
_FLOOR = 0.85  # of the peak: without what one block recomputes, less would be left


def _oracle(case: Case) -> tuple[Result, int]:
    """Take the same step plain, and with a checkpoint around each block; of that, the peak."""
    return _reference(case, False), _reference(case, True)["peak"]


def _sits(letters: str) -> Callable[[], dict[str, Any]]:
    """Answer as the memory exam wants it, for each case."""

    def step(letter: str, model: Any, *handed: Any) -> None:
        _checkpoint(steps.library_layers(model) if letter == "F" else model.blocks)
        _step(letter, model, *handed)

    return lambda: {letter: ("", 0, partial(step, letter)) for letter in letters}


def _reference(case: Case, is_checkpointed: bool) -> Result:
    made = steps.make(case)
    _checkpoint(made.blocks if is_checkpointed else ())
    return steps.take_step(partial(_step, case["case"]), case, made)


def _checkpoint(blocks: Iterable[nn.Module]) -> None:
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def _step(letter: str, model: nn.Module, optimizer: torch.optim.Optimizer, *batch: Any) -> float:
    optimizer.zero_grad()
    loss = _loss(letter, model, *batch)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def _loss(letter: str, model: Any, *batch: Any) -> Any:
    """Return the right loss, without any checkpoint of its own."""
    if letter == "F":
        images, labels = batch
        return model.eval()(pixel_values=images, labels=labels).loss
    if letter != "B":
        return model.loss(*batch)
    tokens, settings = batch
    handle = model.embedding.register_forward_hook(lambda *args: args[-1] * settings["scale"])
    loss = model.loss(tokens)
    handle.remove()
    settings["scale"] /= 2
    return loss


def _judge(case: Case, result: Result, right: tuple[Result, int]) -> None:
    where, (plain, enough), told = f"case {case['case']}: ", right, FINDINGS[case["case"]]
    size, once = len(plain["parameters"]), plain["counts"]
    counts = read.integers(result["counts"], f"{where}runs of the blocks", len(once))
    gradient = only_update(result, size, where)
    expect.unchanged(result)
    error = expect.relative_error(gradient, plain["gradients"][0])
    if error > expect.EXACT:
        loss = read.number(result["returned"], f"{where}the loss")
        expect.fact(
            expect.is_close(loss, plain["returned"], 1e-6),
            f"{where}the loss is {loss / plain['returned']:.4g} times that of the plain model, so "
            f"forward differs already. {told.forward}",
        )
        raise CheckError(f"{where}gradients are off by {error:.2g} of their norm. {told.symptom}")
    buffers = read.tensors(result["buffers"], len(plain["buffers"]), f"{where}the buffers")
    expect.fact(
        expect.is_close(buffers, plain["buffers"]),
        f"{where}gradients are right, and buffers are not. {told.symptom}",
    )
    expect.loss(result["returned"], plain["returned"], where=where)
    expect.fact(
        counts != once,
        f"{where}this is the training of the plain model, and its memory too: nothing runs twice. "
        "The run has to fit, so keep the checkpoints.",
    )
    peak = read.integer(result["peak"], f"{where}the peak")
    expect.fact(
        peak <= _SLACK * enough and sum(counts) <= 2 * sum(once),
        f"{where}the training is right. The peak is {peak:,} bytes, with {sum(counts)} runs of "
        f"blocks; {enough:,} bytes are enough, with {2 * sum(once)} runs: a checkpoint for each "
        "block, once.",
    )
    expect.fact(
        peak >= _FLOOR * enough,
        f"{where}the training is right. The peak is said to be {peak:,} bytes, and with a "
        f"checkpoint for each block it is {enough:,}: what is kept outside of tensors?",
    )
    expect.fact(
        result["settings"] == plain["settings"],
        f"{where}the schedule has to move on, as it did: once a step.",
    )
    expect.fact(
        read.flag(result, "layers"),
        f"{where}the step is right, and a layer is left with another momentum, or another "
        "probability of dropout, than it came with: the next step would be wrong. Put it back.",
    )
    after = read.vector(result["parameters"], size, f"{where}the parameters")
    expect.fact(
        expect.is_close(after, plain["parameters"]),
        f"{where}the gradient is right, and something else changed the weights.",
    )


def _steps(letters: str) -> dict[str, tuple[Oracle, Judge]]:
    return dict.fromkeys(letters, (_oracle, _judge))


changed_in_between = diagnosis(
    given.changed_in_between,
    "cases A and B train as without checkpoints, in the memory of a checkpointed run",
    _steps("AB"),
    _sits("AB"),
)
repeated_work = diagnosis(
    given.repeated_work,
    "cases C and D train as without checkpoints, masks and running statistics too",
    _steps("CD"),
    _sits("CD"),
)
untrained_parts = diagnosis(
    given.untrained_parts,
    "cases E and F: all that should learn does, without dropout, in the memory of checkpoints",
    _steps("EF"),
    _sits("EF"),
)
died_in_backward = diagnosis(
    given.died_in_backward,
    "case I trains as without checkpoints, and one block at a time is recomputed",
    _steps("I"),
    _sits("I"),
)
