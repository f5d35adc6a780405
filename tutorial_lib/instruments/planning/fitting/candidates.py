"""The candidates for a budget, the best of them, and how they print."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tutorial_lib.instruments.planning.chain.plan import Plan
from tutorial_lib.instruments.segments.sameness import Sameness
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.units import human_bytes, human_seconds

_SHOWN = 12
_NEAR = 0.02  # seconds nearer to each other than this are the same to a roofline
_SMALLER = "smaller micro-batch"
# What changes the training, the least first. All else is the same mathematics.
_CHANGES = {
    "adamw-8bit": "adamw-8bit rounds its states to 8 bits",
    "bf16": "bf16 rounds weights and states to 16 bits, and loses updates below 1/512 of a weight",
    _SMALLER: "a smaller micro-batch, for the reason below",
}


@dataclass(frozen=True)
class Candidate:
    """One way to train: a recipe, a plan, and what they cost."""

    precision: str  # as in `Recipe`, as are the next three
    optimizer: str
    micro_batch: int
    accumulation: int
    seconds: float  # predicted, of an update
    peak_bytes: int  # predicted, of the step
    overhead: float  # time that recomputation adds to forward and backward, as a share
    plan: Plan | None = None  # what is kept and what is recomputed; `None` where nothing fits
    # whether the whole step was predicted with its plan, and not only added up; with the plan that
    # needs least, where it has none that fits
    is_verified: bool = False
    # whether its micro-batch is smaller than the batch, and that matters
    is_another_batch: bool = False

    @property
    def fits(self) -> bool:
        """Whether there is a plan for it."""
        return self.plan is not None

    @property
    def host_bytes(self) -> int:
        """Bytes that its plan has waiting on the host."""
        return self.plan.host_bytes if self.plan else 0

    @property
    def changes(self) -> tuple[str, ...]:
        """Its choices that change the training, the smallest change first."""
        chosen = {self.precision, self.optimizer, _SMALLER if self.is_another_batch else ""}
        return tuple(name for name in _CHANGES if name in chosen)

    def beats(self, other: Candidate) -> bool:
        """Whether it is no worse in bytes, seconds and changes, and better in one of them."""
        pairs = zip(self._costs, other._costs, strict=True)
        return self._costs != other._costs and all(mine <= theirs for mine, theirs in pairs)

    @property
    def _costs(self) -> tuple[Any, ...]:
        return self.peak_bytes, self.seconds, frozenset(self.changes)


@dataclass(frozen=True)
class Fit:
    """The candidates for a budget."""

    recipe: Recipe  # what was given: the model and its sizes
    budget_bytes: int
    effective_batch: int  # samples for each update
    candidates: tuple[Candidate, ...]  # all that were tried
    asked: tuple[tuple[str, str], ...]  # precision and optimizer of those that may be the best
    # precisions in which the step does not run, and why
    not_tried: Mapping[str, str] = field(default_factory=dict)
    # what recomputing and smaller micro-batches make of the training
    sameness: Sameness = field(default_factory=Sameness)
    why_whole: str = ""  # why nothing can be recomputed, where that is so
    replaced: str = ""  # what of the model's own a plan takes the place of, in words, where it does

    def recipe_of(self, candidate: Candidate) -> Recipe:
        """Recipe of a candidate, without its plan."""
        names = ("precision", "optimizer", "micro_batch", "accumulation")
        return replace(self.recipe, **{name: getattr(candidate, name) for name in names})

    @property
    def best(self) -> Candidate | None:
        """The best that fits of what was asked for, or `None`.

        That is the one which changes the training least. Of several, it is the fastest; and where
        seconds are nearly the same, the least recomputation, then the largest micro-batch.
        """
        return _best(self._asked_for)

    @property
    def otherwise(self) -> Candidate | None:
        """The best that fits of all that were tried: what to ask for where `best` is `None`."""
        return _best(self.candidates)

    @property
    def front(self) -> list[Candidate]:
        """What fits and is beaten by none in bytes, seconds and changes; the fewest changes first.

        `best` comes first, or `otherwise` where nothing fits of what was asked for.
        """
        fitting = [candidate for candidate in self.candidates if candidate.fits]
        front = [c for c in fitting if not any(other.beats(c) for other in fitting)]
        first = self.best or self.otherwise
        beaten = front if first is None else [*front, first]
        each = {id(candidate): candidate for candidate in beaten}.values()
        return sorted(each, key=lambda c: (c is not first, *_order(c)))

    @property
    def smallest_bytes(self) -> int | None:
        """A budget that is enough, where this one is not: the least that was predicted in whole.

        With it, and with any larger one, `fit` finds a plan of what was asked for. `None` where
        something fits already: then no smaller budget was looked for.
        """
        if self.best is not None:
            return None
        return min(c.peak_bytes for c in self._asked_for if c.is_verified)

    @property
    def _asked_for(self) -> list[Candidate]:
        return [c for c in self.candidates if (c.precision, c.optimizer) in self.asked]

    def as_data(self) -> dict[str, Any]:
        """Answer as plain data, for JSON."""
        best, front = self.best, self.front
        otherwise = None if best else self.otherwise
        others = sorted((c for c in self.candidates if c not in front), key=_order)
        ranked = [_as_data(c) | {"on_front": c in front} for c in (*front, *others)]
        return {
            "model": self.recipe.model,
            "budget_bytes": self.budget_bytes,
            "effective_batch": self.effective_batch,
            "fits": best is not None,
            "best": None if best is None else _as_data(best),
            "otherwise": None if otherwise is None else _as_data(otherwise),
            "smallest_bytes": self.smallest_bytes,
            "not_tried": dict(self.not_tried),
            "why_whole": self.why_whole,
            "sameness": self.sameness.as_data(),
            "choices": ranked,
        }

    def __str__(self) -> str:
        enough = self.smallest_bytes or 0
        return self.in_words(f"budget_bytes={enough:_} ({human_bytes(enough, up=True)})")

    __repr__ = __str__

    def in_words(self, enough: str) -> str:
        """Return the answer as text; `enough` is what to ask for where nothing fits."""
        return "\n".join(self._lines(enough))

    def _lines(self, enough: str) -> Iterator[str]:
        best, otherwise = self.best, self.otherwise
        head = (
            f"{self.recipe.model}, {self.effective_batch} samples an update, "
            f"{human_bytes(self.budget_bytes)}"
        )
        if best is None:
            kinds = " or ".join(", ".join(kind) for kind in self.asked)
            yield f"{head}: nothing fits with {kinds} (predicted)."
            yield f"The smallest budget that is enough: {enough}"
            if otherwise is not None:
                yield f"It fits where {' and '.join(otherwise.changes)} may change the training:"
        else:
            yield f"{head} (predicted):"
        shown = self.front or sorted(self.candidates, key=_order)
        moves = any(candidate.host_bytes for candidate in shown)
        yield (
            f"  {'precision':<10}{'optimizer':<13}{'batch':>12}{'recompute':>11}"
            f"{'peak':>10}" + (f"{'host':>10}" if moves else "") + f"{'time':>9}"
        )
        for candidate in shown[:_SHOWN]:
            yield _row(candidate, moves)
        if len(shown) > _SHOWN:
            yield f"  and {len(shown) - _SHOWN} more"
        if beaten := sum(c.fits for c in self.candidates) - len(self.front):
            yield f"  Not shown: {beaten} that fit, but are better in nothing."
        if self.why_whole:
            yield f"  No row recomputes anything. {self.why_whole}"
        for precision, reason in self.not_tried.items():
            yield f"  {precision} was not tried, as the step does not run in it: {reason}"
        changes = {name for candidate in shown for name in candidate.changes}
        if changes:
            words = [words for name, words in _CHANGES.items() if name in changes]
            yield f"  * changes the training: {'; '.join(words)}."
        for said in [*self.replaced.splitlines(), *str(self.sameness).splitlines()]:
            yield from textwrap.wrap(said, 94, initial_indent="  ", subsequent_indent="  ")
        if best is not None:
            yield "The first row's plan for one micro-batch, without parameters and states:"
            yield str(best.plan)


def marked(
    candidates: Iterable[Candidate], effective_batch: int, sameness: Sameness
) -> Iterator[Candidate]:
    """Mark those whose micro-batch is smaller than the batch, where that changes the training."""
    matters = sameness.accumulated == "another"
    for candidate in candidates:
        is_smaller = candidate.micro_batch < effective_batch
        yield replace(candidate, is_another_batch=matters and is_smaller)


def _best(candidates: Sequence[Candidate]) -> Candidate | None:
    fitting = [candidate for candidate in candidates if candidate.fits]
    least = min(map(_changed, fitting), default=0)
    alike = [candidate for candidate in fitting if _changed(candidate) == least]
    limit = (1 + _NEAR) * min((candidate.seconds for candidate in alike), default=0.0)
    near = [candidate for candidate in alike if candidate.seconds <= limit]
    return min(near, key=lambda c: (round(c.overhead, 2), -c.micro_batch, c.seconds), default=None)


def _changed(candidate: Candidate) -> int:
    """Return a rank of how much the training changes; a smaller micro-batch ranks highest."""
    return sum(2**place for place, name in enumerate(_CHANGES) if name in candidate.changes)


def _order(candidate: Candidate) -> tuple[Any, ...]:
    cost = candidate.seconds if candidate.fits else candidate.peak_bytes
    return not candidate.fits, _changed(candidate), cost


def _row(candidate: Candidate, moves: bool) -> str:
    batch = f"{candidate.micro_batch} x {candidate.accumulation}"
    batch += "*" if candidate.is_another_batch else ""
    time = human_seconds(candidate.seconds) if candidate.fits else "-"
    extra = f"{candidate.overhead:+.1%}" if candidate.fits else "-"
    precision, optimizer = (
        f"{name}*" if name in _CHANGES else name
        for name in (candidate.precision, candidate.optimizer)
    )
    return (
        f"  {precision:<10}{optimizer:<13}{batch:>12}{extra:>11}"
        f"{human_bytes(candidate.peak_bytes):>10}"
        + (f"{human_bytes(candidate.host_bytes):>10}" if moves else "")
        + f"{time:>9}"
    )


def _as_data(candidate: Candidate) -> dict[str, Any]:
    data = {f.name: getattr(candidate, f.name) for f in fields(candidate) if f.name != "plan"}
    plan = candidate.plan
    tree = None if plan is None else {"tree": plan.tree, "names": plan.names}
    data["host_bytes"] = candidate.host_bytes
    return {**data, "fits": candidate.fits, "changes": candidate.changes, "plan": tree}
