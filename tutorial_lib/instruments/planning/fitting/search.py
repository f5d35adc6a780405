"""Find how to train a model within a memory budget: the least change, then the least time."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import product
from typing import Any

from tutorial_lib.instruments.planning.chain.host import Host
from tutorial_lib.instruments.planning.chain.offload import smallest_with_host, solve_with_host
from tutorial_lib.instruments.planning.chain.plan import Plan
from tutorial_lib.instruments.planning.chain.profiled import Profile
from tutorial_lib.instruments.planning.chain.solve import smallest, solve
from tutorial_lib.instruments.planning.chain.stages import Skip, Stage, outputs
from tutorial_lib.instruments.planning.fitting.candidates import Candidate, Fit, marked
from tutorial_lib.instruments.planning.fitting.judged import judge, possible_micro_batches
from tutorial_lib.instruments.planning.fitting.predictions import (
    Parts,
    Update,
    predicted_peak,
    taken_apart,
)
from tutorial_lib.instruments.planning.run.roofline import Speed
from tutorial_lib.instruments.training import Recipe, Shard
from tutorial_lib.instruments.training.fields import COPYING, UNDIVIDED

OPTIMIZERS = ("adamw-fused", "adamw-8bit")  # only the first has states in float32
_TRIES = 6  # plans of a candidate that are predicted in whole; most often the first one fits
_LEAST = 3  # candidates whose smallest plan is predicted in whole, where nothing fits


def fit(
    recipe: Recipe | str,
    *,
    budget_bytes: int,
    effective_batch: int,
    precisions: Sequence[str] | None = None,
    optimizers: Sequence[str] | None = None,
    speed: Speed | None = None,
    stages: Sequence[str] | None = None,
    host: Host | None = None,
    tell: Callable[[str], object] = str,
) -> Fit:
    """Search micro-batch, accumulation, checkpointing plan, precision and optimizer.

    A model's stages are profiled on tensors without memory with one and with two samples; bytes and
    times of other micro-batches lie on the straight line through both, but none is faster than a
    CPU launches its operations. `Fit.best` is then predicted in whole, and gets less for its plan
    where that is more than the budget. Stages that cannot run again, as `judge` says, are kept.

    Args:
        recipe: The model, its sizes, LoRA, and the ranks with what they share: bytes are then those
            of one of them, and the time of their collectives is left out. A name is enough.
        budget_bytes: For all that PyTorch holds; a GPU's allocator and CUDA need more on top.
        effective_batch: Samples for each update, of all ranks together.
        precisions: Which may be the best. `None`: autocast, else float32; bf16 where nothing fits.
        optimizers: The same; `None` tries those of `OPTIMIZERS` that can update what ranks divide.
        speed: What to predict times with; `None` takes that of an A100.
        stages: What may be recomputed, as `profile` takes it.
        host: Where what stages save may wait.
        tell: Called at each part of the work, with words that say which one it is.

    Returns:
        All candidates; `best` is `None` when none fits of those that were asked for. Then
        `smallest_bytes` says what would do, and `otherwise` what fits if more may change.

    Raises:
        ValueError: When a number is below 1 or too small for the loss, or a name is not known.
    """
    recipe, speed = Recipe(recipe) if isinstance(recipe, str) else recipe, speed or Speed.of(None)
    samples = _of_one_rank(recipe, effective_batch, budget_bytes)
    recipes = [replace(recipe, precision=n) for n in precisions or (speed.autocast, "bf16")]
    tell("part 1 of 3: the model's stages, with one sample and with two")
    same, not_tried, is_chosen = judge(recipe), dict[str, str](), precisions is not None
    sizes, wanted = possible_micro_batches(samples, same), optimizers or _optimizers(recipe)
    take = lambda one: Parts.of(one, wanted, speed, stages).kept(same.unlike)  # noqa: E731
    steps = taken_apart(recipes, take, not_tried, is_chosen=is_chosen)
    found = [*steps] if is_chosen else [next(steps)]
    asked = product(precisions or [str(found[0].recipe.precision)], optimizers or OPTIMIZERS[:1])
    search = _Search({}, budget_bytes, speed, host)
    seen = not_tried, same, found[0].one.why_whole, found[0].one.replaced
    fitted = Fit(recipe, budget_bytes, effective_batch, (), tuple(asked), *seen)
    tell(f"part 2 of 3: a schedule for each of {len(sizes)} micro-batches, and each optimizer")
    fitted = search.extended(fitted, found, sizes)
    tell("part 3 of 3: the best of them, predicted in whole")
    fitted = search.verified(fitted)
    other = fitted.otherwise
    if is_chosen or fitted.best or (other and not other.is_another_batch):
        return fitted  # bfloat16 throughout would change the training more
    tell("nothing fits that changes less: the same in bfloat16 throughout")
    return search.verified(search.extended(fitted, [*steps], sizes), is_least_known=True)


def _optimizers(recipe: Recipe) -> list[str]:
    is_divided = recipe.shard not in (None, *COPYING)
    return [name for name in OPTIMIZERS if not (is_divided and name in UNDIVIDED)]


def _of_one_rank(recipe: Recipe, effective_batch: int, budget_bytes: int) -> int:
    """Return how many samples one rank gets; tensor-parallel ranks each get all of them."""
    together = 1 if recipe.shard == Shard.TP else recipe.ranks
    if effective_batch < 1 or budget_bytes < 1 or effective_batch % together:
        raise ValueError(
            f"effective_batch (={effective_batch}) and budget_bytes (={budget_bytes}) must be at "
            f"least 1, and effective_batch a multiple of the ranks with samples of their own "
            f"(={together})."
        )
    return effective_batch // together


@lru_cache(maxsize=64)  # each choice asks several times
def _at(parts: Parts, micro_batch: int) -> Profile:
    """Continue the straight line through one and two samples."""

    def line(first: Any, second: Any) -> Any:
        if isinstance(first, Stage) and isinstance(second, Stage):
            return between(first, second)
        if first is None or second is None or isinstance(first, bool):
            return None if second is None else first
        return max(0, first + (second - first) * (micro_batch - 1))

    def between(first: Any, second: Any) -> Any:
        places = ("source", "target", "takers", "needed_by", "held_to")
        names = [field.name for field in fields(first) if field.name not in places]
        values = {n: line(getattr(first, n), getattr(second, n)) for n in names}
        if "handed_on_bytes" in values:
            values["handed_on_bytes"] = min(values["handed_on_bytes"], values["saved_bytes"])
            values["released_bytes"] = min(values["released_bytes"], values["input_bytes"])
        return replace(first, **values)

    one, two = parts.one, parts.two
    stages: list[Stage] = [between(a, b) for a, b in zip(one.stages, two.stages, strict=True)]
    skips: list[Skip] = [between(a, b) for a, b in zip(one.skips, two.skips, strict=True)]
    for (index, room), after in zip(enumerate(outputs(stages)), stages[1:], strict=False):
        shared = sum(s.num_bytes for s in skips if s.source == index and s.is_boundary)
        released = max(0, min(after.released_bytes, room - shared))  # ragged samples: no line
        stages[index + 1] = replace(after, released_bytes=released)
    calls = [a.between_samples(b, micro_batch) for a, b in zip(one.calls, two.calls, strict=True)]
    return replace(one, stages=tuple(stages), skips=tuple(skips), calls=tuple(calls))


@dataclass(frozen=True)
class _Search:
    """The parts of a step by precision, and what its plans may take."""

    parts: dict[str, Parts]
    budget: int
    speed: Speed
    host: Host | None

    def candidate(self, precision: str, optimizer: str, micro_batch: int, many: int) -> Candidate:
        """Solve for what the model and its update leave of the budget, `many` samples in all."""
        chosen = Candidate(precision, optimizer, micro_batch, many // micro_batch, 0.0, 0, 0.0)
        always = self._held(chosen)[1]
        try:
            if self._update(chosen).peak_bytes <= self.budget:
                return self._planned(chosen, self._solved(chosen, self.budget - always))
        except ValueError:
            pass  # no plan fits
        return replace(chosen, peak_bytes=self._least_bytes(chosen))

    def extended(self, found: Fit, steps: Sequence[Parts], sizes: Sequence[int]) -> Fit:
        """Add a candidate for each choice in the precisions of these steps."""
        self.parts.update({str(step.recipe.precision): step for step in steps})
        choices = [(step, *rest) for step in steps for rest in product(step.updates, sizes)]
        solved = (self.candidate(str(s.recipe.precision), o, n, sizes[-1]) for s, o, n in choices)
        more = marked(solved, found.effective_batch, found.sameness)
        return replace(found, candidates=(*found.candidates, *more))

    def verified(self, found: Fit, *, is_least_known: bool = False) -> Fit:
        """Predict the best candidate in whole; where it does not fit, leave its plan less room.

        If all of its plans turn out too large, the next candidate is looked at. If none that was
        asked for fits, the least that they need is predicted.
        """
        tries = Counter[tuple[str, str, int]]()
        while True:
            if found.best is None and not is_least_known:
                found, is_least_known = self._with_least(found), True
            best = found.best or found.otherwise
            if best is None or best.is_verified or best.plan is None:
                return found
            changed = self._in_whole(found, best, best.plan)
            over = changed.peak_bytes - self.budget
            if over > 0:
                name = best.precision, best.optimizer, best.micro_batch
                tries[name] += 1
                changed = replace(changed, plan=None, is_verified=False)
                if tries[name] < _TRIES:
                    changed = self._with_less(best, best.plan, over)
            found = _with(found, best, changed)

    def _update(self, candidate: Candidate) -> Update:
        return self.parts[candidate.precision].updates[candidate.optimizer]

    def _held(self, candidate: Candidate) -> tuple[Profile, int]:
        """Profile of a candidate's micro-batch, and the bytes that are held beside it."""
        at = _at(self.parts[candidate.precision], candidate.micro_batch)
        always = self._update(candidate).resident_bytes
        if candidate.accumulation > 1:  # from the second micro-batch on all gradients are there
            always += sum(stage.gradient_bytes for stage in at.stages)
            at = replace(at, stages=tuple(replace(s, gradient_bytes=0) for s in at.stages))
        return at, always

    def _solved(self, candidate: Candidate, budget: int) -> Plan:
        at, _ = self._held(candidate)
        if self.host is None:
            return solve(at, budget_bytes=budget)
        return solve_with_host(at, budget_bytes=budget, host=self.host)

    def _least_bytes(self, candidate: Candidate) -> int:
        """Add up the peak with the plan that needs least."""
        at, always = self._held(candidate)
        return max(always + self._smallest(at).peak_bytes, self._update(candidate).peak_bytes)

    def _smallest(self, at: Profile) -> Plan:
        return smallest(at) if self.host is None else smallest_with_host(at, self.host)

    def _planned(self, candidate: Candidate, plan: Plan) -> Candidate:
        """Return a candidate with a plan, and with the added-up seconds and bytes of its update."""
        update, overhead = self._update(candidate), max(0.0, plan.overhead)
        peak = max(self._held(candidate)[1] + plan.peak_bytes, update.peak_bytes)
        launches = self.parts[candidate.precision].one.launches
        launching = launches * self.speed.launch_seconds * (1 + overhead)
        seconds = candidate.accumulation * max(plan.seconds, launching)
        seconds += update.touched_bytes / self.speed.bytes_per_second
        return replace(candidate, plan=plan, peak_bytes=peak, seconds=seconds, overhead=overhead)

    def _in_whole(self, found: Fit, candidate: Candidate, plan: Plan) -> Candidate:
        peak = predicted_peak(found.recipe_of(candidate), plan, self._update(candidate))
        return replace(candidate, peak_bytes=peak, is_verified=True)

    def _with_least(self, found: Fit) -> Fit:
        """Predict in whole what needs least of what was asked for, each with its smallest plan.

        Neither the choice nor the plans depend on the budget or on the speed of the device. So a
        peak that is named here is enough the next time, whatever else is tried before.
        """
        asked = [c for c in found.candidates if (c.precision, c.optimizer) in found.asked]
        added_up = [(self._least_bytes(candidate), candidate) for candidate in asked]
        enough, too_large = math.inf, dict[tuple[str, str], int]()
        for least_bytes, candidate in sorted(added_up, key=lambda one: one[0])[:_LEAST]:
            if least_bytes >= enough:
                break
            kind = candidate.precision, candidate.optimizer
            if candidate.accumulation > 1 and candidate.micro_batch > too_large.get(kind, math.inf):
                continue  # more samples at once need no less
            plan = self._smallest(self._held(candidate)[0])
            least = self._in_whole(found, self._planned(candidate, plan), plan)
            enough = min(enough, least.peak_bytes)
            if least.peak_bytes > self.budget:
                least = replace(least, plan=None)
                if candidate.accumulation > 1:
                    too_large[kind] = candidate.micro_batch
            else:  # it recomputes more than is needed
                room = plan.peak_bytes + self.budget - least.peak_bytes
                faster = self._solved(candidate, room)
                other = self._in_whole(found, self._planned(candidate, faster), faster)
                least = other if other.peak_bytes <= self.budget else least
            found = _with(found, candidate, least)
        return found

    def _with_less(self, candidate: Candidate, plan: Plan, over: int) -> Candidate:
        room = min((plan.budget_bytes or 0) - over, plan.peak_bytes - over)
        try:
            return self._planned(candidate, self._solved(candidate, room))
        except ValueError:
            return replace(candidate, peak_bytes=candidate.peak_bytes + over, plan=None)


def _with(found: Fit, candidate: Candidate, changed: Candidate) -> Fit:
    others = (changed if one is candidate else one for one in found.candidates)
    return replace(found, candidates=tuple(others))
