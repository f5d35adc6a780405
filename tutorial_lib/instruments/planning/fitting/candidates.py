"""The candidates for a budget, the fastest of them, and how they print."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from tutorial_lib.instruments.planning.chain.plan import Plan
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.units import human_bytes, human_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = 12
# Other arithmetic than float32 under autocast: the losses differ from its losses.
_ROUNDED = {
    "bf16": "bf16 rounds parameters and states to 16 bits",
    "adamw-8bit": "adamw-8bit rounds its states to 8 bits",
}


@dataclass(frozen=True)
class Candidate:
    """One way to train: a recipe, a plan, and what they cost.

    Args:
        precision: As in `Recipe`.
        optimizer: As in `Recipe`.
        micro_batch: Samples in memory at once.
        accumulation: Micro-batches for an update.
        seconds: Predicted time of an update.
        peak_bytes: Predicted peak of the step.
        overhead: Time that recomputation adds to forward and backward, as a share.
        plan: What is kept and what is recomputed; `None` where nothing fits.
        is_verified: Whether the whole step was predicted with its plan, and not only added up.
    """

    precision: str
    optimizer: str
    micro_batch: int
    accumulation: int
    seconds: float
    peak_bytes: int
    overhead: float
    plan: Plan | None = None
    is_verified: bool = False

    @property
    def fits(self) -> bool:
        """Whether there is a plan for it."""
        return self.plan is not None


@dataclass(frozen=True)
class Fit:
    """The candidates for a budget, the fastest first.

    Args:
        recipe: What was given: the model and its sizes.
        budget_bytes: The budget.
        effective_batch: Samples for each update.
        candidates: All that were tried.
    """

    recipe: Recipe
    budget_bytes: int
    effective_batch: int
    candidates: tuple[Candidate, ...]

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.recipe.model

    def recipe_of(self, candidate: Candidate) -> Recipe:
        """Recipe of a candidate, without its plan."""
        names = ("precision", "optimizer", "micro_batch", "accumulation")
        return replace(self.recipe, **{name: getattr(candidate, name) for name in names})

    @property
    def best(self) -> Candidate | None:
        """The fastest that fits, or `None`."""
        fitting = [candidate for candidate in self.candidates if candidate.fits]
        return min(fitting, key=lambda c: (c.seconds, c.peak_bytes), default=None)

    @property
    def smallest_bytes(self) -> int:
        """The smallest budget into which any of the candidates fits."""
        return min(
            candidate.peak_bytes for candidate in self.candidates if not self.best or candidate.fits
        )

    def figure(self) -> Figure:
        """Draw the candidates: time of an update against peak."""
        from tutorial_lib.instruments.figures.comparisons import fits

        return fits(self)

    def as_data(self) -> dict[str, Any]:
        """Answer as plain data, for JSON."""
        ranked = [_as_data(candidate) for candidate in self._ranked()]
        best = self.best
        return {
            "model": self.model,
            "budget_bytes": self.budget_bytes,
            "effective_batch": self.effective_batch,
            "fits": best is not None,
            "best": None if best is None else _as_data(best),
            "smallest_bytes": self.smallest_bytes,
            "choices": ranked,
        }

    def _ranked(self) -> list[Candidate]:
        return sorted(
            self.candidates, key=lambda c: (not c.fits, c.seconds if c.fits else c.peak_bytes)
        )

    def __str__(self) -> str:
        return "\n".join(self._lines())

    __repr__ = __str__

    def _lines(self) -> Iterator[str]:
        budget = human_bytes(self.budget_bytes)
        head = f"{self.model}, {self.effective_batch} samples an update, {budget}"
        if self.best is None:
            yield f"{head}: nothing fits (predicted)."
            yield f"The smallest budget that is enough: {human_bytes(self.smallest_bytes)}."
        else:
            yield f"{head} (predicted):"
        yield (
            f"  {'precision':<10}{'optimizer':<13}{'batch':>12}{'recompute':>11}"
            f"{'peak':>10}{'time':>9}"
        )
        ranked = self._ranked()
        for candidate in ranked[:_SHOWN]:
            batch = f"{candidate.micro_batch} x {candidate.accumulation}"
            time = human_seconds(candidate.seconds) if candidate.fits else "-"
            extra = f"{candidate.overhead:+.1%}" if candidate.fits else "-"
            precision, optimizer = (
                f"{name}*" if name in _ROUNDED else name
                for name in (candidate.precision, candidate.optimizer)
            )
            yield (
                f"  {precision:<10}{optimizer:<13}{batch:>12}{extra:>11}"
                f"{human_bytes(candidate.peak_bytes):>10}{time:>9}"
            )
        if len(ranked) > _SHOWN:
            yield f"  and {len(ranked) - _SHOWN} more"
        tried = {
            name for candidate in ranked for name in (candidate.precision, candidate.optimizer)
        }
        if rounded := [words for name, words in _ROUNDED.items() if name in tried]:
            yield f"  * is another training: {'; '.join(rounded)}."
        if self.best is not None and any(not candidate.fits for candidate in ranked[:_SHOWN]):
            yield "  - does not fit."
        if self.best is not None:
            yield "The first row's plan for one micro-batch, without parameters and states:"
            yield str(self.best.plan)


def _as_data(candidate: Candidate) -> dict[str, Any]:
    data = {f.name: getattr(candidate, f.name) for f in fields(candidate) if f.name != "plan"}
    plan = candidate.plan
    tree = None if plan is None else {"tree": plan.tree, "names": plan.names}
    return {**data, "fits": candidate.fits, "plan": tree}
