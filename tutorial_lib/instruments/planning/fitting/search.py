"""Find how to train a model within a memory budget: the least change, then the least time."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from typing import Any

from joblib.externals.loky import (  # type: ignore[import-untyped]
    get_reusable_executor,
)

from tutorial_lib.instruments.planning.chain.plan import Plan
from tutorial_lib.instruments.planning.chain.profiled import Profile
from tutorial_lib.instruments.planning.chain.solve import floor_bytes, solve
from tutorial_lib.instruments.planning.chain.stages import Skip, Stage
from tutorial_lib.instruments.planning.fitting.candidates import Candidate, Fit
from tutorial_lib.instruments.planning.fitting.predictions import Parts, predicted_peak
from tutorial_lib.instruments.planning.run.roofline import Speed
from tutorial_lib.instruments.training import Recipe, Shard
from tutorial_lib.instruments.training.fields import COPYING, UNDIVIDED

# Autocast and the first optimizer keep weights and states in float32; the others are taken by who
# asks for them.
OPTIMIZERS = ("adamw-fused", "adamw-8bit")
_TRIES = 6  # plans of a candidate that are predicted in whole; most often the first one fits


def fit(
    recipe: Recipe | str,
    *,
    budget_bytes: int,
    effective_batch: int,
    precisions: Sequence[str] | None = None,
    optimizers: Sequence[str] | None = None,
    speed: Speed | None = None,
) -> Fit:
    """Search micro-batch, accumulation, checkpointing plan, precision and optimizer.

    A model's stages are profiled on tensors without memory with one and with two samples; their
    bytes and times for other micro-batches lie on the straight line through both. A micro-batch
    takes at least the time in which a CPU launches its operations: what is below that leaves the
    GPU partly idle. `Fit.best` is then predicted in whole, with its plan at work, and gets less
    for its plan where that shows more than the budget. The second and further precisions are
    looked at in a process of their own.

    Args:
        recipe: The model, its sizes, LoRA, and the ranks with what they share: bytes are then those
            of one of them, and the time of their collectives is left out. A name is enough.
        budget_bytes: For everything that PyTorch holds: model, gradients, states, activations.
            A GPU's allocator, kernels and CUDA itself need more on top.
        effective_batch: Samples for each update, of all ranks together.
        precisions: Which may be the best, as in `Recipe`. `None` tries autocast and bfloat16
            throughout, and takes the first.
        optimizers: The same; `None` tries `OPTIMIZERS`, but for those that cannot update what the
            ranks divide.
        speed: What to predict times with; `None` takes that of an A100.

    Returns:
        All candidates; `best` is `None` when none fits of those that were asked for. Then
        `smallest_bytes` says what would do, and `otherwise` what fits if more may change.

    Raises:
        ValueError: When a number is below 1, or a name is not known.
    """
    recipe = Recipe(recipe) if isinstance(recipe, str) else recipe
    # tensor parallel ranks all get all samples
    together = 1 if recipe.shard == Shard.TP else recipe.ranks
    if effective_batch < 1 or budget_bytes < 1 or effective_batch % together:
        raise ValueError(
            f"effective_batch (={effective_batch}) and budget_bytes (={budget_bytes}) must be at "
            f"least 1, and effective_batch a multiple of the ranks with samples of their own "
            f"(={together})."
        )
    speed = speed or Speed()
    is_divided = recipe.shard not in (None, *COPYING)
    tried = optimizers or [n for n in OPTIMIZERS if not (is_divided and n in UNDIVIDED)]
    recipes = [replace(recipe, precision=n) for n in precisions or (speed.autocast, "bf16")]
    found = _taken_apart(recipes, tried, speed)
    candidates = [
        _candidate(parts, optimizer, micro_batch, effective_batch // together, budget_bytes, speed)
        for parts in found
        for optimizer in parts.updates
        for micro_batch in _divisors(effective_batch // together)
    ]
    asked = tuple(product(precisions or [speed.autocast], optimizers or OPTIMIZERS[:1]))
    fitted = Fit(recipe, budget_bytes, effective_batch, tuple(candidates), asked)
    return _verified(fitted, {str(parts.recipe.precision): parts for parts in found}, speed)


def _taken_apart(recipes: Sequence[Recipe], optimizers: Sequence[str], speed: Speed) -> list[Parts]:
    """Take the first step apart here, and those of other precisions in a second process."""
    second = get_reusable_executor(max_workers=1)
    others = [second.submit(Parts.of, recipe, optimizers, speed) for recipe in recipes[1:]]
    first = [Parts.of(recipe, optimizers, speed) for recipe in recipes[:1]]
    return [*first, *(other.result() for other in others)]


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _at(parts: Parts, micro_batch: int) -> Profile:
    """Continue the straight line through one and two samples."""

    def line(first: Any, second: Any) -> Any:
        if isinstance(first, Stage) and isinstance(second, Stage):
            return between(first, second)
        if first is None or second is None or isinstance(first, bool):
            return None if second is None else first
        return max(0, first + (second - first) * (micro_batch - 1))

    def between(first: Any, second: Any) -> Any:
        names = [field.name for field in fields(first) if field.name not in ("source", "target")]
        values = {n: line(getattr(first, n), getattr(second, n)) for n in names}
        if "handed_on_bytes" in values:
            values["handed_on_bytes"] = min(values["handed_on_bytes"], values["saved_bytes"])
        return replace(first, **values)

    one, two = parts.one, parts.two
    stages: list[Stage] = [between(a, b) for a, b in zip(one.stages, two.stages, strict=True)]
    skips: list[Skip] = [between(a, b) for a, b in zip(one.skips, two.skips, strict=True)]
    return replace(one, stages=tuple(stages), skips=tuple(skips))


def _candidate(
    parts: Parts, optimizer: str, micro_batch: int, samples: int, budget: int, speed: Speed
) -> Candidate:
    """Solve for what the model and its update leave of the budget."""
    at, update = _at(parts, micro_batch), parts.updates[optimizer]
    accumulation = samples // micro_batch
    always = update.resident_bytes
    if accumulation > 1:  # from the second micro-batch on all gradients are there
        always += sum(stage.gradient_bytes for stage in at.stages)
        at = replace(at, stages=tuple(replace(s, gradient_bytes=0) for s in at.stages))
    precision = str(parts.recipe.precision)
    chosen = Candidate(precision, optimizer, micro_batch, accumulation, 0.0, 0, 0.0)
    least = max(always + floor_bytes(at), update.peak_bytes)
    if least > budget:
        return replace(chosen, peak_bytes=least)
    found = solve(at, budget_bytes=budget - always)
    peak = max(always + found.peak_bytes, update.peak_bytes)
    return _planned(replace(chosen, peak_bytes=peak), found, parts, speed)


def _planned(candidate: Candidate, plan: Plan, parts: Parts, speed: Speed) -> Candidate:
    """Give a candidate a plan, and the seconds of an update with it."""
    update, overhead = parts.updates[candidate.optimizer], max(0.0, plan.overhead)
    launching = parts.one.launches * speed.launch_seconds * (1 + overhead)
    seconds = candidate.accumulation * max(plan.seconds, launching)
    seconds += update.touched_bytes / speed.bytes_per_second
    return replace(candidate, plan=plan, seconds=seconds, overhead=overhead)


def _verified(found: Fit, by_precision: Mapping[str, Parts], speed: Speed) -> Fit:
    """Predict the best candidate in whole; where it does not fit, leave its plan less room.

    One whose plans have all been too large counts as one that does not fit, and the next is looked
    at: no answer is only added up.
    """
    tries = Counter[tuple[str, str, int]]()
    while True:
        best = found.best or found.otherwise
        if best is None or best.is_verified or best.plan is None:
            return found
        parts, name = (
            by_precision[best.precision],
            (best.precision, best.optimizer, best.micro_batch),
        )
        peak = predicted_peak(found.recipe_of(best), best.plan, parts.updates[best.optimizer])
        over = peak - found.budget_bytes
        changed = replace(best, peak_bytes=peak, is_verified=True)
        if over > 0:
            tries[name] += 1
            changed = replace(best, peak_bytes=peak, plan=None)
            if tries[name] < _TRIES:
                changed = _with_less(best, over, parts, speed)
        others = [changed if candidate is best else candidate for candidate in found.candidates]
        found = replace(found, candidates=tuple(others))


def _with_less(candidate: Candidate, over: int, parts: Parts, speed: Speed) -> Candidate:
    plan = candidate.plan
    assert plan is not None
    room = (plan.budget_bytes or 0) - over
    try:
        again = replace(
            solve(plan.stages, budget_bytes=min(room, plan.peak_bytes - over), skips=plan.skips),
            names=plan.names,
            calls=plan.calls,
        )
    except ValueError:
        return replace(candidate, peak_bytes=candidate.peak_bytes + over, plan=None)
    return _planned(candidate, again, parts, speed)
