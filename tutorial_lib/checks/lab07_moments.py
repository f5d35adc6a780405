"""The check of lab 07's moments (7.5): random state and buffers, as they were before a run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tutorial_lib import memory
from tutorial_lib.checks import lab07_oracles as oracles
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.results import flag, whole_number
from tutorial_lib.checks.running import pretended_gpu_states


def _cases(seed: int) -> list[Case]:
    case = oracles.case_of_parts(seed)
    return [
        {**case, "dropout": 0.5, "kind": "random"},
        {**case, "dropout": 0.0, "moves": True, "kind": "buffers"},
        {**case, "dropout": 0.5, "moves": True, "kind": "buffers"},
        {**case, "kind": "bytes"},
        {**case, "kind": "devices"},
    ]


def _run(answer: Callable[..., Any], case: Case) -> Result:
    torch.manual_seed(case["seed"])
    tower = oracles.CountingTower(case).double()
    with oracles.without_torchs():
        if case["kind"] == "bytes":
            return _bytes_kept(answer, tower)
        if case["kind"] == "devices":
            return _on_a_gpu(answer, tower, case["seed"] % 100)
        return _three_times(answer, tower, oracles.parts_of(case))


def _bytes_kept(answer: Callable[..., Any], tower: nn.Module) -> Result:
    tower.register_buffer("table", torch.zeros(100, dtype=torch.float64))
    with memory.watch(model=tower) as report:
        moments = [answer(tower) for _ in range(3)]
    del moments
    buffers = sum(buffer.nbytes for buffer in tower.buffers())
    return {"kept": report.leaked_bytes, "state": torch.get_rng_state().nbytes, "buffers": buffers}


def _on_a_gpu(answer: Callable[..., Any], tower: nn.Module, first: int) -> Result:
    """Follow the random state of a GPU that is not there, where one parameter seems to live."""
    with FakeTensorMode():
        tower.register_parameter("elsewhere", nn.Parameter(torch.empty(1, device="cuda")))
    with pretended_gpu_states(first) as states:
        restored = answer(tower)
        states.append(first + 2)  # the first pass draws, for this micro-batch and for others
        with restored():
            inside = states[-1]
            states.append(inside + 1)
        return {"inside": inside, "put_back": states[-1] == first + 2}


def _three_times(
    answer: Callable[..., Any], tower: oracles.CountingTower, parts: list[torch.Tensor]
) -> Result:
    before, then = torch.get_rng_state(), _buffers(tower)
    restored = answer(tower)
    moved = not torch.equal(before, torch.get_rng_state()) or any(_moved(tower, then))
    with torch.no_grad():
        first = tower(parts[0])
        for part in parts[1:]:  # other micro-batches come in between
            tower(part)
    between, late = torch.get_rng_state(), _buffers(tower)
    with restored():
        read_at_entry = torch.equal(between, torch.get_rng_state())
        not_restored = _moved(tower, then)
        again = tower(parts[0])
        again.sum().backward()
    seen = {
        "moved_by_call": moved,
        "read_at_entry": read_at_entry,
        "not_restored": not_restored,
        "same": torch.equal(first, again),
        "random_put_back": torch.equal(between, torch.get_rng_state()),
        "not_put_back": _moved(tower, late),
    }
    with restored():
        seen["same_again"] = torch.equal(first, tower(parts[0]))
    between, late = torch.get_rng_state(), _buffers(tower)
    raised = (KeyError, KeyboardInterrupt)
    came_out = [_comes_out(error, restored, partial(tower, parts[0])) for error in raised]
    kept = torch.equal(between, torch.get_rng_state()) and not _moved(tower, late)
    return {**seen, "put_back_after_error": kept, "errors_come_out": all(came_out)}


def _comes_out(
    error: type[BaseException], moment: Callable[[], Any], run: Callable[[], Any]
) -> bool:
    came_out = False
    try:
        with moment():
            run()
            raise error
    except error:
        came_out = True
    return came_out


def _buffers(tower: nn.Module) -> dict[str, torch.Tensor]:
    return {name: buffer.clone() for name, buffer in tower.named_buffers()}


def _moved(tower: nn.Module, values: dict[str, torch.Tensor]) -> list[str]:
    return [name for name, b in tower.named_buffers() if not torch.equal(b, values[name])]


def _judge(case: Case, result: Result) -> None:
    if case["kind"] == "bytes":
        _judge_bytes(result)
        return
    if case["kind"] == "devices":
        _judge_gpu(case, result)
        return
    if flag(result, "moved_by_call"):
        raise CheckError(
            "your call moved the random state or a buffer, so the first pass is another than a "
            "plain run: read, and change nothing."
        )
    if case["kind"] == "random":
        _judge_random(result)
    _judge_buffers(result)
    if not flag(result, "put_back_after_error"):
        raise CheckError(
            "an error inside the moment leaves random state or buffers behind: try and finally."
        )
    if not flag(result, "errors_come_out"):
        raise CheckError(
            "an error inside the moment ended there, and nobody heard of it: put back in finally, "
            "and let it go on."
        )
    if not flag(result, "same_again"):
        raise CheckError(
            "the second time, the moment was another: what was read must still be there after one "
            "use."
        )


def _judge_random(result: Result) -> None:
    if not flag(result, "same") and not flag(result, "read_at_entry"):
        raise CheckError(
            "dropout drew another mask the second time: the random state inside was neither the "
            "one that remember found nor the one just before. A seed leads back to its beginning "
            "only: keep the state itself."
        )
    if not flag(result, "same") and flag(result, "random_put_back"):
        raise CheckError(
            "dropout drew another mask the second time, and the random state was put back: it was "
            "read when the moment was entered. Read it in the upper part."
        )
    if not flag(result, "same"):
        raise CheckError(
            "dropout drew another mask the second time: inside the moment, the random state is "
            "the one that was read when remember was called."
        )
    if not flag(result, "random_put_back"):
        raise CheckError(
            "the second run drew the right mask and left its random state behind: the next batch "
            "would draw masks that were drawn before. Put back what was there."
        )


def _judge_buffers(result: Result) -> None:
    lost, left = _names(result, "not_restored"), _names(result, "not_put_back")
    if len(lost) == len(oracles.BUFFERS):
        raise CheckError(
            "all buffers were what the last micro-batch had made of them, so the tower computed "
            "something else: they belong to the moment too."
        )
    if lost == ["inner.hidden"]:
        raise CheckError(
            "a buffer with persistent=False is in no state_dict, so it was not in your moment: "
            "named_buffers has them all."
        )
    if lost == ["inner.steps"]:
        raise CheckError(
            "a buffer of whole numbers was left out: BatchNorm counts its batches so, and it moves "
            "like the others."
        )
    if lost == [name for name in oracles.BUFFERS if name.startswith("inner.")]:
        raise CheckError(
            "the tower's own buffer was in your moment, and those of a module inside the tower "
            "were not: it may have any number of layers."
        )
    if "drift" in lost:
        raise CheckError(
            "a buffer that the tower changes in place took your copy along: what you keep is the "
            "same tensor, so keep a clone."
        )
    if lost or left == ["inner.turned"]:
        raise CheckError(
            "the tower puts a new tensor in the place of one of its buffers, and you wrote into "
            "the old one: look buffers up by name when you write."
        )
    if left:
        raise CheckError(
            f"the buffers {', '.join(left)} were right inside the moment and were not put back "
            "when it was left: after both passes each micro-batch has moved them once."
        )
    if not flag(result, "same"):
        raise CheckError("random state and buffers were right, and the tower computed another.")


def _names(result: Result, key: str) -> list[str]:
    value = result.get(key)
    if isinstance(value, list) and all(name in oracles.BUFFERS for name in value):
        return value
    raise CheckError(f"{key}: names of buffers are wanted, and {type(value).__name__} came.")


def _judge_bytes(result: Result) -> None:
    kept = whole_number(result.get("kept"), "bytes of three moments")
    needed = whole_number(result.get("state"), "bytes of the random state")
    needed += whole_number(result.get("buffers"), "bytes of the buffers")
    if kept > 3 * needed * 1.1:
        raise CheckError(
            f"three moments hold {kept} bytes, and {3 * needed} are enough: random state and "
            "buffers move, parameters do not."
        )


def _judge_gpu(case: Case, result: Result) -> None:
    if whole_number(result.get("inside"), "a GPU's state") != case["seed"] % 100:
        raise CheckError(
            "a parameter of the tower lives on a GPU, which drew other numbers the second time: "
            "read_rng and write_rng are for that GPU's random state too."
        )
    if not flag(result, "put_back"):
        raise CheckError(
            "the random state of a GPU stayed as the second run left it: put it back, as the CPU's."
        )


remember = Check(
    name="lab07.remember",
    exercise="7.5",
    passed="random state and buffers of the first pass, put back afterwards, and no weights kept",
    cases=_cases,
    run=_run,
    judge=_judge,
)
