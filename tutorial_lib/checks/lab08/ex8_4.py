"""The check of 8.4, a strategy of one's own: chosen modules as segments, for a while."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.given import answered, exam, forbid, observe
from tutorial_lib.checks.lab08 import models
from tutorial_lib.checks.vocabulary import expect, read
from tutorial_lib.instruments.private_torch import checkpoint_modules

_NUM = 8
_SLACK = 1.03  # a recomputation that goes on to its end holds a little more
_REENTRANT = forbid.Forbidden(
    "that is checkpoint's old form, use_reentrant=True, which takes no keyword arguments and loses "
    "gradients where the input needs none: say use_reentrant=False.",
    ("torch.utils.checkpoint:CheckpointFunction.forward",),
)
_RESIDUAL_BLOCKS = ["down_blocks.0.resnets.0", "down_blocks.0.resnets.1"]
_LEVELS = ["down_blocks.0", "up_blocks.1"]


class _InterruptedError(Exception):
    pass


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    case = {"seed": draw.randrange(10**6), "layers": 2, "dropout": 0.1, "how": "used"}
    return [
        {**case, "chosen": _RESIDUAL_BLOCKS},
        {**case, "chosen": _LEVELS, "how": "error"},
        {**case, "chosen": _LEVELS, "how": "own forward"},
    ]


class _Training:
    """A U-Net with gradients, its chosen modules, and the runs of every residual block."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.unet = models.make_unet(case)
        observe.fill_gradients(self.unet)
        self.chosen = [self.unet.get_submodule(name) for name in case["chosen"]]
        names = [name for name, _ in self.unet.named_modules() if name.endswith("norm1")]
        self.runs = dict.fromkeys(names, 0)
        for name in names:  # wherever a segment begins
            self.unet.get_submodule(name).register_forward_pre_hook(partial(self._count, name))

    def _count(self, name: str, *_: Any) -> None:
        self.runs[name] += 1

    def step(self) -> None:
        torch.manual_seed(self.case["seed"])
        models.backward(self.unet, models.make_drawn(self.case, _NUM), _NUM)

    def step_peak(self) -> int:
        return observe.peak_above(self.step, self.unet)[0]


def _give_own_forward(module: nn.Module) -> list[int]:
    """Give a module a forward of its own, which lists its runs."""
    runs: list[int] = []
    plain = module.forward  # looked up now: an answer may change the class meanwhile

    def own(*args: Any, **kwargs: Any) -> Any:
        runs.append(1)
        return plain(*args, **kwargs)

    module.forward = own
    return runs


def _observe(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    training = _Training(case)
    chosen = training.chosen
    own = [_give_own_forward(m) for m in chosen] if case["how"] == "own forward" else []
    before = [vars(module).get("forward") for module in chosen]
    seen: dict[str, Any] = {"peak": 0, "came_out": False}
    try:
        with answer(chosen):
            if case["how"] == "error":
                raise _InterruptedError
            seen["peak"] = training.step_peak()
    except _InterruptedError:
        seen["came_out"] = True
    seen["own"] = list(map(len, own))
    seen["runs"] = training.runs.copy()
    seen["gradients"] = [
        None if g is None else g.clone() for g in observe.gradients_of(training.unet)
    ]
    after = [vars(module).get("forward") for module in chosen]
    seen["put_back"] = all(a is b for a, b in zip(after, before, strict=True))
    training.runs = dict.fromkeys(training.runs, 0)
    training.step()
    return {**seen, "later": training.runs}


def _run(answer: Callable[..., Any], case: Case) -> Result:
    try:
        return _observe(answer, case)
    except TypeError as error:
        if "context manager" not in str(error):
            raise
        raise CheckError(
            "recomputing(modules) is used in a with statement: @contextlib.contextmanager above "
            "the function, and a yield in it."
        ) from error


def _wanted(case: Case) -> tuple[dict[str, int], int, list[Tensor | None]]:
    """Give runs and peak with PyTorch's wrapper, which replaces modules, and plain gradients."""
    wrapped, plain = _Training(case), _Training(case)
    checkpoint_modules(wrapped.unet, lambda module: module in wrapped.chosen)
    peak = wrapped.step_peak()
    plain.step()
    return wrapped.runs, peak, observe.gradients_of(plain.unet)


def _runs(value: Any, wanted: dict[str, int]) -> dict[str, int]:
    runs = answered.fields(value, list(wanted))
    return {name: read.integer(count, f"runs of {name}") for name, count in runs.items()}


def _judge(
    case: Case, result: Result, wanted: tuple[dict[str, int], int, list[Tensor | None]]
) -> None:
    (wanted_runs, enough, exact), how = wanted, case["how"]
    later = _runs(result.get("later"), wanted_runs)
    own, put_back = read.integers(result.get("own"), "own"), read.flag(result, "put_back")
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
    _judge_runs(case, _runs(result.get("runs"), wanted_runs), wanted_runs)
    gradients = read.tensors(result.get("gradients"), len(exact), "gradients")
    peak = read.integer(result.get("peak"), "peak")
    faults = {
        "the gradients are not those of the plain step, to the bit, with dropout on: does the "
        "recomputation draw what forward drew?": (not all(map(expect.same_bits, gradients, exact))),
        f"the peak is {peak:,} bytes, and {enough:,} are enough, with right gradients: each module "
        "is one segment, which keeps its inputs.": peak > _SLACK * enough,
    }
    expect.no_fault(faults)


def _judge_runs(case: Case, runs: dict[str, int], wanted: dict[str, int]) -> None:
    chosen = ", ".join(case["chosen"])
    faults = {"every layer ran once: nothing was recomputed.": set(runs.values()) == {1}}
    for name, count in runs.items():
        words = (
            f"{name} never ran: another module ran in its place. A function made in a loop looks "
            "its loop variable up when it is called, and by then the loop is over."
        )
        faults[words] = not count
    for name, count in runs.items():
        words = f"{name} ran {count} times, and {wanted[name]} is wanted for the modules {chosen}."
        faults[words] = count > wanted[name]
    expect.no_fault({**faults, f"of {chosen}, not all were recomputed.": runs != wanted})


recomputing = Check(
    "lab08.recomputing",
    "8.4",
    "the chosen modules alone run twice, gradients to the bit, and all is undone",
    _cases,
    _run,
    _judge,
    oracle=_wanted,
    exam=exam.of_context(),
    forbidden=[_REENTRANT],
)
