"""The check of 6.4, a scaled step: the work done once an update, with float16's range."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from tutorial_lib.checks.given import observe
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, accumulation, check, expect
from tutorial_lib.checks.vocabulary.exercise import Seen
from tutorial_lib.checks.vocabulary.read import number, records, vector

from . import given, right_sums
from .given import models, steps

_PASSED = "unscales, clips, updates, schedules and logs once per window; skips it as a whole"
_NEVER = 10**6  # updates until the scale grows


def _cases(draw: Draw) -> Cases:
    sizes = [[draw.randint(2, 3), draw.randint(4, 5), draw.randint(6, 7)] for _ in range(3)]
    drawn = {"seed": draw.randrange(10**6), "sizes": sizes, "enabled": True, "overflow": ""}
    drawn |= {"grows": _NEVER, "scale": 2.0 ** draw.randint(8, 12), "max_norm": 1e6}
    yield drawn
    yield {**drawn, "max_norm": 1e-3}
    yield {**drawn, "max_norm": 1e-3, "enabled": False}
    yield {**drawn, "grows": 2}
    yield {**drawn, "overflow": "loss"}
    yield {**drawn, "overflow": "parameter"}
    yield {**drawn, "overflow": "parameter", "enabled": False}
    yield {**drawn, "sizes": [models.MANY, [2, 2]]}


@check(given.scaled_step, _PASSED, _cases)
def scaled_step(case: Case, result: Result) -> None:
    sizes = [size for window in case["sizes"] for size in window]
    accumulation.expect_rows_at_most(result, sizes)
    model = models.tiny_vit(case["seed"])
    updates = right_sums.read_updates(result, len(observe.parameter_vector(model)))
    if case["overflow"] and not case["enabled"]:
        _judge_without_scaler(result, len(updates), len(case["sizes"]))
        return
    _judge_turns(case, result, updates, model)
    accumulation.expect_each_once(result, sizes)
    if models.MANY in case["sizes"]:
        first, *_ = steps.image_windows_of(case)
        allowed = right_sums.peak_allowed(model, first, models.image_loss_sum)
        accumulation.expect_one_graph(result, allowed)
    expect.unchanged(result)


def _judge_without_scaler(result: Result, num_updates: int, wanted: int) -> None:
    turns = records(result["turns"], "what each call left", wanted)
    faults = {
        f"the scaler was switched off, and the optimizer made {num_updates} updates in {wanted} "
        "windows: let scaler.step decide what is skipped.": num_updates != wanted,
        "a scaler that is switched off skips no update, not even with an infinite gradient, but "
        "here the scheduler didn't step after it: an update was skipped only if the scale "
        "fell.": turns[-1].get("schedule") != wanted,
    }
    expect.no_fault(faults)


@dataclass
class _Turn:
    """One window: how scaler and scheduler should stand after it."""

    is_lost: bool
    scale: float  # before it
    scale_after: float
    counted: int  # good updates since the scale last changed
    done: int  # updates so far


def _turns(case: Case) -> Iterator[_Turn]:
    scale, counted, done = case["scale"] if case["enabled"] else 1.0, 0, 0
    for place in range(len(case["sizes"])):
        before, is_lost = scale, bool(case["overflow"]) and place == steps.LOST
        counted, done = (0, done) if is_lost else (counted + 1, done + 1)
        if is_lost:
            scale /= 2
        elif case["enabled"] and counted == case["grows"]:
            scale, counted = scale * 2, 0
        yield _Turn(is_lost, before, scale, counted, done)


def _judge_turns(case: Case, result: Result, updates: list[Tensor], model: nn.Module) -> None:
    turns, number_of = list(_turns(case)), len(case["sizes"])
    said = map(Seen, records(result["turns"], "what each call left", number_of))
    advice = "one per window, by scaler.step"
    if case["overflow"]:
        advice = "with an infinite gradient, scaler.step skips the update"
    expect.fact(
        len(updates) == turns[-1].done,
        f"the optimizer made {len(updates)} updates in {number_of} windows instead of "
        f"{turns[-1].done}: {advice}.",
    )
    remaining, rows = iter(updates), zip(steps.image_windows_of(case), turns, said, strict=True)
    for place, (window, turn, left) in enumerate(rows, start=1):
        gradients, losses = right_sums.image_sums(model, window)
        update = 0.0 * gradients.mean
        with expect.about(f"window {place} of {number_of}: "):
            if not turn.is_lost:
                update = _expect_gradient(case, turn, gradients, next(remaining))
            _expect_returned(turn, left, losses, gradients)
            _expect_standing(case, turn, left)
            _expect_parameters(turn, left, update, model)


def _expect_gradient(case: Case, turn: _Turn, window: accumulation.Window, seen: Tensor) -> Tensor:
    limit, scale = case["max_norm"], turn.scale

    def clip(gradient: Tensor) -> Tensor:
        return accumulation.clipped(gradient, limit, seen)

    still_scaled = accumulation.clipped(scale * window.mean, limit, seen * scale) / scale
    faults = {
        "the gradient was clipped while it was still scaled: call scaler.unscale_(optimizer) "
        "first.": still_scaled,
        "the gradient was not clipped.": window.mean,
        "it is too small by the scale: the loss wasn't scaled before backward, or you unscaled the "
        "gradient twice.": clip(window.mean) / scale,
    }
    old_gradient = accumulation.OLD_GRADIENT, clip(window.mean + 1 / scale)
    more = [*faults.items(), *accumulation.faults(window, "images", clip), old_gradient]
    return accumulation.expect_clipped(seen, window.mean, limit, more, limits=[limit / scale])


def _expect_returned(
    turn: _Turn, left: Result, losses: accumulation.Window, gradients: accumulation.Window
) -> None:
    scaled = f"it is still scaled by {turn.scale:g}, but people read it: unscale it."
    faults = [*right_sums.loss_faults(losses), (scaled, losses.mean * turn.scale)]
    expect.loss(left["loss"], losses.mean, faults)
    if turn.is_lost:
        return
    norm, wanted = number(left["norm"], "the norm"), float(gradients.mean.norm())
    still_scaled = (
        f"the norm returned is {turn.scale:g} times too large, since the gradient is still scaled: "
        "scaler.unscale_ comes before clip_grad_norm_."
    )
    expect.close(
        norm,
        wanted,
        [(still_scaled, wanted * turn.scale)],
        otherwise=f"the gradient is right, but the norm returned is {norm / wanted:.4g} times the "
        "norm before clipping, which clip_grad_norm_ returns.",
        tolerance=1e-6,
    )


def _expect_standing(case: Case, turn: _Turn, left: Result) -> None:
    schedule, scale, counted = left["schedule"], left["scale"], left["counted"]
    is_ahead = turn.is_lost and schedule == turn.done + 1
    is_infinite = case["overflow"] == "parameter"
    is_behind = case["grows"] != _NEVER and schedule == turn.done - 1
    faults = {
        f"the scaler is at scale {scale} after {counted} good updates, and should be at "
        f"{turn.scale_after} after {turn.counted}: call scaler.update() once per window, after "
        "scaler.step.": scale != turn.scale_after or (case["enabled"] and counted != turn.counted),
        "its update was skipped, but the scheduler made a step. A skipped update's norm may be nan "
        "or infinite, as here.": is_ahead and is_infinite,
        "its update was skipped, but the scheduler stepped all the same and is one ahead from now "
        "on. An update was skipped if the scale fell.": is_ahead,
        "the scale grew, but the scheduler did not step: an update was skipped only if the scale "
        "fell.": is_behind,
        f"the scheduler has made {schedule} steps after {turn.done} updates: step it with the "
        "update, like the clipping.": schedule != turn.done,
    }
    expect.no_fault(faults)


def _expect_parameters(turn: _Turn, left: Result, update: Tensor, model: nn.Module) -> None:
    start, rate = observe.parameter_vector(model), models.RATE * steps.GAMMA ** (turn.done - 1)
    early = (
        "its gradient is right, but the update used the next update's learning rate: the scheduler "
        "steps after scaler.step."
    )
    expect.close(
        vector(left["parameters"], len(start), "the parameters"),
        start - rate * update,
        [(early, start - rate * steps.GAMMA * update)],
        otherwise="gradient and schedule are right, but the parameters are not.",
    )
    right_sums.add_to_parameters(model, -rate * update)
