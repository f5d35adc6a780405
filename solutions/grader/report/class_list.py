"""Rows of a class: results, students and marks by hand; the score sheets, also for an LMS."""

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from solutions.grader import GradingError, words
from solutions.grader.lab import Lab
from solutions.grader.report.roster import Roster, Student, read_table, readable, student_key
from solutions.grader.results import Graded

NOTHING = "nothing handed in"
_NAMED = 10  # names that a sentence lists
# As Canvas exports its gradebook, and wants it back. A student is found by one of the first four.
_CANVAS = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
# As Moodle exports grades; its import asks which column says who, and which holds the grade.
_MOODLE = ["First name", "Last name", "ID number", "Email address"]
_STUDENT = ("student", "name", "folder", "id", "email")


@dataclass(frozen=True)
class Mark:
    """What an instructor writes about an answer."""

    points: float | None  # None leaves the points of the checks
    comment: str


@dataclass(frozen=True)
class Entry:
    """One row of the class."""

    result: Graded
    student: Student | None = None  # None when the roster does not say
    marks: Mapping[str, Mark] = field(default_factory=dict)  # by exercise; "" is the whole lab

    @property
    def name(self) -> str:
        """Return the student's name, or the name of the file where the student is not known."""
        return self.student.name if self.student else self.result.name

    def by_hand(self, exercise: str) -> float | None:
        """Return the points that an instructor gave; None where the checks' count."""
        return self.marks[exercise].points if exercise in self.marks else None

    def grade(self, lab: Lab, exercise: str | None = None) -> float | None:
        """Return the points of one exercise or of all; None where nobody graded anything."""
        if exercise:
            points = self.by_hand(exercise)
            return self.result.grade(lab, exercise) if points is None else points
        grades = [self.grade(lab, one) for one in lab.exercises]
        return sum(one or 0 for one in grades) if any(one is not None for one in grades) else None


def class_entries(
    results: Sequence[Graded],
    roster: Roster,
    names: Sequence[str] = (),
    marks: Mapping[str, Mapping[str, Mark]] | None = None,
) -> list[Entry]:
    """List the rows of a class; behind them the students of whom no file is among `names`.

    `results` are of what was handed in, and `names` of all files. The marks are by the name of a
    row, as `read_marks` returns them.
    """
    marks = marks or {}
    there = [roster.find(name) for name in names]
    rows = [(one, roster.find(one.name)) for one in results]
    for one in roster.students:
        if one not in there:
            name = one.folder or one.name
            rows.append((Graded(name, NOTHING, reason="No file was found."), one))
    return [Entry(one, student, marks.get(one.name, {})) for one, student in rows]


def roster_warnings(entries: Sequence[Entry]) -> list[str]:
    """Tell the instructor which rows the roster and the files for an LMS do not fit."""
    rows = [(entry.result.name, entry.result.status, entry.student) for entry in entries]
    found = {
        "strangers": [name for name, _, one in rows if not one],
        "missing": [name for name, status, _ in rows if status == NOTHING],
        "not graded": [name for name, status, _ in rows if status not in ("graded", NOTHING)],
        "several rows": [one.name for one in several_rows(entries)],
    }
    few = {what: [*some[:_NAMED], *["..."] * (len(some) > _NAMED)] for what, some in found.items()}
    named = [(what, len(some), ", ".join(few[what])) for what, some in found.items() if some]
    return [words(what, count=count, names=names) for what, count, names in named]


def several_rows(entries: Sequence[Entry]) -> list[Student]:
    """List the students who have more than one row, each once."""
    rows = Counter(entry.student for entry in entries if entry.student)
    return [student for student, count in rows.items() if count > 1]


def sheets(lab: Lab, entries: Sequence[Entry]) -> dict[str, list[dict[str, Any]]]:
    """Return the lines of each score sheet: ours, and what Canvas and Moodle import.

    Canvas' begins with a line of maxima. Students with several rows are in ours alone.
    """
    first = dict.fromkeys(_CANVAS, "") | {"Student": "    Points Possible", lab.name: lab.maximum}
    ours, canvas, moodle = [_row(lab, entry) for entry in entries], [first], list[dict[str, Any]]()
    several = several_rows(entries)
    for entry in entries:
        if (one := entry.student) and one not in several:
            grade: dict[str, Any] = {lab.name: entry.grade(lab)}
            about: tuple[str, ...] = (one.name, one.canvas_id, one.id, one.folder, one.section)
            canvas.append(dict(zip(_CANVAS, about, strict=True)) | grade)
            about = (*one.name.partition(" ")[::2], one.id, one.email)
            moodle.append(dict(zip(_MOODLE, about, strict=True)) | grade)
    return {"scores": ours, "scores-canvas": canvas, "scores-moodle": moodle}


def _row(lab: Lab, entry: Entry) -> dict[str, Any]:
    result, student, marks = entry.result, entry.student or Student(""), entry.marks
    said = [f"{n}: {mark.comment}".removeprefix(": ") for n, mark in marks.items() if mark.comment]
    row = {
        "name": result.name,
        "student": student.name,
        "id": student.id,
        "status": result.status,
        "points": entry.grade(lab),
        "maximum": lab.maximum,
        **{exercise: entry.grade(lab, exercise) for exercise in lab.exercises},
        "by checks": result.grade(lab),
        "by hand": " ".join(one for one in marks if entry.by_hand(one) is not None),
        "comment": " ".join(said),
        "review": " ".join(sorted(result.findings)),
        "reason": result.reason,
    }
    return {name: readable(v) if isinstance(v, str) else v for name, v in row.items()}


def read_marks(
    path: Path | None, lab: Lab, names: Sequence[str], roster: Roster
) -> dict[str, dict[str, Mark]]:
    """Return the marks in a CSV file, by the name of a row of the class, then by exercise.

    A GradingError has a sentence for each line that fits no student, exercise or range of points.
    """
    marks: dict[str, dict[str, Mark]] = {}
    keys = _keys(class_entries([Graded(name, "") for name in names], roster, names))
    faults = []
    for number, cells in read_table(path, _STUDENT) if path else ():
        who = next((cells[name] for name in _STUDENT if cells.get(name)), "")
        rows = keys.get(who.casefold(), [])
        try:
            if not rows:
                near = get_close_matches(who.casefold(), keys, 1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                raise ValueError(words("who", who=who, hint=hint))
            exercise, mark = _mark(lab, cells)
            if any(exercise in marks.get(name, {}) for name in rows):
                raise ValueError(words("twice", what=exercise or "the whole lab", who=who))
            for name in rows:
                marks.setdefault(name, {})[exercise] = mark
        except ValueError as error:
            faults.append(f"Line {number} of {path} {error}.")
    if faults:
        raise GradingError("\n".join([*faults, words("marks")]))
    return marks


def _keys(entries: Sequence[Entry]) -> dict[str, list[str]]:
    """List the row of each name, folder, id or e-mail; none where two students do."""
    keys: dict[str, dict[str, object]] = {}  # by row, whose it is
    for entry in entries:
        name, one = entry.result.name, entry.student
        more = (one.name, one.folder, one.id, one.email) if one else ()
        for word in {word.casefold() for word in (name, student_key(name), *more) if word}:
            keys.setdefault(word, {})[name] = one or name
    return {word: [*rows] for word, rows in keys.items() if len({*rows.values()}) == 1}


def _mark(lab: Lab, cells: dict[str, str]) -> tuple[str, Mark]:
    exercise, points = cells.get("exercise", ""), cells.get("points", "").replace(",", ".")
    if exercise and exercise not in lab.exercises:
        there = ", ".join(lab.exercises)
        raise ValueError(words("no exercise", exercise=exercise, lab=lab.name, exercises=there))
    comment, most, value = cells.get("comment", ""), lab.maximum_of(exercise), -1.0
    if not points:
        if not comment:
            raise ValueError(words("no mark"))
        return exercise, Mark(None, comment)
    if not exercise:
        raise ValueError(words("points of none"))
    with contextlib.suppress(ValueError):
        value = float(points)
    if not 0 <= value <= most:  # nor a nan
        raise ValueError(words("no number", points=cells["points"], most=most))
    return exercise, Mark(int(value) if value == int(value) else value, comment)
