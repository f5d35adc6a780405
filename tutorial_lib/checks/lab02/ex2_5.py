"""The check of 2.5: what outlives a step."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tutorial_lib import memory
from tutorial_lib.checks.core import Answer, Case, Check, CheckError, Result
from tutorial_lib.checks.lab02 import machine
from tutorial_lib.checks.lab02.steps import LeakyTraining
from tutorial_lib.checks.vocabulary import read


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    rows, width, hidden = draw.sample(range(20, 60), 3)
    sizes = {"rows": rows, "width": width, "hidden": hidden, "keep": draw.randint(2, 5)}
    return [
        sizes | {"leak": "nothing", "optimizer": "adamw"},
        sizes | {"leak": "a loss with its graph", "optimizer": "momentum"},
        sizes | {"leak": "slices", "optimizer": "momentum"},
        sizes | {"leak": "views of old tensors", "optimizer": "sgd"},
        sizes | {"leak": "a sum in an old tensor", "optimizer": "momentum"},
    ]


def _run(answer: Answer, case: Case) -> Result:
    training = LeakyTraining(case)
    with machine.without_instruments():
        leaks = answer(training, training.model, training.optimizer)
    return {"leaks": leaks, "calls": training.calls}


class _Measured:
    """A training step that was run once, and the report of it."""

    def __init__(self, case: Case) -> None:
        self.training = step = LeakyTraining(case)
        self.report = memory.measure(step, model=step.model, optimizer=step.optimizer, warmup=0)
        self.leaks = [(life.op, life.num_bytes) for life in self.report.leaks()]
        self.sizes = Counter(num_bytes for _, num_bytes in self.leaks)


def _judge(case: Case, result: Result, measured: _Measured) -> None:
    calls = read.integer(result.get("calls"), "calls of step")
    if calls != 1:
        raise CheckError(f"step was called {calls} times: once is wanted.")
    seen = _pairs(result.get("leaks"))
    sizes = Counter(num_bytes for _, num_bytes in seen)
    name = f"a step that keeps {case['leak']}"
    if sizes != measured.sizes:
        extra, missing = sizes - measured.sizes, measured.sizes - sizes
        suspects = [(op, size) for op, size in seen if size in extra]
        fitting = (words for words, fits in _reasons(measured, extra, missing, suspects) if fits)
        why = next(fitting, "These are not the storages that the step made and that still live.")
        shown = ", ".join(f"{size:,}" for size in sorted(sizes.elements())) or "nothing"
        raise CheckError(f"{name}: {shown} came. {why}")
    if Counter(seen) != Counter(measured.leaks):
        shown = ", ".join(sorted({op for op, _ in seen}))
        raise CheckError(
            f"{name}: the bytes are right, and the operations are {shown}. The one that made the "
            "storage is wanted, by func.overloadpacket.__name__, and none that used it later."
        )


def _pairs(leaks: Any) -> list[tuple[str, int]]:
    if not isinstance(leaks, list) or not all(isinstance(x, list) and len(x) == 2 for x in leaks):
        raise CheckError(
            f"a list of pairs (operation, bytes) is needed, and {str(leaks)[:100]} came."
        )
    return [(str(op), read.integer(num_bytes, "bytes of a leak")) for op, num_bytes in leaks]


def _reasons(
    measured: _Measured,
    extra: Counter[int],
    missing: Counter[int],
    suspects: list[tuple[str, int]],
) -> Iterator[tuple[str, bool]]:
    """Say what may be wrong, and whether the sizes that are too many or missing speak for it."""
    training, leaks = measured.training, measured.sizes
    empty = "Something was left behind, and an empty list says that nothing was."
    yield empty, not extra and missing == leaks
    slices = "A slice keeps the whole storage alive: give the bytes of the storage."
    yield slices, bool(extra) and extra <= Counter(view.nbytes for view in training.views)
    shared = "Several tensors that share a storage are one leak: list storages, not tensors."
    yield shared, bool(extra) and set(extra) <= set(leaks)
    yield (
        "Something is missing: what an operation makes for itself was never an object of "
        "Python's, and the graph holds it in C++. Catch each tensor when it is born.",
        not extra,
    )
    yield (
        "An operation whose name ends in _ changes a tensor and makes none, as the update does "
        "with the parameters: leave out what was among its arguments.",
        any(op.endswith("_") for op, _ in suspects),
    )
    made = {(life.op, life.num_bytes) for life in measured.report.timeline}
    lives = [life for life in measured.report.timeline if life.born > 0 and life.died is None]
    gradients, state = (
        Counter(life.num_bytes for life in lives if life.category == category)
        for category in ("gradients", "optimizer_state")
    )
    loss = Counter([4])  # bytes of what a step returns
    in_it = {
        "What step() returned is in it: your function holds it while it looks. Let it go.": loss,
        "An operation wrote into an old tensor that came by keyword, out=...: look for what is "
        "known among the keyword arguments too.": Counter([training.written.nbytes]),
        "What lay there before the step is in it: a view of an old tensor makes no storage.": (
            Counter(size for op, size in suspects if (op, size) not in made)
        ),
        "The gradients are in it: a step is meant to leave them.": gradients,
        "The optimizer's state is in it: a step is meant to leave it.": state,
        "Gradients and optimizer state are in it: a step is meant to leave both.": gradients
        + state,
        "Garbage is in it, that refers to itself and waits for Python's collector: collect before "
        "you look.": Counter(training.garbage_bytes),
        "More than one thing is in it that is no leak: gradients, optimizer state, what step() "
        "returned, or garbage that waits for Python's collector.": (
            gradients + state + loss + Counter(training.garbage_bytes)
        ),
    }
    yield from ((words, extra <= sizes) for words, sizes in in_it.items())


find_leaks = Check(
    "lab02.find_leaks",
    "2.5",
    "what memory.measure finds left behind, and no false alarm",
    _cases,
    _run,
    _judge,
    oracle=_Measured,
    forbidden=machine.NO_INSTRUMENTS,
)
