"""From results to the rows of a class: whose they are, how late, what the instructor overrode."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from tutorial_lib.school.grading.errors import GradingError
from tutorial_lib.school.grading.lab import Lab
from tutorial_lib.school.grading.report.overrides import OVERRIDES, Override, read_overrides
from tutorial_lib.school.grading.report.roster import Roster, Student, student_key
from tutorial_lib.school.grading.results import Graded

NOTHING = "nothing handed in"
_NAMED = 10  # names that a sentence lists
_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Rules:
    """How the instructor wants a class to be read.

    Args:
        overrides: A CSV file of points given by hand.
        roster: A CSV file of the students.
        deadline: What comes later is late; as in `2026-11-30T23:59`.
        take: Which of several notebooks in a student's folder has a row, `best` or `last`; every
            one when None.
    """

    overrides: Path | None = None
    roster: Path | None = None
    deadline: str | None = None
    take: str | None = None


@dataclass(frozen=True)
class Entry:
    """One row of the class.

    Args:
        result: What grading found.
        student: Whose it is; None when the roster does not say.
        late_days: Days behind the deadline that have begun.
        overrides: The instructor's points, by exercise.
        notes: What the student should know, beside the notes of the result.
    """

    result: Graded
    student: Student | None = None
    late_days: int = 0
    overrides: Mapping[str, Override] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def is_graded(self) -> bool:
        """Tell whether points say something: a check has judged, or the instructor has."""
        return self.result.status == "graded" or bool(self.overrides)

    @property
    def review(self) -> list[str]:
        """List the exercises whose answer a person should read."""
        return sorted(self.result.findings)

    def points(self, lab: Lab, exercise: str | None = None) -> float:
        """Sum the points of one exercise or of all; the instructor's stand for the checks'."""
        if exercise is None:
            return sum(self.points(lab, number) for number in lab.exercises)
        override = self.overrides.get(exercise)
        return override.points if override else self.result.points(lab, exercise)

    def message(self, lab: Lab, exercise: str) -> str:
        """Give what the first check of an exercise said that did not pass; empty when all did."""
        for check in lab.checks:
            verdict = self.result.verdicts.get(check.id)
            if check.exercise == exercise and verdict and not verdict.passed:
                return verdict.evidence or "The check did not pass."
        return ""


class ClassList:
    """The class as roster, overrides and deadline describe it; all is read before anything runs.

    Args:
        rules: What the instructor asked for.
        lab: The lab.
        names: Of all submissions in the folder, graded now or not.
        out: The folder of the report; `overrides.csv` in it applies where no other is given.

    Raises:
        GradingError: When one of the rules cannot be applied.
    """

    def __init__(self, rules: Rules, lab: Lab, names: Sequence[str], out: Path) -> None:
        self.rules, self.lab, self.names = rules, lab, names
        if rules.take not in (None, "best", "last"):
            raise GradingError(f"take is {rules.take!r}: choose best or last.")
        self.deadline = read_deadline(rules.deadline) if rules.deadline else None
        self.roster = Roster(rules.roster)
        path = rules.overrides or (out / OVERRIDES)
        given = rules.overrides or path.exists()
        self.overrides = read_overrides(path, lab, names) if given else {}

    def entries(self, results: Sequence[Graded]) -> list[Entry]:
        """Make the rows of the class; behind them those who handed in nothing."""
        found = [self._entry(result) for result in results]
        if self.rules.take:
            found = self._taken(found)
        there = [self.roster.find(name) for name in self.names]
        nothing = [
            Entry(Graded(one.folder or one.name, NOTHING, reason="No file was found."), one)
            for one in self.roster.students
            if one not in there
        ]
        return [*found, *nothing]

    def _entry(self, result: Graded) -> Entry:
        return Entry(
            result,
            self.roster.find(result.name),
            late_days(result.handed_in, self.deadline),
            self.overrides.get(result.name, {}),
            self._beside(result.name),
        )

    def _beside(self, name: str) -> list[str]:
        """Say what becomes of the other notebooks in a student's folder."""
        folder, slash, _ = name.partition("/")
        others = [one for one in self.names if one != name and one.startswith(f"{folder}/")]
        if not slash or not others:
            return []
        rule = f"this is the {self.rules.take} one" if self.rules.take else "each has a row"
        files = ", ".join(one.partition("/")[2] for one in others)
        return [f"The folder {folder} holds other notebooks ({files}): {rule}."]

    def _taken(self, entries: Sequence[Entry]) -> list[Entry]:
        best: dict[str, Entry] = {}
        for entry in entries:
            key = student_key(entry.result.name)
            if key not in best or self._rank(entry) >= self._rank(best[key]):
                best[key] = entry
        return list(best.values())

    def _rank(self, entry: Entry) -> tuple[float, float]:
        when = entry.result.handed_in
        time = datetime.fromisoformat(when).timestamp() if when else 0.0
        points = entry.points(self.lab) if entry.is_graded else -1.0
        return (points if self.rules.take == "best" else 0.0, time)

    def warnings(self, entries: Sequence[Entry]) -> list[str]:
        """Tell the instructor what the roster does not fit."""
        unknown = [one.result.name for one in entries if one.student is None]
        nothing = [one.result.name for one in entries if one.result.status == NOTHING]
        failed = [
            one.result.name for one in entries if not one.is_graded and one.result.status != NOTHING
        ]
        several = [student.name for student in several_rows(entries)]
        sentences = {
            "Submissions of nobody on the roster": unknown,
            "Students who handed in nothing": nothing,
            "Submissions not graded, with an empty cell in the Canvas and Moodle files": failed,
            "Students with several rows, left out of the Canvas and Moodle files (--take best or "
            "--take last chooses one)": several,
        }
        return [
            f"{what}: {len(names)} ({', '.join(names[:_NAMED])}{', ...' * (len(names) > _NAMED)})."
            for what, names in sentences.items()
            if names
        ]


def several_rows(entries: Sequence[Entry]) -> list[Student]:
    """List the students who have more than one row, each once."""
    rows = Counter(entry.student for entry in entries if entry.student)
    return [student for student, count in rows.items() if count > 1]


def read_deadline(text: str) -> datetime:
    """Read a date, as in `2026-11-30T23:59+01:00`; without a zone, it is this machine's.

    Raises:
        GradingError: When it is no such date.
    """
    try:
        return _aware(text)
    except ValueError as error:
        raise GradingError(
            f"the deadline {text!r} is no date: write it like 2026-11-30T23:59."
        ) from error


def late_days(when: str, deadline: datetime | None) -> int:
    """Count the days after a deadline that have begun; 0 without a date or a deadline."""
    if not when or deadline is None:
        return 0
    return max(0, math.ceil((_aware(when) - deadline) / _DAY))


def _aware(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.astimezone()
