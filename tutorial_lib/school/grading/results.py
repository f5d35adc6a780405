"""What grading found out about one submission."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tutorial_lib.school.grading.judging.judge import Verdict
from tutorial_lib.school.grading.lab import Lab
from tutorial_lib.school.grading.submissions.look import NOT_PYTHON


@dataclass(frozen=True)
class Graded:
    """One submission, graded or not.

    Args:
        name: Relative to the class's folder.
        status: `graded`, or why not, in a word or two.
        verdicts: By check cell; empty when not graded.
        reason: One sentence when not graded.
        notes: What the student should know about the notebook.
        findings: Why a person should read an answer, by exercise: for the instructor alone.
        sources: The student's own code, by exercise.
        seconds: What grading it took.
        seed: The one that the checks' cases were drawn from.
        alone: Whether no other submission was graded at the same time.
        file: Names the content that was graded; empty where it should be graded again.
        handed_in: When, in ISO 8601.
        dated_by: How that is known.
    """

    name: str
    status: str
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    reason: str = ""
    notes: Sequence[str] = ()
    findings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    seed: int | None = None
    alone: bool = False
    file: str = ""
    handed_in: str = ""
    dated_by: str = ""

    @property
    def ran_out_of_time(self) -> bool:
        """Tell whether a result may say more of a busy machine than of the submission."""
        late = any(verdict.timed_out for verdict in self.verdicts.values())
        return late or self.status == "timed out"

    def with_seen(self, lab: Lab, seen: Mapping[str, Any]) -> Graded:
        """Add findings and notes, as `submissions.look` gives them."""
        lines: dict[str, list[str]] = {}
        for number, found in seen["findings"].items():
            for line, what, why in found:
                # a slip that cost all points is nothing to read
                if what != NOT_PYTHON or self.points(lab, number):
                    place = f"line {line}" if line else "a cell beside the answer"
                    lines.setdefault(number, []).append(f"{place}: {what}: {why}")
        notes = [*self.notes, *seen.get("notes", ())]
        return replace(self, findings=lines, notes=notes)

    def points(self, lab: Lab, exercise: str | None = None) -> int:
        """Sum the points of the checks that passed, of one exercise or of all."""
        return sum(
            check.points
            for check in lab.checks
            if exercise in (None, check.exercise)
            and (verdict := self.verdicts.get(check.id))
            and verdict.passed
        )
