"""The check of 7.5, moments: random state and buffers, as they were before a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tutorial_lib import memory
from tutorial_lib.checks.core import Case, Check, Result
from tutorial_lib.checks.given import answered, observe
from tutorial_lib.checks.lab07 import models
from tutorial_lib.checks.vocabulary import expect, read
from tutorial_lib.memory.private_torch import FakeTensorMode

_BUFFERS = ("drift", "inner.hidden", "inner.turned", "inner.steps")
_RANDOM = "random state"


def _cases(seed: int) -> list[Case]:
    return [{**models.case_of_parts(seed), "dropout": 0.5, "moves": True}]


def _run(answer: Callable[..., Any], case: Case) -> Result:
    used, kept, on_a_gpu = (models.seeded_tower(case, models.CountingTower) for _ in range(3))
    seen = _used(answer, used, models.parts_of(case))
    return {**seen, **_bytes_kept(answer, kept), **_on_a_gpu(answer, on_a_gpu, case["seed"] % 100)}


def _bytes_kept(answer: Callable[..., Any], tower: nn.Module) -> dict[str, Any]:
    tower.register_buffer("table", torch.zeros(100, dtype=torch.float64))
    with memory.watch(model=tower) as report:
        moments = [answer(tower) for _ in range(3)]
    del moments
    needed = torch.get_rng_state().nbytes + sum(buffer.nbytes for buffer in tower.buffers())
    return {"kept": report.leaked_bytes, "needed": 3 * needed}


def _on_a_gpu(answer: Callable[..., Any], tower: nn.Module, first: int) -> dict[str, Any]:
    """Follow the random state of a GPU that is not there, where one parameter seems to live."""
    with FakeTensorMode():
        tower.register_parameter("elsewhere", nn.Parameter(torch.empty(1, device="cuda")))
    seen: dict[str, Any] = {"inside": first, "put_back": True}
    with observe.pretended_gpu_states(first) as states:

        def follow() -> None:
            moment = answer(tower)
            states.append(first + 2)  # the first pass draws, for this micro-batch and for others
            with moment():
                seen["inside"] = states[-1]
                states.append(states[-1] + 1)
            seen["put_back"] = states[-1] == first + 2

        said = observe.error_said(follow)
    return {**seen, "error_on_gpu": said}


def _used(
    answer: Callable[..., Any], tower: models.CountingTower, parts: list[torch.Tensor]
) -> dict[str, Any]:
    """Enter a moment twice, and twice more with an error inside; name what was another then."""
    before = _now(tower)
    moment = answered.function(answer(tower), "remember")
    seen: dict[str, Any] = {"moved_by_call": _moved(tower, before)}
    with torch.no_grad():
        first = tower(parts[0])
        for part in parts[1:]:  # other micro-batches come in between
            tower(part)
    between = _now(tower)
    with moment():
        seen["read_at_entry"] = _RANDOM not in _moved(tower, between)
        seen["not_restored"] = _moved(tower, before)
        again = tower(parts[0])
        again.sum().backward()
    seen["same"] = torch.equal(first, again)
    seen["not_put_back"] = _moved(tower, between)
    with moment():
        seen["same_again"] = torch.equal(first, tower(parts[0]))
    between, came_out = _now(tower), 0
    for error in (KeyError, KeyboardInterrupt):
        try:
            with moment():
                tower(parts[0])
                raise error
        except error:
            came_out += 1
    return {**seen, "left_by_error": _moved(tower, between), "errors_come_out": came_out == 2}


def _now(tower: nn.Module) -> dict[str, torch.Tensor]:
    buffers = {name: buffer.clone() for name, buffer in tower.named_buffers()}
    return {_RANDOM: torch.get_rng_state(), **buffers}


def _moved(tower: nn.Module, before: dict[str, torch.Tensor]) -> list[str]:
    return [name for name, now in _now(tower).items() if not torch.equal(now, before[name])]


def _judge(case: Case, result: Result) -> None:
    keys = ("moved_by_call", "not_restored", "not_put_back", "left_by_error")
    moved, lost, left, left_by_error = (read.items(result.get(key), key) for key in keys)
    at_entry = read.flag(result, "read_at_entry")
    kept = read.integer(result.get("kept"), "bytes of three moments")
    needed = read.integer(result.get("needed"), "bytes of random state and buffers")
    on_gpu = str(result.get("error_on_gpu"))[:160]
    expect.no_fault(
        {
            "your call moved the random state or a buffer, so the first pass is another than a "
            "plain run: read, and change nothing.": bool(moved),
            **_random_faults(_RANDOM in lost, at_entry, _RANDOM in left),
            **_buffer_faults(*[[str(n) for n in names if n != _RANDOM] for names in (lost, left)]),
            "random state and buffers were right, and the tower computed another result.": (
                not read.flag(result, "same")
            ),
            "an error inside the moment leaves random state or buffers behind: try and "
            "finally.": bool(left_by_error),
            "an error inside the moment ended there, and nobody heard of it: put back in finally, "
            "and let it go on.": not read.flag(result, "errors_come_out"),
            "the second time, the moment was another: what was read must still be there after one "
            "use.": not read.flag(result, "same_again"),
            f"three moments hold {kept} bytes, and {needed} are enough: random state and buffers "
            "move, parameters do not.": kept > 1.1 * needed,
            f"a parameter of the tower lives on a GPU, and this came: {on_gpu}. Random state and "
            "buffers are read and written, parameters are not.": bool(on_gpu),
            "a parameter of the tower lives on a GPU, which drew other numbers the second time: "
            "read_rng and write_rng are for that GPU's random state too.": (
                read.integer(result.get("inside"), "inside") != case["seed"] % 100
            ),
            "the random state of a GPU stayed as the second run left it: put it back, as the "
            "CPU's.": not read.flag(result, "put_back"),
        }
    )


def _random_faults(is_lost: bool, read_at_entry: bool, is_left: bool) -> dict[str, bool]:
    return {
        "dropout drew another mask the second time: the random state inside was neither the one "
        "that remember found nor the one just before. A seed leads back to its beginning only: "
        "keep the state itself.": is_lost and not read_at_entry,
        "dropout drew another mask the second time, and the random state was put back: it was read "
        "when the moment was entered. Read it in the upper part.": is_lost and not is_left,
        "dropout drew another mask the second time: inside the moment, the random state is the one "
        "that was read when remember was called.": is_lost,
        "the second run drew the right mask and left its random state behind: the next batch would "
        "draw masks that were drawn before. Put back what was there.": is_left,
    }


def _buffer_faults(lost: list[str], left: list[str]) -> dict[str, bool]:
    return {
        "all buffers were what the last micro-batch had made of them, so the tower computed "
        "something else: they belong to the moment too.": len(lost) == len(_BUFFERS),
        "a buffer with persistent=False is in no state_dict, so it was not in your moment: "
        "named_buffers has them all.": lost == ["inner.hidden"],
        "a buffer of whole numbers was left out: BatchNorm counts its batches so, and it moves "
        "like the others.": lost == ["inner.steps"],
        "the tower's own buffer was in your moment, and those of a module inside the tower were "
        "not: it may have any number of layers.": lost == list(_BUFFERS[1:]),
        "a buffer that the tower changes in place took your copy along: what you keep is the same "
        "tensor, so keep a clone.": "drift" in lost,
        "the tower puts a new tensor in the place of one of its buffers, and you wrote into the "
        "old one: look buffers up by name when you write.": bool(lost) or left == ["inner.turned"],
        f"the buffers {', '.join(left)} were right inside the moment and were not put back when it "
        "was left: after both passes each micro-batch has moved them once.": bool(left),
    }


remember = Check(
    "lab07.remember",
    "7.5",
    "random state and buffers of the first pass, put back afterwards, and no weights kept",
    _cases,
    _run,
    _judge,
    forbidden=[models.NO_CHECKPOINT],
)
