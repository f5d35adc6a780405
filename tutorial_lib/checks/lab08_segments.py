"""The check of lab 08's own strategy (8.4): chosen modules as segments, for a while."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.utils.checkpoint as torchs
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)

from tutorial_lib.checks import lab08_oracles as oracles
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.results import counts, same, tensors, whole_number
from tutorial_lib.checks.running import refused, remembered

_NUM = 8
_SLACK = 1.03  # a recomputation that goes on to its end holds a little more
_REENTRANT = (
    "that is checkpoint's old form, use_reentrant=True, which takes no keyword arguments and loses "
    "gradients where the input needs none: say use_reentrant=False."
)
_CHOICES = {
    "residual blocks": ("down_blocks.0.resnets.0", "down_blocks.0.resnets.1"),
    "levels": ("down_blocks.0", "up_blocks.1"),
    "the middle": ("mid_block",),
}


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    case = {"seed": draw.randrange(10**6), "layers": 2, "dropout": 0.1, "how": "used"}
    return [
        *({**case, "chosen": list(chosen)} for chosen in _CHOICES.values()),
        {**case, "chosen": list(_CHOICES["levels"]), "how": "error"},
        {**case, "chosen": list(_CHOICES["levels"]), "how": "own forward"},
    ]


def _watched(unet: nn.Module) -> dict[str, list[int]]:
    """Count the runs of every residual block, wherever a segment begins."""
    runs: dict[str, list[int]] = {}

    def note(name: str, *_: Any) -> None:
        runs[name].append(1)

    for name, module in unet.named_modules():
        if name.endswith("norm1"):
            runs[name] = []
            module.register_forward_pre_hook(partial(note, name))
    return runs


def _step(unet: nn.Module, case: Case) -> None:
    torch.manual_seed(case["seed"])
    oracles.backward(unet, oracles.make_drawn(case, _NUM), _NUM)


def _own_forward(module: nn.Module) -> list[int]:
    """Give a module a forward of its own, which lists its runs."""
    runs: list[int] = []
    plain = module.forward  # looked up now: an answer may change the class meanwhile

    def own(*args: Any, **kwargs: Any) -> Any:
        runs.append(1)
        return plain(*args, **kwargs)

    module.forward = own
    return runs


def _observe(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    unet = oracles.make_unet(case)
    oracles.fill_gradients(unet)
    chosen = [unet.get_submodule(name) for name in case["chosen"]]
    is_own = case["how"] == "own forward"
    own = [_own_forward(module) for module in chosen] if is_own else []
    before = [vars(module).get("forward") for module in chosen]
    runs = _watched(unet)
    seen: dict[str, Any] = {"peak": 0, "came_out": False}
    try:
        with answer(chosen):
            if case["how"] == "error":
                raise _InterruptedError
            seen["peak"] = oracles.peak_above(lambda: _step(unet, case), unet)
    except _InterruptedError:
        seen["came_out"] = True
    seen["own"] = [len(times) for times in own]
    seen["runs"] = {name: len(times) for name, times in runs.items()}
    seen["gradients"] = [None if g is None else g.clone() for g in oracles.gradients_of(unet)]
    after = [vars(module).get("forward") for module in chosen]
    seen["put_back"] = all(a is b for a, b in zip(after, before, strict=True))
    for times in runs.values():
        times.clear()
    _step(unet, case)
    seen["later"] = {name: len(times) for name, times in runs.items()}
    return seen


class _InterruptedError(Exception):
    pass


@remembered
def _exact(case: Case) -> tuple[dict[str, int], int]:
    """Count the runs and the peak with PyTorch's wrapper, which replaces the chosen modules."""
    unet = oracles.make_unet(case)
    oracles.fill_gradients(unet)
    chosen = [unet.get_submodule(name) for name in case["chosen"]]
    runs = _watched(unet)
    apply_activation_checkpointing(unet, check_fn=lambda module: module in chosen)
    peak = oracles.peak_above(lambda: _step(unet, case), unet)
    return {name: len(times) for name, times in runs.items()}, peak


def _run(answer: Callable[..., Any], case: Case) -> Result:
    try:
        with refused(torchs.CheckpointFunction, "apply", _REENTRANT):
            return _observe(answer, case)
    except TypeError as error:
        if "context manager" not in str(error):
            raise
        raise CheckError(
            "recomputing(modules) is used in a with statement: @contextlib.contextmanager above "
            "the function, and a yield in it."
        ) from error


@remembered
def _plain_gradients(case: Case) -> list[Tensor | None]:
    unet = oracles.make_unet(case)
    oracles.fill_gradients(unet)
    _step(unet, case)
    return oracles.gradients_of(unet)


def _counts(value: Any, wanted: dict[str, int]) -> dict[str, int]:
    if not isinstance(value, dict) or value.keys() != wanted.keys():
        raise CheckError("runs: a count for each residual block is wanted, something else came.")
    return {name: whole_number(count, f"runs of {name}") for name, count in value.items()}


def _judge(case: Case, result: Result) -> None:
    wanted, enough = _exact(case)
    if case["how"] == "error" and result.get("came_out") is not True:
        raise CheckError(
            "an error that was raised inside the with block did not come out of it: whoever trains "
            "there must hear of it. Put things back, and let the error pass."
        )
    later = _counts(result.get("later"), wanted)
    if any(count != 1 for count in later.values()):
        after = ", and an error inside it," if case["how"] == "error" else ""
        raise CheckError(
            f"after the with block{after} modules are still recomputed: undo it in a finally."
        )
    if result.get("put_back") is not True:
        what = (
            "had a forward of its own before, and it is gone: put back what was there."
            if case["how"] == "own forward"
            else "still has a forward of its own: delete it, so that its class's is used again."
        )
        raise CheckError(f"after the with block a module {what}")
    if case["how"] == "error":
        return
    if 0 in counts(result.get("own"), None, "own"):
        raise CheckError(
            "a module had a forward of its own, and in the with block it never ran: the module's "
            "forward is what shall be recomputed, not that of its class."
        )
    _judge_runs(case, _counts(result.get("runs"), wanted), wanted)
    plain = _plain_gradients(case)
    seen = tensors(result.get("gradients"), len(plain), "gradients")
    if not all(map(same, seen, plain)):
        raise CheckError(
            "the gradients are not those of the plain step, to the bit, with dropout on: does the "
            "recomputation draw what forward drew?"
        )
    peak = whole_number(result.get("peak"), "peak")
    if peak > _SLACK * enough:
        raise CheckError(
            f"the peak is {peak:,} bytes, and {enough:,} are enough, with right gradients: "
            "each module is one segment, which keeps its inputs."
        )


def _judge_runs(case: Case, runs: dict[str, int], wanted: dict[str, int]) -> None:
    if set(runs.values()) == {1}:
        raise CheckError("every layer ran once: nothing was recomputed.")
    never = [name for name, count in runs.items() if not count]
    if never:
        raise CheckError(
            f"{never[0]} never ran: another module ran in its place. A function made in a loop "
            "looks its loop variable up when it is called, and by then the loop is over."
        )
    more = [name for name in runs if runs[name] > wanted[name]]
    if more:
        raise CheckError(
            f"{more[0]} ran {runs[more[0]]} times, and {wanted[more[0]]} is wanted for the modules "
            f"{', '.join(case['chosen'])}."
        )
    if runs != wanted:
        raise CheckError(f"of {', '.join(case['chosen'])}, not all were recomputed.")


recomputing = Check(
    name="lab08.recomputing",
    exercise="8.4",
    passed="the chosen modules alone run twice, gradients to the bit, and all is undone",
    cases=_cases,
    run=_run,
    judge=_judge,
)
