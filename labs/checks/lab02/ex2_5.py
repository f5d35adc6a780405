"""The check of 2.5: storages that outlive a step."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from tutorial_lib import memory
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, check, expect, read

from . import given

_PASSED = "what memory.measure finds left behind, and no false alarm"


def _cases(draw: Draw) -> Cases:
    rows, width, hidden = draw.sample(range(20, 60), 3)
    sizes = {"rows": rows, "width": width, "hidden": hidden, "keep": draw.randint(2, 5)}
    yield sizes | {"leak": "nothing", "optimizer": "adamw"}
    yield sizes | {"leak": "a loss with its graph", "optimizer": "momentum"}
    yield sizes | {"leak": "slices", "optimizer": "momentum"}
    yield sizes | {"leak": "views of old tensors", "optimizer": "sgd"}
    yield sizes | {"leak": "a sum in an old tensor", "optimizer": "momentum"}


class _Measured:
    """A training step that was run once, and the report of it."""

    def __init__(self, case: Case) -> None:
        self.training = step = given.LeakyTraining(case)
        self.report = memory.measure(step, model=step.model, optimizer=step.optimizer, warmup=0)
        self.leaks = Counter((life.op, life.num_bytes) for life in self.report.leaks())

    def left(self, category: str) -> Counter[int]:
        """Count the sizes of the step's storages of a category that still live."""
        lives = (life for life in self.report.timeline if life.born > 0 and life.died is None)
        return Counter(life.num_bytes for life in lives if life.category == category)


@check(given.find_leaks, _PASSED, _cases, oracle=_Measured)
def find_leaks(case: Case, result: Result, measured: _Measured) -> None:
    calls = read.integer(result["calls"], "calls of step")
    expect.fact(calls == 1, f"step was called {calls} times: once is wanted.")
    seen = _pairs(result["leaks"])
    name = f"a step that keeps {case['leak']}"
    sizes, wanted = _sizes(seen), _sizes(measured.leaks.elements())
    if sizes != wanted:
        shown = ", ".join(f"{size:,}" for size in sorted(sizes.elements())) or "nothing"
        reasons = _reasons(seen, sizes, wanted, measured)
        expect.no_fault({f"{name}: {shown} came. {words}": fits for words, fits in reasons.items()})
    operations = ", ".join(sorted({op for op, _ in seen}))
    expect.fact(
        Counter(seen) == measured.leaks,
        f"{name}: the bytes are right, and the operations are {operations}. The one that made the "
        "storage is wanted, by func.overloadpacket.__name__, and none that used it later.",
    )


def _pairs(leaks: Any) -> list[tuple[str, int]]:
    expect.fact(
        isinstance(leaks, list) and all(isinstance(x, list) and len(x) == 2 for x in leaks),
        f"a list of pairs (operation, bytes) is needed, and {str(leaks)[:100]} came.",
    )
    return [(str(op), read.integer(num_bytes, "bytes of a leak")) for op, num_bytes in leaks]


def _sizes(leaks: Iterable[tuple[str, int]]) -> Counter[int]:
    return Counter(num_bytes for _, num_bytes in leaks)


def _reasons(
    seen: list[tuple[str, int]], sizes: Counter[int], wanted: Counter[int], measured: _Measured
) -> dict[str, bool]:
    """List possible faults, and whether the sizes that are too many or missing speak for them."""
    training, extra, missing = measured.training, sizes - wanted, wanted - sizes
    suspects = [(op, size) for op, size in seen if size in extra]
    made = {(life.op, life.num_bytes) for life in measured.report.timeline}
    old = Counter(size for op, size in suspects if (op, size) not in made)
    gradients, state = measured.left("gradients"), measured.left("optimizer_state")
    loss, garbage = Counter([4]), Counter(training.garbage_bytes)  # a step returns four bytes
    is_silent, is_often = not extra and missing == wanted, bool(extra) and set(extra) <= set(wanted)
    is_slices = bool(extra) and extra <= Counter(view.nbytes for view in training.views)
    return {
        "Something was left behind, and an empty list says that nothing was.": is_silent,
        "A slice keeps the whole storage alive: give the bytes of the storage.": is_slices,
        "Several tensors that share a storage are one leak: list storages, not tensors.": is_often,
        "Something is missing: what an operation makes for itself was never an object of "
        "Python's, and the graph holds it in C++. Catch each tensor when it is born.": not extra,
        "An operation whose name ends in _ changes a tensor and makes none, as the update does "
        "with the parameters: leave out what was among its arguments.": any(
            op.endswith("_") for op, _ in suspects
        ),
        "What step() returned is in it: your function holds it while it looks. Let it go.": extra
        <= loss,
        "An operation wrote into an old tensor that came by keyword, out=...: look for what is "
        "known among the keyword arguments too.": extra <= Counter([training.written.nbytes]),
        "What lay there before the step is in it: a view of an old tensor makes no storage.": extra
        <= old,
        "The gradients are in it: a step is meant to leave them.": extra <= gradients,
        "The optimizer's state is in it: a step is meant to leave it.": extra <= state,
        "Gradients and optimizer state are in it: a step is meant to leave both.": (
            extra <= gradients + state
        ),
        "Garbage is in it, that refers to itself and waits for Python's collector: collect before "
        "you look.": extra <= garbage,
        "More than one thing is in it that is no leak: gradients, optimizer state, what step() "
        "returned, or garbage that waits for Python's collector.": (
            extra <= gradients + state + loss + garbage
        ),
        "Some are not storages that the step made and that still live: print each pair.": True,
    }
