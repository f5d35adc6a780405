"""The check of lab 06's scaled step (6.4): what happens once an update, with float16's range."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR

from tutorial_lib.checks import lab06_demands as demands
from tutorial_lib.checks import lab06_oracles as oracles
from tutorial_lib.checks.core import Case, Check, CheckError, Result

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


def _windows(case: Case) -> list[list[oracles.MicroBatch]]:
    generator = torch.Generator().manual_seed(case["seed"])
    return [oracles.image_window(sizes, generator) for sizes in case["sizes"]]


def _run(answer: Callable[..., Any], case: Case) -> Result:
    windows, model = _windows(case), oracles.tiny_vit(case["seed"])
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

    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
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
            turns[-1]["parameters"] = oracles.vector(list(model.parameters()))

    seen = oracles.observe(train, model, optimizer)
    return {key: seen[key] for key in ("gradients", "rows", "switches_kept")} | {"turns": turns}


def _judge(case: Case, result: Result) -> None:
    sizes = [size for window in case["sizes"] for size in window]
    demands.few_rows(result, sizes)
    turns = result.get("turns")
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        raise CheckError("what was returned cannot be read: a pair of loss and norm is wanted.")
    model = oracles.tiny_vit(case["seed"])
    size = sum(parameter.numel() for parameter in model.parameters())
    updates = demands.vectors(result.get("gradients"), size, "the gradients")
    if case["overflow"] and not case["enabled"]:
        _judge_schedule_without_scaler(turns, updates, len(case["sizes"]))
        return
    _judge_turns(case, turns, updates, model)
    demands.same_rows(result, sizes)
    demands.same_switches(result)


def _judge_turns(
    case: Case, turns: list[Mapping[str, Any]], updates: list[Tensor], model: nn.Module
) -> None:
    windows = _windows(case)
    lost = {_LOST} if case["overflow"] else set()
    wanted_updates = len(windows) - len(lost)
    if len(updates) != wanted_updates or len(turns) != len(windows):
        advice = "an infinite gradient skips the update, which scaler.step does" if lost else ""
        raise CheckError(
            f"the optimizer made {len(updates)} updates in {len(windows)} windows, and "
            f"{wanted_updates} are wanted: {advice or 'one a window, by scaler.step'}."
        )
    scale, done, counted = case["scale"] if case["enabled"] else 1.0, 0, 0
    remaining = iter(updates)
    for turn, (window, said) in enumerate(zip(windows, turns, strict=True)):
        where = f"window {turn + 1} of {len(windows)}: "
        loss = model.loss(*oracles.whole(window))  # type: ignore[operator]
        plain = oracles.gradient(loss, model)
        update = None
        if turn not in lost:
            update = _judge_gradient(case, next(remaining), plain, window, model, scale, where)
            done, counted = done + 1, counted + 1
        before = scale
        if turn in lost:
            scale, counted = scale / 2, 0
        elif case["enabled"] and counted == case["grows"]:
            scale, counted = scale * 2, 0
        means = [model.loss(*item).item() for item in window]  # type: ignore[operator]
        _judge_said(said, loss.item(), means, plain, before, where, is_lost=turn in lost)
        _judge_counters(case, said, scale, counted, done, where, is_lost=turn in lost)
        _judge_moved(said, model, update, _RATE * _GAMMA ** (done - 1), where)


def _judge_schedule_without_scaler(
    turns: list[Mapping[str, Any]], updates: list[Tensor], wanted: int
) -> None:
    if len(updates) != wanted or len(turns) != wanted:
        raise CheckError(
            f"the scaler was switched off, and the optimizer made {len(updates)} updates in "
            f"{wanted} windows: leave it to scaler.step what is skipped."
        )
    if turns[-1].get("schedule") != wanted:
        raise CheckError(
            "a scaler that is switched off skips no update, an infinite gradient makes one too, "
            "and here the scheduler made no step for it: only a scale that has fallen tells."
        )


def _judge_gradient(
    case: Case,
    seen: Tensor,
    plain: Tensor,
    window: list[oracles.MicroBatch],
    model: Any,
    scale: float,
    where: str,
) -> Tensor:
    limit = case["max_norm"]
    wanted = demands.clipped(plain, limit, seen)
    if oracles.is_close(seen, wanted):
        return wanted
    clip = functools.partial(demands.clipped, limit=limit, seen=seen)
    of_each = [oracles.gradient(model.loss(*item), model) for item in window]
    sizes = [len(labels) for _, labels in window]
    added = sum(of_each, torch.zeros_like(plain))
    slips = {
        "the gradient was clipped while it was still scaled: scaler.unscale_(optimizer) comes "
        "before.": demands.clipped(scale * plain, limit, seen * scale) / scale,
        "the gradient was not clipped.": plain,
        "it is too small by the scale: the loss was not scaled before backward, or the gradient "
        "unscaled twice.": wanted / scale,
        "nothing is divided: the means of the micro-batches were added up.": clip(added),
        f"each micro-batch counts the same, and they have {sizes} images.": clip(
            added / len(window)
        ),
        "only the last micro-batch is in the gradient: zero once, at the start.": clip(
            of_each[-1] * sizes[-1] / sum(sizes)
        ),
        "what was handed over in .grad was added to the window: zero the gradients first.": clip(
            plain + 1 / scale
        ),
    }
    return demands.demand_clipped(seen, plain, limit, slips, where, [limit / scale])


def _judge_moved(
    said: Mapping[str, Any], model: nn.Module, update: Tensor | None, rate: float, where: str
) -> None:
    """Move the model as the window should have moved it, by an update or not at all."""
    parameters = list(model.parameters())
    start = oracles.vector(parameters)
    seen = demands.one_vector(said.get("parameters"), len(start), f"{where}the parameters")
    if update is None:
        update = torch.zeros_like(start)
    moved = start - rate * update
    if not oracles.is_close(seen, moved):
        if oracles.is_close(seen, start - rate * _GAMMA * update):
            raise CheckError(
                f"{where}its gradient is right, and the update had the next one's learning rate: "
                "the scheduler steps after scaler.step."
            )
        raise CheckError(f"{where}gradient and schedule are right, and the parameters are not.")
    nn.utils.vector_to_parameters(moved, parameters)


def _judge_said(
    said: Mapping[str, Any],
    loss: float,
    means: list[float],
    plain: Tensor,
    scale: float,
    where: str,
    *,
    is_lost: bool,
) -> None:
    slips = {
        "it is the mean of the micro-batches' means.": sum(means) / len(means),
        "it is the sum of the micro-batches' means.": sum(means),
        f"it is scaled by {scale:g}, and is for people to read.": loss * scale,
    }
    demands.demand_loss(said.get("loss"), loss, where, slips)
    if is_lost:
        return
    norm, wanted = demands.number(said.get("norm"), f"{where}the norm"), float(plain.norm())
    if not math.isclose(norm, wanted, rel_tol=1e-6):
        raise CheckError(
            f"{where}the gradient is right, and the norm returned is {norm / wanted:.4g} times "
            "that of the window's gradient before clipping, which clip_grad_norm_ returns."
        )


def _judge_counters(
    case: Case,
    said: Mapping[str, Any],
    scale: float,
    counted: int,
    done: int,
    where: str,
    *,
    is_lost: bool,
) -> None:
    if said.get("scale") != scale or (case["enabled"] and said.get("counted") != counted):
        raise CheckError(
            f"{where}the scaler is at scale {said.get('scale')} after {said.get('counted')} good "
            f"updates, and should be at {scale} after {counted}: scaler.update() is for once a "
            "window, after scaler.step."
        )
    schedule = said.get("schedule")
    if schedule == done:
        return
    if is_lost and schedule == done + 1 and case["overflow"] == "parameter":
        raise CheckError(
            f"{where}its update was skipped, and the scheduler made a step. A skipped update may "
            "have a norm of nan, and may have an infinite one, as here."
        )
    if is_lost and schedule == done + 1:
        raise CheckError(
            f"{where}its update was skipped, and the scheduler stepped all the same: from now on "
            "it is one ahead. A scale that has fallen tells."
        )
    if case["grows"] != _NEVER and schedule == done - 1:
        raise CheckError(
            f"{where}the scale grew, and the scheduler did not step: only a scale that has fallen "
            "means a skipped update."
        )
    raise CheckError(
        f"{where}the scheduler has made {schedule} steps after {done} updates: it belongs to the "
        "update, like the clipping."
    )


scaled_step = Check(
    name="lab06.scaled_step",
    exercise="6.4",
    passed="unscaled, clipped, updated, scheduled and logged once a window, and skipped as one",
    cases=_cases,
    run=_run,
    judge=_judge,
)
