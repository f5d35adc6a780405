"""Cases of lab 09 whose script is one training step through checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

from tutorial_lib.checks.core import Case, CheckError, Result
from tutorial_lib.checks.given import observe, surroundings
from tutorial_lib.checks.lab09.scripts import BrokenScript, only_update
from tutorial_lib.checks.vocabulary import expect, read

_SLACK = 1.5  # of the peak: a script may hold its logits while it goes backward
_FLOOR = 0.85  # of the peak: without what one block recomputes, less would be left


@dataclass(frozen=True)
class Made:
    """A model with a batch, built anew for each run.

    Args:
        model: In float64.
        blocks: What is checkpointed, each a segment.
        counted: How the names of the parts end whose runs are counted, one in each block.
        batch: What the step takes after model and optimizer.
        loss: The right loss, without any checkpoint of its own.
        but: What of the surroundings a step may change.
    """

    model: nn.Module
    blocks: Sequence[nn.Module]
    counted: str
    batch: tuple[Any, ...]
    loss: Callable[[], Tensor]
    but: frozenset[str] = field(default_factory=frozenset)


Make = Callable[[Case], Made]


def broken_step(make: Make, cause: str, reading: float, asked: str, symptom: str) -> BrokenScript:
    """Make a broken script of a training step: the first four as in `BrokenScript`.

    Args:
        make: From a case to a model and its batch.
        cause: One of `CAUSES`.
        reading: The number that shows it.
        asked: Words for that.
        symptom: What to tell where gradients or buffers are wrong.
    """
    return BrokenScript(
        cause,
        reading,
        asked,
        partial(_run, make),
        partial(_oracle, make),
        partial(_judge, symptom),
    )


def _run(make: Make, step: Callable[..., Any], case: Case) -> Result:
    made = make(case)
    model, settings = made.model, [item for item in made.batch if isinstance(item, dict)]
    trained = [p for p in model.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.grad = torch.ones_like(parameter)  # what an earlier step has left
    optimizer = SGD(trained, lr=0.1)
    counted = [m for name, m in model.named_modules() if name.endswith(made.counted)]
    counts, layers = [0] * len(counted), _layers(model)
    for place, module in enumerate(counted):
        module.register_forward_pre_hook(partial(_add, counts, place))
    returned: list[Any] = []
    torch.manual_seed(case["seed"])
    with (
        observe.updates_seen(model, optimizer) as gradients,
        surroundings.watched(model, only=surroundings.SWITCHES, but=made.but) as changed,
    ):
        call = lambda: returned.append(step(model, optimizer, *made.batch))  # noqa: E731
        peak, _ = observe.peak_above(call, model)
    return {
        "returned": returned[0],
        "gradients": gradients,
        "counts": counts,
        "buffers": [b for b in model.buffers() if b.is_floating_point()],
        "parameters": observe.parameter_vector(model),
        "peak": peak,
        "changed": changed,
        "settings": settings,
        "layers": layers == _layers(model),
    }


def _layers(model: nn.Module) -> list[Any]:
    return [(vars(m).get("momentum"), vars(m).get("p")) for m in model.modules()]


def _add(counts: list[int], place: int, *_: Any) -> None:
    counts[place] += 1


def _oracle(make: Make, case: Case) -> tuple[Result, int]:
    """Take the same step plain, and with a checkpoint around each block; of that, the peak."""
    return _reference(make, case, False), _reference(make, case, True)["peak"]


def _reference(make: Make, case: Case, is_checkpointed: bool) -> Result:
    made: list[Made] = []

    def noted(case: Case) -> Made:
        made.append(make(case))
        for block in made[0].blocks if is_checkpointed else ():
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        return made[0]

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, *_: Any) -> float:
        optimizer.zero_grad()
        loss = made[0].loss()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.item()

    return _run(noted, step, case)


def _judge(symptom: str, case: Case, result: Result, right: tuple[Result, int]) -> None:
    where, (plain, enough) = f"case {case['case']}: ", right
    size = len(plain["parameters"])
    once = plain["counts"]
    counts = read.integers(result.get("counts"), f"{where}runs of the blocks", len(once))
    gradient = only_update(result, size, where)
    expect.unchanged(result)
    error = expect.relative_error(gradient, plain["gradients"][0])
    if error > expect.EXACT:
        loss = read.number(result.get("returned"), f"{where}the loss")
        if not expect.is_close(loss, plain["returned"], 1e-6):
            raise CheckError(
                f"{where}the loss is {loss / plain['returned']:.4g} times that of the plain "
                f"model, so forward differs already. {symptom}"
            )
        raise CheckError(f"{where}gradients are off by {error:.2g} of their norm. {symptom}")
    buffers = read.tensors(result.get("buffers"), len(plain["buffers"]), f"{where}the buffers")
    if not expect.is_close(buffers, plain["buffers"]):
        raise CheckError(f"{where}gradients are right, and buffers are not. {symptom}")
    expect.loss(result.get("returned"), plain["returned"], where=where)
    if counts == once:
        raise CheckError(
            f"{where}this is the training of the plain model, and its memory too: nothing runs "
            "twice. The run has to fit, so keep the checkpoints."
        )
    peak = read.integer(result.get("peak"), f"{where}the peak")
    if peak > _SLACK * enough or sum(counts) > 2 * sum(once):
        raise CheckError(
            f"{where}the training is right. The peak is {peak:,} bytes, with {sum(counts)} runs of "
            f"blocks; {enough:,} bytes are enough, with {2 * sum(once)} runs: a checkpoint for "
            "each block, once."
        )
    if peak < _FLOOR * enough:
        raise CheckError(
            f"{where}the training is right. The peak is said to be {peak:,} bytes, and with a "
            f"checkpoint for each block it is {enough:,}: what is kept outside of tensors?"
        )
    if result.get("settings") != plain["settings"]:
        raise CheckError(f"{where}the schedule has to move on, as it did: once a step.")
    if not read.flag(result, "layers"):
        raise CheckError(
            f"{where}the step is right, and a layer is left with another momentum, or another "
            "probability of dropout, than it came with: the next step would be wrong. Put it back."
        )
    after = read.vector(result.get("parameters"), size, f"{where}the parameters")
    if not expect.is_close(after, plain["parameters"]):
        raise CheckError(f"{where}the gradient is right, and something else changed the weights.")
