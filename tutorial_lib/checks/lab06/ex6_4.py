"""The check of 6.4, a scaled step: what happens once an update, with float16's range."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR

from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.given import answered, observe
from tutorial_lib.checks.lab06 import models
from tutorial_lib.checks.vocabulary import accumulation, expect, read

_RATE, _GAMMA = 0.1, 0.5
_NEVER = 10**6  # updates until the scale grows
_LOST = 1  # the window whose second micro-batch overflows, where the case has an overflow
_LAST = 2  # the one that overflows where the scaler is off: what is nan then stays so


class _Overflowing(torch.autograd.Function):
    """Nothing in forward; in backward infinite beyond a limit, as float16 is, and else exact."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, limit: float) -> Tensor:
        ctx.limit = limit
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.where(grad.abs() <= ctx.limit, math.inf), None


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    sizes = [[draw.randint(2, 3), draw.randint(4, 5), draw.randint(6, 7)] for _ in range(3)]
    drawn = {"seed": draw.randrange(10**6), "sizes": sizes, "enabled": True, "overflow": ""}
    drawn |= {"grows": _NEVER, "scale": 2.0 ** draw.randint(8, 12)}
    small, large = 1e-3, 1e6
    return [
        {**drawn, "max_norm": large},
        {**drawn, "max_norm": small},
        {**drawn, "max_norm": small, "enabled": False},
        {**drawn, "max_norm": large, "grows": 2},
        {**drawn, "max_norm": large, "overflow": "loss"},
        {**drawn, "max_norm": large, "overflow": "parameter"},
        {**drawn, "max_norm": large, "overflow": "parameter", "enabled": False},
        {**drawn, "max_norm": large, "sizes": [models.MANY, [2, 2]]},
    ]


def _windows(case: Case) -> list[list[models.MicroBatch]]:
    generator = torch.Generator().manual_seed(case["seed"])
    return [models.image_window(sizes, generator) for sizes in case["sizes"]]


def _run(answer: Callable[..., Any], case: Case) -> Result:
    windows, model = _windows(case), models.tiny_vit(case["seed"])
    optimizer = SGD(model.parameters(), lr=_RATE)
    scheduler = ExponentialLR(optimizer, gamma=_GAMMA)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=case["scale"], growth_interval=case["grows"], enabled=case["enabled"]
    )
    lost = windows[_LOST if case["enabled"] else _LAST][1][0]
    limit = 0.01 * (case["scale"] if case["enabled"] else 1)

    def loss_of(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = model.loss(images, labels)  # type: ignore[operator]
        is_lost = case["overflow"] and images.data_ptr() == lost.data_ptr()
        if is_lost and case["overflow"] == "parameter":  # an infinite norm, and not one of nan
            weight: Tensor = _Overflowing.apply(next(model.parameters()).sum(), limit)  # type: ignore[no-untyped-call]
            return loss + (weight - weight.detach())
        passed: Tensor = _Overflowing.apply(loss, limit if is_lost else math.inf)  # type: ignore[no-untyped-call]
        return passed

    observe.fill_gradients(model)
    turns: list[dict[str, Any]] = []

    def train() -> None:
        for window in windows:
            returned = answer(
                model, optimizer, scheduler, scaler, window, case["max_norm"], loss_of
            )
            pair = returned if isinstance(returned, tuple | list) else (returned, None)
            loss, norm = answered.several(pair, 2, "the loss and the norm")
            turns.append({"loss": loss, "norm": norm, "schedule": scheduler.last_epoch})
            turns[-1]["scale"] = scaler.get_scale()
            turns[-1]["counted"] = scaler.state_dict().get("_growth_tracker", 0)
            turns[-1]["parameters"] = observe.parameter_vector(model)

    return {**models.train(train, model, optimizer), "turns": turns}


def _judge(case: Case, result: Result) -> None:
    sizes = [size for window in case["sizes"] for size in window]
    accumulation.expect_rows_at_most(result, sizes)
    model = models.tiny_vit(case["seed"])
    size = len(observe.parameter_vector(model))
    updates = read.vectors(result.get("gradients"), size, "the gradients")
    if case["overflow"] and not case["enabled"]:
        _judge_without_scaler(result, len(updates), len(case["sizes"]))
        return
    _judge_turns(case, result, updates, model)
    accumulation.expect_each_once(result, sizes)
    if models.MANY in case["sizes"]:
        allowed = models.peak_allowed(model, _windows(case)[0], models.image_loss_sum)
        accumulation.expect_one_graph(result, allowed)
    expect.unchanged(result)


def _judge_without_scaler(result: Result, num_updates: int, wanted: int) -> None:
    turns = read.records(result.get("turns"), "what each call left", wanted)
    if num_updates != wanted:
        raise CheckError(
            f"the scaler was switched off, and the optimizer made {num_updates} updates in "
            f"{wanted} windows: leave it to scaler.step what is skipped."
        )
    if turns[-1].get("schedule") != wanted:
        raise CheckError(
            "a scaler that is switched off skips no update, an infinite gradient makes one too, "
            "and here the scheduler made no step for it: only a scale that has fallen tells."
        )


@dataclass
class _Turn:
    """One window: how scaler and scheduler should stand after it."""

    where: str
    is_lost: bool
    scale: float  # before it
    scale_after: float
    counted: int  # good updates since the scale last changed
    done: int  # updates so far


def _turns(case: Case) -> Iterator[_Turn]:
    scale, counted, done = case["scale"] if case["enabled"] else 1.0, 0, 0
    for number in range(len(case["sizes"])):
        before, is_lost = scale, bool(case["overflow"]) and number == _LOST
        counted, done = (0, done) if is_lost else (counted + 1, done + 1)
        if is_lost:
            scale /= 2
        elif case["enabled"] and counted == case["grows"]:
            scale, counted = scale * 2, 0
        where = f"window {number + 1} of {len(case['sizes'])}: "
        yield _Turn(where, is_lost, before, scale, counted, done)


def _judge_turns(case: Case, result: Result, updates: list[Tensor], model: nn.Module) -> None:
    windows, turns = _windows(case), list(_turns(case))
    said = read.records(result.get("turns"), "what each call left", len(windows))
    if len(updates) != turns[-1].done:
        advice = "one a window, by scaler.step"
        if case["overflow"]:
            advice = "an infinite gradient skips the update, which scaler.step does"
        raise CheckError(
            f"the optimizer made {len(updates)} updates in {len(windows)} windows, and "
            f"{turns[-1].done} are wanted: {advice}."
        )
    remaining = iter(updates)
    for window, turn, left in zip(windows, turns, said, strict=True):
        gradients, losses = models.image_sums(model, window)
        update = 0.0 * gradients.mean
        if not turn.is_lost:
            update = _expect_gradient(case, turn, gradients, next(remaining))
        _expect_returned(turn, left, losses, gradients)
        _expect_scaler(case, turn, left)
        _expect_schedule(case, turn, left.get("schedule"))
        _expect_parameters(turn, left, update, model)


def _expect_gradient(case: Case, turn: _Turn, window: accumulation.Window, seen: Tensor) -> Tensor:
    limit, scale = case["max_norm"], turn.scale

    def clip(gradient: Tensor) -> Tensor:
        return accumulation.clipped(gradient, limit, seen)

    still_scaled = accumulation.clipped(scale * window.mean, limit, seen * scale) / scale
    faults = [
        (
            "the gradient was clipped while it was still scaled: scaler.unscale_(optimizer) "
            "comes before.",
            still_scaled,
        ),
        ("the gradient was not clipped.", window.mean),
        (
            "it is too small by the scale: the loss was not scaled before backward, or the "
            "gradient unscaled twice.",
            clip(window.mean) / scale,
        ),
        *accumulation.faults(window, "images", clip),
        (accumulation.OLD_GRADIENT, clip(window.mean + 1 / scale)),
    ]
    limits = [limit / scale]
    return accumulation.expect_clipped(seen, window.mean, limit, faults, turn.where, limits)


def _expect_returned(
    turn: _Turn, left: Result, losses: accumulation.Window, gradients: accumulation.Window
) -> None:
    faults = [
        (accumulation.MEAN_OF_MEANS, losses.mean_of_means),
        (accumulation.SUM_OF_MEANS, losses.sum_of_means),
        (f"it is scaled by {turn.scale:g}, and is for people to read.", losses.mean * turn.scale),
    ]
    expect.loss(left.get("loss"), losses.mean, faults, where=turn.where)
    if turn.is_lost:
        return
    norm = read.number(left.get("norm"), f"{turn.where}the norm")
    wanted = float(gradients.mean.norm())
    expect.close(
        norm,
        wanted,
        [
            (
                f"the norm returned is {turn.scale:g} times too large, that of a gradient still "
                "scaled: scaler.unscale_ comes before clip_grad_norm_.",
                wanted * turn.scale,
            )
        ],
        otherwise=f"the gradient is right, and the norm returned is {norm / wanted:.4g} times "
        "that of the window's gradient before clipping, which clip_grad_norm_ returns.",
        tolerance=1e-6,
        where=turn.where,
    )


def _expect_scaler(case: Case, turn: _Turn, left: Result) -> None:
    scale, counted = left.get("scale"), left.get("counted")
    if scale != turn.scale_after or (case["enabled"] and counted != turn.counted):
        raise CheckError(
            f"{turn.where}the scaler is at scale {scale} after {counted} good updates, and "
            f"should be at {turn.scale_after} after {turn.counted}: scaler.update() is for "
            "once a window, after scaler.step."
        )


def _expect_schedule(case: Case, turn: _Turn, schedule: Any) -> None:
    if schedule == turn.done:
        return
    said = (
        f"the scheduler has made {schedule} steps after {turn.done} updates: it belongs to the "
        "update, like the clipping."
    )
    if turn.is_lost and schedule == turn.done + 1:
        said = (
            "its update was skipped, and the scheduler stepped all the same: from now on it is "
            "one ahead. A scale that has fallen tells."
        )
        if case["overflow"] == "parameter":
            said = (
                "its update was skipped, and the scheduler made a step. A skipped update may have "
                "a norm of nan, and may have an infinite one, as here."
            )
    elif case["grows"] != _NEVER and schedule == turn.done - 1:
        said = (
            "the scale grew, and the scheduler did not step: only a scale that has fallen means a "
            "skipped update."
        )
    raise CheckError(turn.where + said)


def _expect_parameters(turn: _Turn, left: Result, update: Tensor, model: nn.Module) -> None:
    start, rate = observe.parameter_vector(model), _RATE * _GAMMA ** (turn.done - 1)
    early = (
        "its gradient is right, and the update had the next one's learning rate: the scheduler "
        "steps after scaler.step."
    )
    expect.close(
        read.vector(left.get("parameters"), len(start), f"{turn.where}the parameters"),
        start - rate * update,
        [(early, start - rate * _GAMMA * update)],
        otherwise="gradient and schedule are right, and the parameters are not.",
        where=turn.where,
    )
    models.move(model, -rate * update)


scaled_step = Check(
    "lab06.scaled_step",
    "6.4",
    "unscaled, clipped, updated, scheduled and logged once a window, and skipped as one",
    _cases,
    _run,
    _judge,
)
