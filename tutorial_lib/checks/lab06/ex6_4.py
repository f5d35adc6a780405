"""The check of 6.4, a scaled step: what happens once an update, with float16's range."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR

from tutorial_lib.checks import accumulation, expect, observe, read, surroundings
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.lab06 import models

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
            loss, norm = returned if isinstance(returned, tuple | list) else (returned, None)
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
    surroundings.expect_kept(result)


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
    """One window: what is wanted of it, and how scaler and scheduler stand after it."""

    case: Case
    said: Mapping[str, Any]
    where: str
    is_lost: bool
    gradients: accumulation.Window
    losses: accumulation.Window
    scale: float
    scale_after: float = 1.0
    counted: int = 0  # good updates since the scale last changed
    done: int = 0  # updates so far

    def check(self, model: nn.Module, updates: Iterator[Tensor]) -> None:
        start, update = observe.parameter_vector(model), 0.0 * self.gradients.mean
        if not self.is_lost:
            update = self._expect_gradient(next(updates))
        self._expect_returned()
        self._expect_scaler()
        self._expect_schedule()
        rate = _RATE * _GAMMA ** (self.done - 1)
        seen = read.vector(self.said.get("parameters"), len(start), f"{self.where}the parameters")
        expect.close(
            seen,
            start - rate * update,
            [
                (
                    "its gradient is right, and the update had the next one's learning rate: the "
                    "scheduler steps after scaler.step.",
                    start - rate * _GAMMA * update,
                )
            ],
            otherwise="gradient and schedule are right, and the parameters are not.",
            where=self.where,
        )
        models.move(model, -rate * update)

    def _expect_gradient(self, seen: Tensor) -> Tensor:
        limit, window, scale = self.case["max_norm"], self.gradients, self.scale

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
            (
                "nothing is divided: the means of the micro-batches were added up.",
                clip(window.sum_of_means),
            ),
            (
                f"each micro-batch counts the same, and they have {window.counts} images.",
                clip(window.mean_of_means),
            ),
            (accumulation.LAST_ALONE, clip(window.last_alone)),
            (accumulation.OLD_GRADIENT, clip(window.mean + 1 / scale)),
        ]
        limits = [limit / scale]
        return accumulation.expect_clipped(seen, window.mean, limit, faults, self.where, limits)

    def _expect_returned(self) -> None:
        losses, scaled = self.losses, self.losses.mean * self.scale
        faults = [
            (accumulation.MEAN_OF_MEANS, losses.mean_of_means),
            (accumulation.SUM_OF_MEANS, losses.sum_of_means),
            (f"it is scaled by {self.scale:g}, and is for people to read.", scaled),
        ]
        expect.loss(self.said.get("loss"), losses.mean, faults, where=self.where)
        if self.is_lost:
            return
        norm = read.number(self.said.get("norm"), f"{self.where}the norm")
        wanted = float(self.gradients.mean.norm())
        expect.close(
            norm,
            wanted,
            otherwise=f"the gradient is right, and the norm returned is {norm / wanted:.4g} times "
            "that of the window's gradient before clipping, which clip_grad_norm_ returns.",
            tolerance=1e-6,
            where=self.where,
        )

    def _expect_scaler(self) -> None:
        scale, counted = self.said.get("scale"), self.said.get("counted")
        if scale != self.scale_after or (self.case["enabled"] and counted != self.counted):
            raise CheckError(
                f"{self.where}the scaler is at scale {scale} after {counted} good updates, and "
                f"should be at {self.scale_after} after {self.counted}: scaler.update() is for "
                "once a window, after scaler.step."
            )

    def _expect_schedule(self) -> None:
        schedule, is_ahead = self.said.get("schedule"), self.said.get("schedule") == self.done + 1
        if schedule == self.done:
            return
        if self.is_lost and is_ahead and self.case["overflow"] == "parameter":
            said = (
                "its update was skipped, and the scheduler made a step. A skipped update may have "
                "a norm of nan, and may have an infinite one, as here."
            )
        elif self.is_lost and is_ahead:
            said = (
                "its update was skipped, and the scheduler stepped all the same: from now on it is "
                "one ahead. A scale that has fallen tells."
            )
        elif self.case["grows"] != _NEVER and schedule == self.done - 1:
            said = (
                "the scale grew, and the scheduler did not step: only a scale that has fallen "
                "means a skipped update."
            )
        else:
            said = (
                f"the scheduler has made {schedule} steps after {self.done} updates: it belongs to "
                "the update, like the clipping."
            )
        raise CheckError(self.where + said)


def _judge_turns(case: Case, result: Result, updates: list[Tensor], model: nn.Module) -> None:
    windows = _windows(case)
    turns = read.records(result.get("turns"), "what each call left", len(windows))
    lost = {_LOST} if case["overflow"] else set()
    wanted = len(windows) - len(lost)
    if len(updates) != wanted:
        advice = "an infinite gradient skips the update, which scaler.step does" if lost else ""
        raise CheckError(
            f"the optimizer made {len(updates)} updates in {len(windows)} windows, and {wanted} "
            f"are wanted: {advice or 'one a window, by scaler.step'}."
        )
    scale, done, counted = case["scale"] if case["enabled"] else 1.0, 0, 0
    remaining = iter(updates)
    for number, (window, said) in enumerate(zip(windows, turns, strict=True)):
        is_lost, before = number in lost, scale
        done, counted = done + (not is_lost), 0 if is_lost else counted + 1
        if is_lost:
            scale = scale / 2
        elif case["enabled"] and counted == case["grows"]:
            scale, counted = scale * 2, 0
        where = f"window {number + 1} of {len(windows)}: "
        of_each = models.gradients_of(model, window), models.losses_of(model, window)
        turn = _Turn(case, said, where, is_lost, *of_each, before, scale, counted, done)
        turn.check(model, remaining)


scaled_step = Check(
    "lab06.scaled_step",
    "6.4",
    "unscaled, clipped, updated, scheduled and logged once a window, and skipped as one",
    _cases,
    _run,
    _judge,
)
