"""The check of lab 08's last exercise (8.6): an update that survives running out of memory."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from tutorial_lib.checks import lab08_oracles as oracles
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.results import counts, items
from tutorial_lib.checks.running import remembered
from tutorial_lib.memory.cap import capped

_NUM = 16
_MIB = 2**20


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


def _make(case: Case) -> tuple[nn.Module, SGD, oracles.Drawn]:
    """Build a training with its state there, after one update."""
    unet, drawn = oracles.make_unet(case), oracles.make_drawn(case, _NUM)
    optimizer = SGD(unet.parameters(), lr=0.01, momentum=0.9)
    oracles.backward(unet, drawn, 8)
    optimizer.step()
    optimizer.zero_grad()
    if case.get("left"):
        oracles.fill_gradients(unet)
    torch.manual_seed(case["seed"] + 1)
    return unet, optimizer, drawn


def _peak(case: Case, micro_batch: int) -> int:
    unet, optimizer, drawn = _make(case)
    optimizer.zero_grad()
    with capped(2**40, model=unet, optimizer=optimizer) as cap:
        oracles.backward(unet, drawn, micro_batch)
        optimizer.step()
    return cap.peak_bytes


def _tried(case: Case) -> list[int]:
    """List the micro-batches that are tried, the one that fits included where one does."""
    sizes = [int(case["begin"])]
    while sizes[-1] > max(1, case["fits"]):
        sizes.append(max(1, sizes[-1] // 2))
    return sizes


@remembered
def _limit(case: Case) -> int:
    """Give a cap under which the last attempt to fail fails late, with gradients in `.grad`."""
    failing = [size for size in _tried(case) if size > case["fits"]]
    return _peak(case, failing[-1]) - 1 if failing else 2 * _peak(case, case["begin"])


def _state(unet: nn.Module, optimizer: SGD) -> list[Tensor]:
    momenta = [optimizer.state[p]["momentum_buffer"] for p in unet.parameters()]
    return [t.detach().clone() for t in (*unet.parameters(), *momenta)]


def _run(answer: Callable[..., Any], case: Case) -> Result:
    limit = _limit(case)
    unet, optimizer, drawn = _make(case)
    seen: dict[str, Any] = {"said": "", "loss": None, "micro_batch": None}
    steps = _fail_in_step(optimizer) if case["kind"] == "torn" else []
    with oracles.rows_seen(unet) as rows, _broken(unet, case["kind"] == "other error"):
        before, random_state = _state(unet, optimizer), torch.get_rng_state()
        with capped(limit, model=unet, optimizer=optimizer):
            try:
                got = answer(unet, optimizer, drawn, case["begin"])
                seen["loss"], seen["micro_batch"] = got
            except torch.OutOfMemoryError as error:
                seen["said"] = f"OutOfMemoryError: {error}"
            except _OtherError as error:
                seen["said"] = f"_OtherError: {error}"
            except (TypeError, ValueError) as error:
                if "unpack" not in str(error):
                    raise
                raise CheckError("two values are wanted: the loss and the micro-batch.") from error
    after = _state(unet, optimizer)
    seen |= {
        "rows": rows,
        "steps": len(steps),
        "state": after,
        "moved": not all(map(torch.equal, before, after)),
    }
    seen["random_state"] = torch.get_rng_state()
    seen["drew"] = not torch.equal(random_state, seen["random_state"])
    seen["gradients"] = [p.grad is not None for p in unet.parameters()]
    return seen


class _OtherError(RuntimeError):
    pass


def _fail_in_step(optimizer: SGD) -> list[int]:
    """Have every step run out of memory when it has moved one parameter; lists the steps."""
    steps: list[int] = []

    def fail(*_: Any) -> None:
        steps.append(1)
        with torch.no_grad():
            optimizer.param_groups[0]["params"][0].mul_(0.9)
        raise torch.OutOfMemoryError("the optimizer's temporaries do not fit")

    optimizer.register_step_pre_hook(fail)
    return steps


@contextlib.contextmanager
def _broken(unet: nn.Module, is_broken: bool) -> Iterator[None]:
    """Have the second forward of a U-Net fail, and not for want of memory."""
    calls: list[int] = []

    def fail(*_: Any) -> None:
        calls.append(1)
        if is_broken and len(calls) == 2:
            raise _OtherError("an operation got sizes that do not match")

    handle = unet.register_forward_pre_hook(fail)
    try:
        yield
    finally:
        handle.remove()


def _judge(case: Case, result: Result) -> None:
    said, rows = str(result.get("said")), counts(result.get("rows"), None, "rows")
    if case["kind"] == "other error":
        if not said.startswith("_OtherError"):
            raise CheckError(
                "the U-Net raised an error that has nothing to do with memory (a RuntimeError, "
                "sizes that do not match), and it was tried again: catch torch.OutOfMemoryError "
                "alone."
            )
        return
    if case["kind"] == "torn":
        _judge_torn(said, *counts([result.get("steps")], 1, "steps of the optimizer"))
        return
    if case["kind"] == "nothing fits":
        _judge_refusal(result, said, rows)
        return
    if said:
        raise CheckError(
            f"nothing fitted in the end, though micro-batches of {case['fits']} do under this cap; "
            f"forwards had {rows} images. What a failed attempt held must be gone before the next: "
            "its gradients, and its graph, which the error itself holds as long as it is handled."
        )
    _judge_update(case, result, rows)


def _judge_torn(said: str, steps: int) -> None:
    if steps > 1:
        raise CheckError(
            f"the optimizer's step ran out of memory and was called {steps} times: it had moved "
            "some parameters by then, and another attempt moves them twice. Let that error out."
        )
    if not said.startswith("OutOfMemoryError"):
        raise CheckError(
            "the optimizer's step ran out of memory when it had moved some parameters, and you "
            "returned as after a whole update: only the attempt belongs under try, not the step."
        )


def _judge_refusal(result: Result, said: str, rows: list[int]) -> None:
    if not said.startswith("OutOfMemoryError"):
        raise CheckError(
            "not even one image fits under this cap, and no torch.OutOfMemoryError came of it."
        )
    if 1 not in rows:
        raise CheckError(f"it gave up after forwards of {rows} images: the last to try is 1.")
    if "micro" not in said or "1" not in said:
        raise CheckError(
            f"the error says {said[:150]!r}: say that a micro-batch of 1 does not fit, and what to "
            "try."
        )
    if result.get("moved") is not False:
        raise CheckError("nothing fits, and parameters or optimizer state were changed.")
    if any(items(result.get("gradients"), "gradients")):
        raise CheckError("nothing fits, and gradients of half a batch stay in .grad: clear them.")
    if result.get("drew") is not False:
        raise CheckError(
            "nothing fits, and the random state was left where the last attempt brought it."
        )


@remembered
def _wanted(case: Case) -> tuple[float, list[Tensor], Tensor]:
    """Give the loss of an update that fits, and the state and the random state after it."""
    unet, optimizer, drawn = _make(case)
    optimizer.zero_grad()
    loss = oracles.backward(unet, drawn, case["fits"])
    optimizer.step()
    return loss, _state(unet, optimizer), torch.get_rng_state()


def _judge_update(case: Case, result: Result, rows: list[int]) -> None:
    size = result.get("micro_batch")
    tried = _tried(case)
    if isinstance(size, int) and size < case["fits"] in rows:
        raise CheckError(
            f"the update was made with micro-batches of {size}, and those of {case['fits']} were "
            f"tried and failed, which do fit; forwards had {rows} images. What is still held then? "
            "An error that is kept in a variable keeps the graph of its attempt."
        )
    if size != case["fits"]:
        raise CheckError(
            f"the micro-batch is given as {size}, and {case['fits']} is the first of {tried} that "
            f"fits; forwards had {rows} images."
        )
    if list(dict.fromkeys(count for count in rows if count in tried)) != tried:
        raise CheckError(f"forwards had {rows} images: begin with {tried[0]}, and halve.")
    loss, state, random_state = _wanted(case)
    error = oracles.worst_error(result, state, "state")
    if result.get("moved") is not True:
        raise CheckError("no update was made: call optimizer.step() once the gradient is there.")
    seen = result.get("random_state")
    if not isinstance(seen, Tensor) or not torch.equal(seen, random_state):
        raise CheckError(
            "the random state is not that of an update without failed attempts: they drew, for "
            "dropout, and so the update drew other numbers. Put back what was before each."
        )
    if error > 1e-5:
        who = "a failed attempt" if len(tried) > 1 else "somebody before you"
        raise CheckError(
            f"the update is not that of micro-batches of {size} from the start, off by "
            f"{error:.0e}: clear the gradients that {who} left in .grad."
        )
    seen = result.get("loss")
    if not isinstance(seen, float) or not abs(seen - loss) <= 1e-4 * loss:  # nan is not
        raise CheckError(f"the loss is {result.get('loss')}, and {loss:.5f} is wanted.")
    if any(items(result.get("gradients"), "gradients")):
        raise CheckError("after the update gradients are still there: zero_grad() frees them.")


update_that_fits = Check(
    name="lab08.update_that_fits",
    exercise="8.6",
    passed="the largest micro-batch that fits, and failed attempts leave no trace",
    cases=_cases,
    run=_run,
    judge=_judge,
)
