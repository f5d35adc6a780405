"""The check of 3.3: random state, autocast and BatchNorm as in the forward."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.checks.core import Answer, Case, Check, Result
from tutorial_lib.checks.given import answered, observe
from tutorial_lib.checks.lab03 import chain
from tutorial_lib.checks.vocabulary import expect, read


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    case = {"seed": draw.randrange(10**6), "rows": draw.randint(4, 9), "width": 16}
    first, second = draw.sample(["bfloat16", "float16"], 2)
    return [
        {**case, "kind": "random", "preserve": True},
        {**case, "kind": "random", "preserve": False},
        {**case, "kind": "devices"},
        {**case, "kind": "autocast", "forward": second, "backward": first, "cached": True},
        {**case, "kind": "autocast", "forward": "", "backward": second, "cached": True},
        {**case, "kind": "norm"},
        {**case, "kind": "autocast", "forward": first, "backward": "", "cached": False},
    ]


def _run(answer: Answer, case: Case) -> Result:
    torch.manual_seed(case["seed"])
    x = torch.randn(case["rows"], case["width"])
    runs = {"random": _random, "devices": _devices, "autocast": _autocast, "norm": _norm}
    return runs[case["kind"]](answer, case, x)


def _remembered(answer: Answer, *arguments: Any, **options: Any) -> Any:
    return answered.function(answer(*arguments, **options), "remember_surroundings")


def _random(answer: Answer, case: Case, x: Tensor) -> Result:
    drop = nn.Dropout(0.5)
    before = torch.get_rng_state()
    restored = _remembered(answer, drop, preserve_rng_state=case["preserve"])
    moved_by_call = not torch.equal(before, torch.get_rng_state())
    forward = drop(x)
    torch.rand(7)  # other layers draw in between
    between = torch.get_rng_state()
    with restored():
        again = drop(x)
    after = torch.get_rng_state()
    with restored():
        third = drop(x)
    now = torch.get_rng_state()
    with contextlib.suppress(KeyError), restored():
        drop(x)
        raise KeyError
    return {
        "moved_by_call": moved_by_call,
        "same": torch.equal(forward, again),
        "same_again": torch.equal(forward, third),
        "put_back": torch.equal(between, after),
        "put_back_after_error": torch.equal(now, torch.get_rng_state()),
    }


def _devices(answer: Answer, case: Case, x: Tensor) -> Result:
    with observe.pretended_gpu_states(case["seed"] % 100) as states:
        restored = _remembered(answer, nn.Identity(), [torch.device("cuda", 0)])
        states.append(states[-1] + 2)  # the forward draws, and other layers after it
        between = states[-1]
        with restored():
            inside = states[-1]
            states.append(inside + 1)
        return {"inside": inside, "put_back": states[-1] == between}


def _autocast(answer: Answer, case: Case, x: Tensor) -> Result:
    # no weights: autocast keeps their copies until the outermost block ends, whatever the dtype
    with _cast_to(case["forward"], cached=case["cached"]):
        restored = _remembered(answer, nn.Identity())
    with _cast_to(case["backward"]):
        with restored():
            inside, cached = str((x @ x.T).dtype), torch.is_autocast_cache_enabled()
        outside = str((x @ x.T).dtype)
    at_the_end = str((x @ x.T).dtype)
    return {"inside": inside, "cached": cached, "outside": outside, "at_the_end": at_the_end}


def _cast_to(name: str, *, cached: bool = True) -> contextlib.AbstractContextManager[None]:
    if not name:
        return contextlib.nullcontext()
    return torch.autocast("cpu", getattr(torch, name), cache_enabled=cached)


def _norm(answer: Answer, case: Case, x: Tensor) -> Result:
    norm: Any = nn.BatchNorm1d(case["width"])
    block = nn.Sequential(nn.Linear(case["width"], case["width"]), norm)
    restored = _remembered(answer, block)
    forward = block(x)
    mean = norm.running_mean.clone()
    with restored():
        again = block(x)
    batches, unmoved = norm.num_batches_tracked, torch.equal(mean, norm.running_mean)
    counted = batches if batches is None else int(batches)
    block(x)
    return {
        "same": torch.equal(forward, again),
        "counts_later": norm.num_batches_tracked is not None,
        "counted": counted,
        "unmoved": unmoved,
    }


def _judge(case: Case, result: Result) -> None:
    faults = {"random": _random_faults, "devices": _device_faults}
    faults |= {"autocast": _autocast_faults, "norm": _norm_faults}
    expect.no_fault(faults[case["kind"]](case, result))


def _random_faults(case: Case, result: Result) -> dict[str, bool]:
    same, put_back = read.flag(result, "same"), read.flag(result, "put_back")
    if not case["preserve"]:
        return {
            "preserve_rng_state=False was passed, and the random state was handled all the same: "
            "leave it alone then.": same or put_back
        }
    return {
        "your call moved the random state, so the forward draws other numbers than without "
        "checkpointing: read the state, and seed nothing.": read.flag(result, "moved_by_call"),
        "dropout drew another mask in the recomputation, and the state was put back: it was read "
        "when the context was entered. Read it in the upper part, which runs in forward.": (
            put_back and not same
        ),
        "dropout drew another mask in the recomputation: set the random state of the "
        "forward.": not same,
        "the recomputation was right, and left its random state behind: whatever draws next draws "
        "the same numbers twice. Put the state back that was there before.": not put_back,
        "an error in the recomputation (early stop is one) leaves the random state behind: put it "
        "back with stack.callback or finally.": not read.flag(result, "put_back_after_error"),
        "the second recomputation drew another mask: what was read in forward must still be there "
        "after one use.": not read.flag(result, "same_again"),
    }


def _device_faults(case: Case, result: Result) -> dict[str, bool]:
    inside = read.integer(result.get("inside"), "a GPU's state")
    return {
        "a GPU in `devices` drew other numbers in the recomputation than in forward: read its "
        "random state beside the CPU's, and set it.": inside != case["seed"] % 100,
        "the random state of a GPU in `devices` stayed as the recomputation left it: put it back, "
        "as the CPU's.": not read.flag(result, "put_back"),
    }


def _autocast_faults(case: Case, result: Result) -> dict[str, bool]:
    forward, backward = (f"torch.{case[key] or 'float32'}" for key in ("forward", "backward"))
    seen, cached, wanted = result.get("inside"), read.flag(result, "cached"), case["cached"]
    afterwards = [result.get("outside"), result.get("at_the_end")]
    if forward == "torch.float32":
        advice = "autocast was off in forward and is on in backward: turn it off inside."
    elif seen == backward:
        advice = "autocast of the forward is lost: backward runs outside its block."
    else:
        advice = "autocast is on, with another dtype than the forward's: restore that too."
    return {
        f"a product was {seen} in the recomputation, and {forward} before: {advice}": (
            seen != forward
        ),
        f"autocast came back with cache_enabled={cached}, and forward had {wanted}: hand on all "
        "three settings that read_autocast gives.": case["forward"] != "" and cached != wanted,
        "autocast stayed as it was inside the recomputation: leave the context again, so that the "
        "code after it computes as before.": afterwards != [backward, "torch.float32"],
    }


def _norm_faults(case: Case, result: Result) -> dict[str, bool]:
    counted, unmoved = result.get("counted"), read.flag(result, "unmoved")
    return {
        "a BatchNorm in training gave another result in the recomputation.": (
            not read.flag(result, "same")
        ),
        "BatchNorm does not count any more after the recomputation: give it back what was taken, "
        "when the context is left.": not read.flag(result, "counts_later"),
        f"one batch was counted {counted} times by BatchNorm, or its running averages moved once "
        "more: enter uncounted(batch_norms(function)) as well.": counted != 1 or not unmoved,
    }


remember_surroundings = Check(
    "lab03.remember_surroundings",
    "3.3",
    "random state, autocast and BatchNorm as in the forward, and put back afterwards",
    _cases,
    _run,
    _judge,
    forbidden=[chain.NO_TORCH_CHECKPOINT],
)
