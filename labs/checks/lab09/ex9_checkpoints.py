"""The checks of 9.1, 9.2, 9.3 and 9.5, a step through checkpoints each, and a judge of findings."""

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tutorial_lib.checks.given import RunHalf
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Exercise, Result, expect, read

from ..lab06 import right_sums
from . import given
from .given import CAUSES, run_mended, steps

# Causes that an instrument seems to show where it is looking at the wrong module.
_MISREAD = {
    "not checkpointed": " A checkpointed module's own hooks don't see its recomputation: count the "
    "runs of a submodule."
}
ONE_UPDATE = "{} updates were made instead of one."
_SLACK = 1.5  # of the peak: a script may hold its logits while it goes backward
_FLOOR = 0.85  # of the peak: without what one block recomputes, less would be left


@dataclass(frozen=True)
class Finding:
    """What is right of one broken run, and what to try where its mended function is not."""

    cause: str  # one of `CAUSES`
    reading: float  # the number that the notebook's script shows
    asked: str  # words for that reading
    symptom: str = ""
    forward: str = "Are modes, values and the order of the blocks those of the plain model?"


_TABLE = tomllib.loads((Path(__file__).parent / "findings.toml").read_text(encoding="utf-8"))
FINDINGS = {letter: Finding(**row) for letter, row in _TABLE.items()}
Oracle = Callable[[Case], Any]
Judge = Callable[[Case, Result, Any], None]  # of the case, what a mended function gave, oracle


def diagnosis(
    run: RunHalf,
    passed: str,
    scripts: Mapping[str, tuple[Oracle, Judge]],
    sits: Callable[[], Any] | None = None,
    also: Sequence[Case] = (),
) -> Exercise:
    """Make the check of an exercise whose answer returns a finding for each case, by its letter."""

    def cases(draw: Draw) -> Cases:
        for case in (*({"case": letter} for letter in scripts), *also):
            yield {**case, "seed": draw.randrange(10**6)}

    def judge(case: Case, result: Result, right: Callable[[], Any]) -> None:
        letter = case["case"]
        _judge_finding(result, FINDINGS[letter])
        scripts[letter][1](case, result, right())

    def oracle(case: Case) -> Callable[[], Any]:
        return cache(partial(scripts[case["case"]][0], case))  # computed when first asked for

    words: Any = {"sits": sits, "again": run_mended, "where": "case {case}: ".format_map}
    return Exercise(run, passed, cases, judge, oracle=oracle, **words)


def _judge_finding(result: Result, right: Finding) -> None:
    cause = result["cause"]
    is_known = isinstance(cause, str) and cause in CAUSES
    expect.fact(is_known, f"the cause must be one of {', '.join(CAUSES)}.")
    expect.fact(
        cause == right.cause,
        f"the cause is not {cause!r}. With that cause, {CAUSES[cause]}. Does an "
        f"instrument show that here?{_MISREAD.get(cause, '')}",
    )
    reading = read.number(result["reading"], "the reading")
    expect.fact(
        abs(reading - right.reading) <= 0.01 * right.reading,
        f"the cause is right, but {reading:g} is not what shows it. The reading is {right.asked}.",
    )


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
    (plain, enough), told = right, FINDINGS[case["case"]]
    size, once = len(plain["parameters"]), plain["counts"]
    counts = read.integers(result["counts"], "runs of the blocks", len(once))
    gradient = right_sums.only_update(result, size, ONE_UPDATE)
    expect.unchanged(result)
    error = expect.relative_error(gradient, plain["gradients"][0])
    loss = read.number(result["returned"], "the loss")
    is_wrong, differs = error > expect.EXACT, not expect.is_close(loss, plain["returned"], 1e-6)
    buffers = read.tensors(result["buffers"], len(plain["buffers"]), "the buffers")
    faults = {
        f"the loss is {loss / plain['returned']:.4g} times the plain model's loss, so forward "
        f"differs already. {told.forward}": is_wrong and differs,
        f"gradients are off by {error:.2g} of their norm. {told.symptom}": is_wrong,
        "the gradient is right, but a layer is left with a changed momentum or dropout "
        "probability. Put it back.": not read.flag(result, "layers"),
        f"gradients are right, and buffers are not. {told.symptom}": (
            not expect.is_close(buffers, plain["buffers"])
        ),
    }
    expect.no_fault(faults)
    expect.loss(result["returned"], plain["returned"])
    peak = read.integer(result["peak"], "the peak")
    after = read.vector(result["parameters"], size, "the parameters")
    faults = {
        "this trains like the plain model, and takes as much memory: nothing runs twice. The run "
        "has to fit, so keep the checkpoints.": counts == once,
        f"the training is right. The peak is {peak:,} bytes, with {sum(counts)} runs of blocks; "
        f"{enough:,} bytes are enough, with {2 * sum(once)} runs: a checkpoint for each block, "
        "once.": peak > _SLACK * enough or sum(counts) > 2 * sum(once),
        f"the training is right. The counted peak is {peak:,} bytes, but with a checkpoint for "
        f"each block it is {enough:,}: what is kept outside of tensors?": peak < _FLOOR * enough,
        "the schedule must advance as before: once per step.": result["settings"]
        != plain["settings"],
        "the gradient is right, but something else changed the weights.": (
            not expect.is_close(after, plain["parameters"])
        ),
    }
    expect.no_fault(faults)


def _mended(run: RunHalf, letters: str, passed: str) -> Exercise:
    return diagnosis(run, passed, dict.fromkeys(letters, (_oracle, _judge)), _sits(letters))


changed_in_between = _mended(
    given.changed_in_between,
    "AB",
    "cases A and B train as they do without checkpoints, in a checkpointed run's memory",
)
repeated_work = _mended(
    given.repeated_work,
    "CD",
    "cases C and D train as they do without checkpoints: same masks, same statistics",
)
untrained_parts = _mended(
    given.untrained_parts,
    "EF",
    "cases E and F: all that should learn does, without dropout, in a checkpointed run's memory",
)
died_in_backward = _mended(
    given.died_in_backward,
    "I",
    "case I trains as it does without checkpoints, and recomputes one block at a time",
)
