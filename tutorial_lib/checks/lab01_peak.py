"""The checks of lab 01 that add a whole step up: bytes per parameter, and the peak."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tutorial_lib import memory
from tutorial_lib.checks import lab01_oracles as oracles
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.results import expect_bytes, whole_number

TOLERANCE = 0.02
SWITCHED_OFF = {"autocast": False, "master_copy": False}

# 1.4


def _recipe_cases(seed: int) -> list[Case]:
    half = random.Random(seed).sample(["bfloat16", "float16"], 2)
    recipes = [
        ("float32", {}),
        (half[0], {}),
        ("float32", {"autocast": True}),
        (half[1], {"master_copy": True}),
        ("float64", {}),
    ]
    # From no state to two: a slip in the weights and gradients is told before one in the state.
    return [
        {"weights": weights, "optimizer": optimizer, **SWITCHED_OFF, **switches}
        for weights, switches in recipes
        for optimizer in oracles.OPTIMIZERS
    ]


def _run_recipe(answer: Callable[..., Any], case: Case) -> Result:
    weights = getattr(torch, case["weights"])
    switches = {name: case[name] for name in SWITCHED_OFF}
    with oracles.without_meter():
        return {"bytes": answer(weights, case["optimizer"], **switches)}


def _judge_recipe(case: Case, result: Result) -> None:
    wanted = oracles.per_parameter(case)
    switches = [name for name in SWITCHED_OFF if case[name]]
    recipe = ", ".join([case["weights"], case["optimizer"], *switches])
    slips = _autocast_slips if case["autocast"] else _plain_slips
    mistakes = (_copy_slips if case["master_copy"] else slips)(case, wanted)
    expect_bytes(result.get("bytes"), wanted, f"bytes_per_parameter for {recipe}", mistakes)


def _plain_slips(case: Case, wanted: int) -> dict[str, int]:
    element = getattr(torch, case["weights"]).itemsize
    fewer = {
        "sgd": "The gradients are missing: training keeps more than a file does.",
        "momentum": "Momentum keeps one tensor as large as the weights.",
        "adamw": "Adam keeps two averages.",
    }
    return {
        fewer[case["optimizer"]]: wanted - element,
        "It is what four bytes for every element give: ask the dtype for its size.": (
            oracles.per_parameter({**case, "weights": "float32"})
        ),
        "It is what float32 state takes: torch keeps an optimizer's state in the parameter's own "
        "dtype.": wanted + oracles.OPTIMIZERS.index(case["optimizer"]) * (4 - element),
    }


def _autocast_slips(case: Case, wanted: int) -> dict[str, int]:
    half = oracles.per_parameter({**case, "weights": "bfloat16", "autocast": False})
    return {
        "Autocast casts inside the operations, for as long as they need it: what is the dtype of "
        "the parameters themselves, of their gradients and states?": half,
        "Autocast's bfloat16 copies of the weights are gone when the step is over: count what "
        "stays.": wanted + 2,
        "The gradients of float32 weights are float32, under autocast too.": wanted - 2,
    }


def _copy_slips(case: Case, wanted: int) -> dict[str, int]:
    without = oracles.per_parameter({**case, "master_copy": False})
    return {
        "The float32 copy is missing.": without,
        "The optimizer steps the float32 copy: what dtype has the state that it keeps?": without
        + 4,
        "The copy's own gradient is in it: it is cast for the update and dropped.": wanted + 4,
        "Float32 gradients are in it: those that stay are in half precision.": wanted + 2,
    }


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
    vgg = {"hidden": draw.choice([960, 1024, 1088])}
    mlp, rows = {"width": draw.choice([896, 1024, 1152])}, draw.randint(4, 6)
    # The update is the peak of the MLP, with AdamW's temporaries and without any: sums that take
    # everything fail there, whatever is drawn for the others.
    return [
        _training("mlp", "a wide MLP", "adamw", mlp, rows),
        _training("mlp", "a wide MLP", draw.choice(["sgd", "momentum"]), mlp, rows),
        _training("gpt", "a small GPT", draw.choice(oracles.OPTIMIZERS), gpt, draw.randint(4, 6)),
        _training("unet", "a U-Net", draw.choice(oracles.OPTIMIZERS), unet, draw.randint(5, 8)),
        _training("vgg", "a VGG", draw.choice(["sgd", "momentum"]), vgg, draw.randint(10, 16)),
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
    slips = _peak_slips(case, report, saved)
    distance, explanation = min((abs(seen - slips[words]), words) for words in slips)
    if distance <= 0.005 * seen:
        raise CheckError(f"{name}: off by {off:+.0%}. {explanation}")
    raise CheckError(
        f"{name}: off by {off:+.0%}, and within {TOLERANCE:.0%} is wanted. Its peak comes in the "
        f"{report.peak_phase} phase: compare your terms with memory.measure's table, outside the "
        "function."
    )


def _peak_slips(
    case: Case, report: memory.MemoryReport, saved: memory.SavedTensors
) -> dict[str, int]:
    """Give the sums that forget a term or take one too many, by what to say of each."""
    left = report.curve()[-1]
    gradients, state = left["gradients"], left["optimizer_state"]
    fixed = left["parameters"] + left["buffers"] + state
    kept, largest = saved.num_bytes, max(row.num_bytes for row in saved.rows)
    slips = {
        "It is what autograd saves and nothing else: parameters and state are there too.": kept,
        "The optimizer's state is missing: it stays all the time.": report.peak_bytes - state,
        "The buffers are missing: no parameters, and there all the time.": report.peak_bytes
        - left["buffers"],
    }
    if case["kind"] == "vgg":
        sizes = [row.num_bytes for row in saved.rows]
        pairs = zip(itertools.accumulate(sizes), sizes, strict=True)
        without = max(still + 2 * size for still, size in pairs)
        return slips | {
            "Gradients of weights are missing in backward: here the largest layer goes first, and "
            "leaves its gradient beside most of what is saved.": fixed + max(without, gradients),
        }
    if report.at_peak["gradients"] < 0.9 * gradients:
        if case["optimizer"] == "adamw":
            late = "Backward and update come one after the other: take the larger, not their sum."
            slips[late] = report.peak_bytes + 2 * gradients
        return slips | {
            "The parameters' gradients lie on top of the fullest store in it: while that is full "
            "hardly one of them exists, and the update comes after backward.": report.peak_bytes
            + gradients,
            "What autograd saves is in it, and the gradients that flow through backward are "
            "not.": fixed + kept,
            "It is one tensor short: while an operation goes backward, one gradient arrives and "
            "one leaves, and the saved tensor is there until it is over.": fixed + kept + largest,
            "The largest flowing gradients do not meet the fullest store: by the time that they "
            "flow, what was saved after them is freed.": fixed + kept + 2 * largest,
        }
    with_weights = oracles.saved_with_weights(case)
    most = max(row.num_bytes for row in with_weights.rows)
    slips |= {
        "For this model no moment of backward is the peak: what is alive in the update?": fixed
        + kept
        + largest,
        "The weights are among the saved tensors, and so counted twice: give memory.saved the "
        "model as params_of.": fixed + with_weights.num_bytes + 2 * most,
    }
    if case["optimizer"] != "adamw":
        temporaries = "AdamW's update makes temporaries, and the update of SGD makes none."
        return slips | {temporaries: fixed + 2 * gradients}
    return slips | {
        "It is the sum of all that there ever is, and in this model that never meets: when all "
        "gradients are there, no activation is left.": fixed + gradients + kept,
        "All gradients and the state are there: what does AdamW's update make beside them, for a "
        "moment?": fixed + gradients,
    }


predict_peak = Check(
    name="lab01.predict_peak",
    exercise="1.5",
    passed=f"five peaks predicted within {TOLERANCE:.0%} of the meter, from one forward pass each",
    cases=_training_cases,
    run=_run_peak,
    judge=_judge_peak,
)
