"""The check of 8.4, a strategy of one's own: chosen modules as segments, for a while."""

from typing import Any

from torch import Tensor

from tutorial_lib.checks.given import answered, observe
from tutorial_lib.checks.lab08.given import room
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Exercise, Result, expect, read
from tutorial_lib.instruments.private_torch import checkpoint_modules

_SLACK = 1.03  # a recomputation that goes on to its end holds a little more
_RESIDUAL_BLOCKS = ["down_blocks.0.resnets.0", "down_blocks.0.resnets.1"]
_LEVELS = ["down_blocks.0", "up_blocks.1"]
_Wanted = tuple[dict[str, int], int, list[Tensor | None]]


def _cases(draw: Draw) -> Cases:
    case = {"seed": draw.randrange(10**6), "layers": 2, "dropout": 0.1}
    yield {**case, "how": "used", "chosen": _RESIDUAL_BLOCKS}
    yield from ({**case, "how": how, "chosen": _LEVELS} for how in ("error", "own forward"))


def _wanted(case: Case) -> _Wanted:
    """Give runs and peak with PyTorch's wrapper, which replaces modules, and plain gradients."""
    wrapped, plain = room.Training(case), room.Training(case)
    checkpoint_modules(wrapped.unet, lambda module: module in wrapped.chosen)
    peak, _ = observe.peak_above(wrapped.step, wrapped.unet)
    plain.step()
    return wrapped.runs, peak, observe.gradients_of(plain.unet)


def _runs(value: Any, wanted: dict[str, int]) -> dict[str, int]:
    runs = answered.fields(value, list(wanted))
    return {name: read.integer(count, f"runs of {name}") for name, count in runs.items()}


def _judge(case: Case, result: Result, wanted: _Wanted) -> None:
    (wanted_runs, enough, exact), how = wanted, case["how"]
    later = _runs(result["later"], wanted_runs)
    own, put_back = read.integers(result["own"], "own"), read.flag(result, "put_back")
    after = ", and an error inside it," if how == "error" else ""
    left = (
        "had a forward of its own before, and it is gone: put back what was there."
        if how == "own forward"
        else "still has a forward of its own: delete it, so that its class's is used again."
    )
    faults = {
        "an error that was raised inside the with block did not come out of it: whoever trains "
        "there must hear of it. Put things back, and let the error pass.": (
            how == "error" and not read.flag(result, "came_out")
        ),
        f"after the with block{after} modules are still recomputed: undo it in a finally.": (
            any(count != 1 for count in later.values())
        ),
        f"after the with block a module {left}": not put_back,
        "a module had a forward of its own, and in the with block it never ran: the module's "
        "forward is what shall be recomputed, not that of its class.": how != "error" and 0 in own,
    }
    expect.no_fault(faults)
    if how == "error":
        return
    _judge_runs(case, _runs(result["runs"], wanted_runs), wanted_runs)
    gradients = read.tensors(result["gradients"], len(exact), "gradients")
    expect.fact(
        all(map(expect.same_bits, gradients, exact)),
        "the gradients are not those of the plain step, to the bit, with dropout on: does the "
        "recomputation draw what forward drew?",
    )
    expect.peak_at_most(
        result["peak"],
        _SLACK * enough,
        lambda peak: (
            f"the peak is {peak:,} bytes, and {enough:,} are enough, with right gradients: each "
            "module is one segment, which keeps its inputs."
        ),
    )


def _judge_runs(case: Case, runs: dict[str, int], wanted: dict[str, int]) -> None:
    chosen = ", ".join(case["chosen"])
    expect.fact(set(runs.values()) != {1}, "every layer ran once: nothing was recomputed.")
    for name, count in runs.items():
        expect.fact(
            count > 0,
            f"{name} never ran: another module ran in its place. A function made in a loop looks "
            "its loop variable up when it is called, and by then the loop is over.",
        )
    for name, count in runs.items():
        expect.fact(
            count <= wanted[name],
            f"{name} ran {count} times, and {wanted[name]} is wanted for the modules {chosen}.",
        )
    expect.fact(runs == wanted, f"of {chosen}, not all were recomputed.")


recomputing = Exercise(
    run=room.recomputing,
    passed="the chosen modules alone run twice, gradients to the bit, and all is undone",
    cases=_cases,
    judge=_judge,
    oracle=_wanted,
)
