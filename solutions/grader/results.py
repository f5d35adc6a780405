"""Results of grading: a verdict for each check, and all that was found about one submission."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from solutions.grader.lab import Lab
from solutions.grader.submissions.answers import NOT_PYTHON, Answers


@dataclass(frozen=True)
class Verdict:
    """The judge's decision about one check cell."""

    passed: bool
    evidence: str
    timed_out: bool = False


@dataclass(frozen=True)
class Graded:
    """Result of one submission, graded or not."""

    name: str  # relative to the class's folder
    status: str  # `graded`, or why not, in a word or two
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)  # by check cell
    reason: str = ""  # one sentence when not graded
    notes: Sequence[str] = ()  # what the student should know about the notebook
    findings: Mapping[str, Sequence[str]] = field(default_factory=dict)  # for the instructor alone
    sources: Mapping[str, str] = field(default_factory=dict)  # the student's own, by exercise
    structures: Mapping[str, Sequence[int]] = field(default_factory=dict)  # of these
    seconds: float = 0.0  # what judging it took
    seed: int | None = None  # the one that the checks' cases were drawn from
    alone: bool = False  # no other submission was judged at the same time
    file: str = ""  # digest of what was graded; empty where it should be graded again

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Graded:
        """Make a result from what `dataclasses.asdict` gave, and JSON gave back."""
        verdicts = {name: Verdict(**verdict) for name, verdict in data["verdicts"].items()}
        return cls(**{**data, "verdicts": verdicts})

    @property
    def ran_out_of_time(self) -> bool:
        """Tell whether a result may say more of a busy machine than of the submission."""
        late = any(verdict.timed_out for verdict in self.verdicts.values())
        return late or self.status == "timed out"

    def with_findings(self, lab: Lab, answers: Answers) -> Graded:
        """Add what a person should read in the answers."""
        lines: dict[str, list[str]] = {}
        for number, found in answers.findings.items():
            for line, what, why in found:
                # a slip that cost all points is nothing to read
                if what != NOT_PYTHON or self.points(lab, number):
                    place = f"line {line}" if line else "a cell beside the answer"
                    lines.setdefault(number, []).append(f"{place}: {what} {why}.")
        return replace(self, findings=lines, structures=answers.structures)

    def points(self, lab: Lab, exercise: str | None = None) -> int:
        """Sum the points of the checks that passed, of one exercise or of all."""
        checks = [one for one in lab.checks if exercise in (None, one.exercise)]
        passed = {name for name, verdict in self.verdicts.items() if verdict.passed}
        return sum(check.points for check in checks if check.id in passed)

    def grade(self, lab: Lab, exercise: str | None = None) -> int | None:
        """Return the points for a score sheet: None where nothing was graded, which is no 0."""
        return self.points(lab, exercise) if self.status == "graded" else None

    def message(self, lab: Lab, exercise: str) -> str:
        """Return what the first check of an exercise said that did not pass; empty when all did."""
        checks = [check.id for check in lab.checks if check.exercise == exercise]
        said = [self.verdicts[name] for name in checks if name in self.verdicts]
        failed = [verdict.evidence for verdict in said if not verdict.passed]
        return (failed[0] or "The check did not pass.") if failed else ""
