"""The checks of lab 01 that add a whole step up: bytes per parameter, and the peak."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tutorial_lib import memory
from tutorial_lib.checks import lab01_oracles as oracles
from tutorial_lib.checks.core import Case, Check, CheckError, Result, expect_bytes, whole_number

TOLERANCE = 0.02

# 1.4


def _recipe_cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    optimizers = draw.sample(oracles.OPTIMIZERS, 3)
    half = draw.sample(["bfloat16", "float16"], 2)
    plain = {"autocast": False, "master_copy": False}
    return [
        {"weights": "float32", "optimizer": "adamw", **plain},
        *({"weights": "float32", "optimizer": name, **plain} for name in optimizers),
        *({"weights": half[0], "optimizer": name, **plain} for name in optimizers),
        *(
            {"weights": "float32", "optimizer": name, **plain, "autocast": True}
            for name in optimizers
        ),
        *(
            {"weights": half[1], "optimizer": name, **plain, "master_copy": True}
            for name in optimizers
        ),
        {"weights": "float64", "optimizer": "adamw", **plain},
    ]


def _run_recipe(answer: Callable[..., Any], case: Case) -> Result:
    weights = getattr(torch, case["weights"])
    switches = {name: case[name] for name in ("autocast", "master_copy")}
    with oracles.without_meter():
        return {"bytes": answer(weights, case["optimizer"], **switches)}


def _judge_recipe(case: Case, result: Result) -> None:
    wanted = oracles.per_parameter(case)
    weights = getattr(torch, case["weights"]).itemsize
    without = oracles.per_parameter({**case, "master_copy": False})
    mistakes = {
        "The gradients are missing: count them beside weights and state.": wanted - weights,
        "It is the weights alone: training keeps more than a file does.": weights,
    }
    if case["autocast"]:
        half = oracles.per_parameter({**case, "weights": "bfloat16", "autocast": False})
        mistakes |= {
            "Autocast casts inside the operations, for as long as they need it: what is the dtype "
            "of the parameters themselves, of their gradients and states?": half,
            "Autocast's bfloat16 copies of the weights are gone when the step is over: count what "
            "stays.": wanted + 2,
        }
    elif case["master_copy"]:
        mistakes |= {
            "The float32 copy is missing.": wanted - 4,
            "The optimizer steps the float32 copy: what dtype has the state that it keeps?": without
            + 4,
            "The float32 copy changes nothing in it: it takes memory, and so does its "
            "state.": without,
            "The copy's own gradient is in it: it is cast for the update and dropped.": wanted + 4,
        }
    else:
        mistakes |= {
            "It is what float32 state takes: torch keeps an optimizer's state in the parameter's "
            "own dtype.": oracles.per_parameter({**case, "master_copy": True}) - 4,
            "Adam keeps two averages.": oracles.per_parameter({**case, "optimizer": "momentum"}),
        }
    switches = [name for name in ("autocast", "master_copy") if case[name]]
    recipe = ", ".join([case["weights"], case["optimizer"], *switches])
    expect_bytes(result.get("bytes"), wanted, f"bytes_per_parameter for {recipe}", mistakes)


bytes_per_parameter = Check(
    name="lab01.bytes_per_parameter",
    exercise="1.4",
    passed="equal to the meter for every recipe",
    cases=_recipe_cases,
    run=_run_recipe,
    judge=_judge_recipe,
)

# 1.5


def _training_cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    gpt = {"vocab_size": draw.choice([768, 1024, 1280]), "seq_len": 64, "num_heads": 4}
    gpt |= {"num_layers": draw.randint(2, 3), "d_model": draw.choice([64, 96])}
    unet = {"base_channels": draw.choice([16, 24]), "channel_multipliers": [1, 2, 2]}
    mlp = {"width": draw.choice([896, 1024, 1152])}
    return [
        _training("gpt", "a small GPT", draw.choice(oracles.OPTIMIZERS), gpt, draw.randint(4, 6)),
        _training("unet", "a U-Net", draw.choice(oracles.OPTIMIZERS), unet, draw.randint(5, 8)),
        _training("mlp", "a wide MLP", "adamw", mlp, draw.randint(8, 16)),
    ]


def _training(kind: str, title: str, optimizer: str, config: dict[str, Any], batch: int) -> Case:
    return {
        "kind": kind,
        "title": title,
        "optimizer": optimizer,
        "config": config,
        "batch": batch,
    }


def _run_peak(answer: Callable[..., Any], case: Case) -> Result:
    model, loss_fn = oracles.make_training(case)
    forwards = 0
    before = _versions(model)

    def counted() -> torch.Tensor:
        nonlocal forwards
        forwards += 1
        return loss_fn()

    with oracles.without_meter():
        peak = answer(model, counted, case["optimizer"])
    return {"peak": peak, "forwards": forwards, "touched": _versions(model) != before}


def _versions(model: nn.Module) -> list[tuple[int, bool]]:
    # Every in-place change of a tensor raises its version.
    return [(p._version, p.grad is None) for p in model.parameters()]


def _judge_peak(case: Case, result: Result) -> None:
    if result.get("touched") is not False:
        raise CheckError(
            "gradients or new weights were left in the model: a backward or an update ran, and "
            "one forward pass is all that this exercise allows."
        )
    if result.get("forwards") not in (0, 1):
        raise CheckError(
            f"loss_fn was called {result.get('forwards')} times: once is enough, "
            "inside memory.saved."
        )
    seen = whole_number(result.get("peak"), f"the peak of {case['title']}")
    report, saved = oracles.trained(case)
    if abs(seen - report.peak_bytes) <= TOLERANCE * report.peak_bytes:
        return
    off = seen / report.peak_bytes - 1
    name = f"{case['title']} with {case['optimizer']}"
    for explanation, number in _peak_slips(report, saved).items():
        if abs(seen - number) <= 0.005 * number:
            raise CheckError(f"{name}: off by {off:+.0%}. {explanation}")
    raise CheckError(
        f"{name}: off by {off:+.0%}, and within {TOLERANCE:.0%} is wanted. Its peak comes in the "
        f"{report.peak_phase} phase: compare your terms with memory.measure's table, outside the "
        "function."
    )


def _peak_slips(report: memory.MemoryReport, saved: memory.SavedTensors) -> dict[str, int]:
    """Give the sums that forget a term or take one too many."""
    left = report.curve()[-1]
    gradients, state = left["gradients"], left["optimizer_state"]
    fixed = left["parameters"] + left["buffers"] + state
    kept, largest = saved.num_bytes, max(row.num_bytes for row in saved.rows)
    both = report.phases["backward"] + report.phases["optimizer"]
    slips = {
        "It is what autograd saves and nothing else: parameters and state are there too.": kept,
        "Backward and update come one after the other: the larger of the two is the peak, not "
        "their sum.": both,
    }
    if report.peak_phase == "optimizer":
        return slips | {
            "All gradients and the state are there: what does AdamW's update make beside them, "
            "for a moment?": fixed + gradients,
            "For this model no moment of backward is the peak: what is alive in the update?": fixed
            + kept,
        }
    return slips | {
        "What autograd saves is in it, and the gradients that flow through backward are not.": fixed
        + kept,
        "One flowing gradient is not enough: while an operation goes backward, one arrives and "
        "one leaves.": fixed + kept + largest,
        "The largest flowing gradients do not meet the fullest store: by the time that they flow, "
        "what was saved after them is freed.": fixed + kept + 2 * largest,
        "The parameters' gradients are in it: while the store is full, hardly one of them "
        "exists.": fixed + kept + gradients,
        "The optimizer's state is missing: it stays through forward and "
        "backward.": report.peak_bytes - state,
    }


predict_peak = Check(
    name="lab01.predict_peak",
    exercise="1.5",
    passed=f"three peaks predicted within {TOLERANCE:.0%} of the meter, from one forward each",
    cases=_training_cases,
    run=_run_peak,
    judge=_judge_peak,
)
