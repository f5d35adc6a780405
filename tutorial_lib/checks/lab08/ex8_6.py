"""The check of 8.6: an update that is made again, smaller, when it runs out of memory."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.given import answered, observe, surroundings
from tutorial_lib.checks.lab08 import models
from tutorial_lib.checks.vocabulary import expect, read
from tutorial_lib.instruments.cap import capped

_NUM = 16
_MOVED = "nothing fits, and parameters or optimizer state were changed."
_NOTHING_FITS = {
    "weights": _MOVED,
    "optimizer": _MOVED,
    "gradients": "nothing fits, and gradients of half a batch stay in .grad: clear them.",
    "random state": "nothing fits, and the random state was left where the last attempt brought "
    "it.",
}


class _OtherError(RuntimeError):
    pass


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    case = {"seed": draw.randrange(10**6), "kind": "fits", "dropout": 0.2}
    return [
        {**case, "begin": 16, "fits": 16, "left": True},
        {**case, "begin": 16, "fits": 4, "left": True},
        {**case, "begin": 7, "fits": 3},
        {**case, "begin": 8, "fits": 0, "kind": "nothing fits"},
        {**case, "begin": 8, "fits": 8, "kind": "other error"},
        {**case, "begin": 8, "fits": 8, "kind": "torn"},
    ]


def _make(case: Case) -> tuple[nn.Module, SGD, models.Drawn]:
    """Build a training with its state there, after one update."""
    unet, drawn = models.make_unet(case), models.make_drawn(case, _NUM)
    optimizer = SGD(unet.parameters(), lr=0.01, momentum=0.9)
    models.backward(unet, drawn, 8)
    optimizer.step()
    optimizer.zero_grad()
    if case.get("left"):
        observe.fill_gradients(unet)
    torch.manual_seed(case["seed"] + 1)
    return unet, optimizer, drawn


def _peak(case: Case, micro_batch: int) -> int:
    unet, optimizer, drawn = _make(case)
    optimizer.zero_grad()
    with capped(2**40, model=unet, optimizer=optimizer) as cap:
        models.backward(unet, drawn, micro_batch)
        optimizer.step()
    return cap.peak_bytes


def _tried(case: Case) -> list[int]:
    """List the micro-batches that are tried, the one that fits included where one does."""
    sizes = [int(case["begin"])]
    while sizes[-1] > max(1, case["fits"]):
        sizes.append(max(1, sizes[-1] // 2))
    return sizes


@cache
def _limit(case_text: str) -> int:
    """Give a cap under which the last attempt to fail fails late, with gradients in `.grad`."""
    case = json.loads(case_text)
    failing = [size for size in _tried(case) if size > case["fits"]]
    return _peak(case, failing[-1]) - 1 if failing else 2 * _peak(case, case["begin"])


def _state(unet: nn.Module, optimizer: SGD) -> list[Tensor]:
    momenta = [optimizer.state[p]["momentum_buffer"] for p in unet.parameters()]
    return [t.detach().clone() for t in (*unet.parameters(), *momenta)]


def _fail_in_forward(unet: nn.Module) -> None:
    """Have the second forward of a U-Net fail, and not for want of memory."""
    calls = itertools.count(1)

    def fail(*_: Any) -> None:
        if next(calls) == 2:
            raise _OtherError("an operation got sizes that do not match")

    unet.register_forward_pre_hook(fail)


def _fail_in_step(optimizer: SGD, steps: list[int]) -> None:
    """Have every step run out of memory when it has moved one parameter; lists the steps."""

    def fail(*_: Any) -> None:
        steps.append(1)
        with torch.no_grad():
            optimizer.param_groups[0]["params"][0].mul_(0.9)
        raise torch.OutOfMemoryError("the optimizer's temporaries do not fit")

    optimizer.register_step_pre_hook(fail)


def _run(answer: Callable[..., Any], case: Case) -> Result:
    limit, said, returned = _limit(json.dumps(case)), "", [None, None]
    unet, optimizer, drawn = _make(case)
    steps: list[int] = []
    if case["kind"] == "other error":
        _fail_in_forward(unet)
    if case["kind"] == "torn":
        _fail_in_step(optimizer, steps)
    with (
        surroundings.watched(unet, optimizer=optimizer) as changed,
        observe.rows_seen(unet) as rows,
        capped(limit, model=unet, optimizer=optimizer),
    ):
        try:
            got = answer(unet, optimizer, drawn, case["begin"])
            returned = answered.several(got, 2, "the loss and the micro-batch")
        except (torch.OutOfMemoryError, _OtherError) as error:
            is_other = isinstance(error, _OtherError)
            said = f"{'_OtherError' if is_other else 'OutOfMemoryError'}: {error}"
    return {
        "said": said,
        "loss": returned[0],
        "micro_batch": returned[1],
        "rows": rows,
        "steps": len(steps),
        "changed": changed,
        "state": _state(unet, optimizer),
        "random_state": torch.get_rng_state(),
        "gradients_left": any(p.grad is not None for p in unet.parameters()),
    }


def _right_update(case: Case) -> tuple[float, list[Tensor], Tensor] | None:
    """Update with the micro-batch that fits; give the loss, the state and the random state."""
    if case["kind"] != "fits":
        return None
    unet, optimizer, drawn = _make(case)
    optimizer.zero_grad()
    loss = models.backward(unet, drawn, case["fits"])
    optimizer.step()
    return loss, _state(unet, optimizer), torch.get_rng_state()


def _judge(case: Case, result: Result, right: Any) -> None:
    said, rows = str(result.get("said")), read.integers(result.get("rows"), "rows")
    if case["kind"] == "other error":
        if not said.startswith("_OtherError"):
            raise CheckError(
                "the U-Net raised an error that has nothing to do with memory (a RuntimeError, "
                "sizes that do not match), and it was tried again: catch torch.OutOfMemoryError "
                "alone."
            )
    elif case["kind"] == "torn":
        _judge_failed_step(said, read.integer(result.get("steps"), "steps of the optimizer"))
    elif case["kind"] == "nothing fits":
        _judge_refusal(result, said, rows)
    elif said:
        raise CheckError(
            f"nothing fitted in the end, though micro-batches of {case['fits']} do under this cap; "
            f"forwards had {rows} images. What a failed attempt held must be gone before the next: "
            "its gradients, and its graph, which the error itself holds as long as it is handled."
        )
    else:
        _judge_size(case, read.integer(result.get("micro_batch"), "the micro-batch"), rows)
        _judge_update(case, result, *right)


def _judge_failed_step(said: str, steps: int) -> None:
    faults = {
        f"the optimizer's step ran out of memory and was called {steps} times: it had moved some "
        "parameters by then, and another attempt moves them twice. Let that error out.": steps > 1,
        "the optimizer's step ran out of memory when it had moved some parameters, and you "
        "returned as after a whole update: only the attempt belongs under try, not the step.": (
            not said.startswith("OutOfMemoryError")
        ),
    }
    expect.no_fault(faults)


def _judge_refusal(result: Result, said: str, rows: list[int]) -> None:
    faults = {
        "not even one image fits under this cap, and no torch.OutOfMemoryError came of it.": (
            not said.startswith("OutOfMemoryError")
        ),
        f"it gave up after forwards of {rows} images: the last to try is 1.": 1 not in rows,
        f"the error says {said[:150]!r}: say that a micro-batch of 1 does not fit, and what to "
        "try.": "micro" not in said or "1" not in said,
    }
    expect.no_fault(faults)
    expect.unchanged(result, _NOTHING_FITS)


def _judge_size(case: Case, size: int, rows: list[int]) -> None:
    tried, fits = _tried(case), case["fits"]
    faults = {
        f"the update was made with micro-batches of {size}, and those of {fits} were tried and "
        f"failed, which do fit; forwards had {rows} images. What is still held then? An error that "
        "is kept in a variable keeps the graph of its attempt.": size < fits and fits in rows,
        f"the micro-batch is given as {size}, and {fits} is the first of {tried} that fits; "
        f"forwards had {rows} images.": size != fits,
        f"forwards had {rows} images: begin with {tried[0]}, and halve.": (
            list(dict.fromkeys(count for count in rows if count in tried)) != tried
        ),
    }
    expect.no_fault(faults)


def _judge_update(
    case: Case, result: Result, wanted_loss: float, wanted: list[Tensor], random_state: Tensor
) -> None:
    state = read.tensors(result.get("state"), len(wanted), "state")
    loss = read.number(result.get("loss"), "the loss")
    error = expect.relative_error(state, wanted)
    who = "a failed attempt" if len(_tried(case)) > 1 else "somebody before you"
    faults = {
        "no update was made: call optimizer.step() once the gradient is there.": (
            not {"weights", "optimizer"} & set(expect.changes(result))
        ),
        "the random state is not that of an update without failed attempts: they drew, for "
        "dropout, and so the update drew other numbers. Put back what was before each.": (
            not expect.same_bits(result.get("random_state"), random_state)
        ),
        f"the update is not that of micro-batches of {case['fits']} from the start, off by "
        f"{error:.0e}: clear the gradients that {who} left in .grad.": error > 1e-5,
        f"the loss is {loss}, and {wanted_loss:.5f} is wanted.": (
            not expect.is_close(loss, wanted_loss, 1e-4)
        ),
        "after the update gradients are still there: zero_grad() frees them.": (
            read.flag(result, "gradients_left")
        ),
    }
    expect.no_fault(faults)


update_that_fits = Check(
    "lab08.update_that_fits",
    "8.6",
    "the largest micro-batch that fits, and failed attempts leave no trace",
    _cases,
    _run,
    _judge,
    oracle=_right_update,
)
