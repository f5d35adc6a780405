"""The check of lab 02 that looks for what outlives a step."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from tutorial_lib import memory
from tutorial_lib.checks import lab02_oracles as oracles
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.lab02_steps import LeakyTraining
from tutorial_lib.checks.results import whole_number

_LOSS_BYTES = 4  # of what a step returns


def _leak_cases(seed: int) -> list[Case]:
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


def _run_leaks(answer: Callable[..., Any], case: Case) -> Result:
    training = LeakyTraining(case)
    with oracles.by_hand():
        leaks = answer(training, training.model, training.optimizer)
    return {"leaks": leaks, "calls": training.calls}


def _judge_leaks(case: Case, result: Result) -> None:
    calls = whole_number(result.get("calls"), "calls of step")
    if calls != 1:
        raise CheckError(f"step was called {calls} times: once is wanted.")
    seen = _pairs(result.get("leaks"))
    training = LeakyTraining(case)
    report = memory.measure(training, model=training.model, optimizer=training.optimizer, warmup=0)
    wanted = [(life.op, life.num_bytes) for life in report.leaks()]
    sizes = Counter(num_bytes for _, num_bytes in seen)
    wanted_sizes = Counter(num_bytes for _, num_bytes in wanted)
    name = f"a step that keeps {case['leak']}"
    extra, missing = sizes - wanted_sizes, wanted_sizes - sizes
    if extra or missing:
        shown = ", ".join(f"{size:,}" for size in sorted(sizes.elements())) or "nothing"
        changed = any(op.endswith("_") and size in extra for op, size in seen)
        raise CheckError(f"{name}: {shown} came. {_why(training, report, extra, missing, changed)}")
    if Counter(seen) != Counter(wanted):
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
    return [(str(op), whole_number(num_bytes, "bytes of a leak")) for op, num_bytes in leaks]


def _why(
    training: LeakyTraining,
    report: memory.MemoryReport,
    extra: Counter[int],
    missing: Counter[int],
    changed: bool,
) -> str:
    """Name the mistake by the sizes that are too many, or changed in place, or missing."""
    lives = [life for life in report.timeline if life.born > 0 and life.died is None]
    gradients, state = (
        Counter(life.num_bytes for life in lives if life.category == category)
        for category in ("gradients", "optimizer_state")
    )
    old = Counter(tensor.untyped_storage().nbytes() for tensor in training.old)
    leaked = Counter(life.num_bytes for life in report.leaks())
    views = Counter(tensor.nbytes for tensor in training.views)
    if not extra and missing == leaked:
        return "Something was left behind, and an empty list says that nothing was."
    if extra and extra <= views:
        return "A slice keeps the whole storage alive: give the bytes of the storage."
    if extra and set(extra) <= set(leaked):
        return "Several tensors that share a storage are one leak: list storages, not tensors."
    if missing and not extra:
        return (
            "Something is missing: what an operation makes for itself was never an object of "
            "Python's, and the graph holds it in C++. Catch each tensor when it is born."
        )
    if changed:
        return (
            "An operation whose name ends in _ changes a tensor and makes none, as the update does "
            "with the parameters: leave out what was among its arguments."
        )
    reasons = {
        "What step() returned is in it: your function holds it while it looks. Let it go.": Counter(
            [_LOSS_BYTES]
        ),
        "An operation wrote into an old tensor that came by keyword, out=...: look for what is "
        "known among the keyword arguments too.": Counter([training.written.nbytes]),
        "The gradients are in it: a step is meant to leave them.": gradients,
        "The optimizer's state is in it: a step is meant to leave it.": state,
        "Gradients and optimizer state are in it: a step is meant to leave both.": gradients
        + state,
        "What lay there before the step is in it: a view of an old tensor makes no storage.": old,
        "Garbage is in it, that refers to itself and waits for Python's collector: collect before "
        "you look.": Counter(training.garbage_bytes),
    }
    for explanation, sizes in reasons.items():
        if extra and extra <= sizes:
            return explanation
    return "These are not the storages that the step made and that still live."


find_leaks = Check(
    name="lab02.find_leaks",
    exercise="2.5",
    passed="what memory.measure finds left behind, and no false alarm",
    cases=_leak_cases,
    run=_run_leaks,
    judge=_judge_leaks,
)
