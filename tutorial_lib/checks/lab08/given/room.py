"""The halves that run 8.3, 8.4 and 8.5: the floor, chosen segments, and a search for a plan."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.checks.given import Answer, Case, Result, answered, forbid, observe, run_half
from tutorial_lib.checks.given.exam import of_context
from tutorial_lib.checks.given.values import CheckError, plain
from tutorial_lib.checks.lab08.given import models

STATE_BYTES: dict[str, Callable[[Tensor], int]] = {
    "momentum": lambda parameter: parameter.nbytes,
    "adamw": lambda parameter: 2 * parameter.nbytes + 4,
}
_REENTRANT = forbid.Forbidden(
    "that is checkpoint's old form, use_reentrant=True, which takes no keyword arguments and loses "
    "gradients where the input needs none: say use_reentrant=False.",
    ("torch.utils.checkpoint:CheckpointFunction.forward",),
)
_NUM = 8
Plan = tuple[int, tuple[str, ...]]  # images at once, blocks that are segments


def with_buffers(case: Case) -> nn.Module:
    """Build a U-Net with buffers, one of them not persistent, frozen in part or not."""
    unet = models.make_unet(case)
    unet.register_buffer("average", torch.zeros(100))
    unet.register_buffer("counts", torch.zeros(30, dtype=torch.int64), persistent=False)
    if case["frozen"]:
        unet.down_blocks.requires_grad_(False)
    return unet


def multiple_of(case: Case) -> int:
    """Give what the side of an image must be a multiple of."""
    return int(2 ** (case["levels"] - 1))


@run_half("8.3")
def room_for_activations(answer: Answer, case: Case) -> Result:
    unet = with_buffers(case).to("meta" if case.get("on_meta") else "cpu")
    state_bytes = STATE_BYTES[case["optimizer"]]
    ask = partial(answer, unet, case["side"], state_bytes, case["cap_bytes"])
    if case["more"] < 0 or case["side"] % multiple_of(case):
        return {"said": observe.error_said(ask, "ValueError")}
    try:
        return {"said": "", "room": ask()}
    except ValueError as error:
        return {"said": str(error)}


class _InterruptedError(Exception):
    pass


class Training:
    """A U-Net with gradients, its chosen modules, and the runs of every residual block."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.unet = models.make_unet(case)
        observe.fill_gradients(self.unet)
        self.chosen = [self.unet.get_submodule(name) for name in case["chosen"]]
        modules = dict(self.unet.named_modules())
        self.runs = {name: 0 for name in modules if name.endswith("norm1")}
        for name in self.runs:  # wherever a segment begins
            modules[name].register_forward_pre_hook(partial(self._count, name))

    def _count(self, name: str, *_: Any) -> None:
        self.runs[name] += 1

    def step(self) -> None:
        """Go forward and backward once."""
        torch.manual_seed(self.case["seed"])
        models.backward(self.unet, models.make_drawn(self.case, _NUM), _NUM)


def _give_own_forward(module: nn.Module) -> list[int]:
    """Give a module a forward of its own, which lists its runs."""
    runs: list[int] = []
    plain = module.forward  # looked up now: an answer may change the class meanwhile

    def own(*args: Any, **kwargs: Any) -> Any:
        runs.append(1)
        return plain(*args, **kwargs)

    module.forward = own
    return runs


def _observe(answer: Answer, case: Case) -> dict[str, Any]:
    training = Training(case)
    chosen = training.chosen
    own = [_give_own_forward(m) for m in chosen] if case["how"] == "own forward" else []
    before = [vars(module).get("forward") for module in chosen]
    seen: dict[str, Any] = {"peak": 0, "came_out": False}
    try:
        with answer(chosen):
            if case["how"] == "error":
                raise _InterruptedError
            seen["peak"], _ = observe.peak_above(training.step, training.unet)
    except _InterruptedError:
        seen["came_out"] = True
    seen |= {"own": list(map(len, own)), "runs": training.runs}
    # a copy: the later step adds to the same gradients
    seen["gradients"] = plain(observe.gradients_of(training.unet))
    after = [vars(module).get("forward") for module in chosen]
    seen["put_back"] = all(a is b for a, b in zip(after, before, strict=True))
    training.runs = dict.fromkeys(training.runs, 0)
    training.step()
    return {**seen, "later": training.runs}


@run_half("8.4", forbidden=[_REENTRANT], exam=of_context())
def recomputing(answer: Answer, case: Case) -> Result:
    try:
        return _observe(answer, case)
    except TypeError as error:
        if "context manager" not in str(error):
            raise
        raise CheckError(
            "recomputing(modules) is used in a with statement: @contextlib.contextmanager above "
            "the function, and a yield in it."
        ) from error


class _NoPlanError(Exception):
    pass


class Peaks:
    """The peaks of a case's plans."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def peak(self, plan: Plan) -> int:
        """Give a peak as a real one behaves: savings add up, and one whole segment comes back."""
        saved = sum(self.case["saved"][name] for name in plan[1])
        back = max((self.case["whole"][name] for name in plan[1]), default=0)
        return int(10**5 + plan[0] * (5 * 10**4 - saved + back))


def as_plan(returned: Any) -> Plan:
    """Take apart what is meant to be a plan; its micro-batch may be anything as yet."""
    size, names = answered.several(returned, 2, "a micro-batch and a tuple of blocks")
    if not isinstance(names, list | tuple | set | frozenset):
        raise CheckError(f"a tuple of blocks is wanted, and {type(names).__name__} came.")
    return size, tuple(sorted(map(str, names)))


def is_plan(plan: Plan, case: Case) -> bool:
    """Tell whether there are as many images, and such blocks."""
    return plan[0] in range(1, case["num"] + 1) and set(plan[1]) <= set(case["prices"])


@run_half("8.5")
def cheapest_fit(answer: Answer, case: Case) -> Result:
    asked: list[Plan] = []
    plans, seen = Peaks(case), dict[str, Any](asked=asked)

    def peak_of(micro_batch: int, choice: Any) -> int:
        asked.append(as_plan((micro_batch, choice)))
        if not is_plan(asked[-1], case):
            raise _NoPlanError
        return plans.peak(asked[-1])

    known = case["num"], case["full"], case["plain"], dict(case["prices"])
    call = partial(answer, *known, peak_of, case["limit"])
    with contextlib.suppress(_NoPlanError):  # the judge reads what was asked, and says what it is
        if case.get("refused"):
            seen["said"] = observe.error_said(call, "ValueError")
        else:
            seen["chosen"] = as_plan(call())
    return seen
