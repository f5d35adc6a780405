"""Roster of a class: students by name, folder, id or e-mail, and whose a submission is."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tutorial_lib.school.grading.errors import GradingError
from tutorial_lib.school.grading.report.tables import read_table

# In these spellings, the first that is there and filled in: Canvas' and Moodle's exports fit.
_NAME = ("name", "student", "full name")
_FOLDER = ("folder", "username", "sis login id")
_ID = ("sis user id", "student id", "id number", "id")  # Canvas' "ID" is none of the school's
_EMAIL = ("email", "e-mail", "email address", "e-mail address")
# What Moodle and Canvas call the files of a class that they pack for an instructor.
_MOODLE = re.compile(r"(?P<name>.+?)_\d+_assignsubmission_.*")
_CANVAS = re.compile(r"(?P<name>[^_/]+)_(?:LATE_)?(?P<id>\d+)_\d+_.*")


@dataclass(frozen=True)
class Student:
    """One student; what is not known is empty."""

    name: str  # as the roster has it; without one, as the folder or file is called
    folder: str = ""  # how the folder or file is called
    id: str = ""
    email: str = ""
    canvas_id: str = ""  # Canvas' own number, as its exports and the files that it packs have it
    section: str = ""


def student_key(name: str) -> str:
    """Name the student of a submission: its folder, or else what its file is called."""
    folder, slash, _ = name.partition("/")
    return folder if slash else re.sub(r"\.ipynb$", "", folder, flags=re.IGNORECASE)


class Roster:
    """The students of a class; without a file, those who handed something in.

    Args:
        path: A CSV file with a column for the name or the folder; id and e-mail may stand beside.

    Raises:
        GradingError: When it is no such file, or two lines cannot be told apart.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.students: list[Student] = []
        self._by_key: dict[str, Student] = {}
        if path is None:
            return
        for number, cells in read_table(path, (*_NAME, "first name", *_FOLDER)):
            if student := _student(cells):
                self._add(student, number)
        if not self.students:
            raise GradingError(f"{path} names no student: give a line for each.")

    def _add(self, student: Student, number: int) -> None:
        keys = (student.name, student.folder, student.id, student.email, student.canvas_id)
        for key in {_normal(key) for key in keys if key}:
            if key in self._by_key:
                raise GradingError(
                    f"line {number} of {self.path} has {key!r}, as an earlier line has: each "
                    "student needs a name, a folder and an id of their own."
                )
            self._by_key[key] = student
        self.students.append(student)

    def find(self, name: str) -> Student | None:
        """Find whose submission this is; None when the roster does not say."""
        key = student_key(name)
        packed = _MOODLE.fullmatch(key) or _CANVAS.fullmatch(key)
        parts = packed.groupdict() if packed else {}
        if self.path is None:
            return Student(parts.get("name", key), key, canvas_id=parts.get("id", ""))
        for word in (key, *parts.values()):
            if student := self._by_key.get(_normal(word)):
                return student
        return None


def _student(cells: Mapping[str, str]) -> Student | None:
    def first(names: tuple[str, ...]) -> str:
        return next((cells[name] for name in names if cells.get(name)), "")

    parts = (cells.get("first name", ""), first(("last name", "surname")))
    folder = first(_FOLDER)
    name = first(_NAME) or " ".join(part for part in parts if part) or folder
    if not name or name.lower() == "points possible":  # the second line of Canvas' export
        return None
    canvas_id = cells.get("id", "") if "sis user id" in cells else ""
    return Student(name, folder, first(_ID), first(_EMAIL), canvas_id, cells.get("section", ""))


def _normal(text: str) -> str:
    # macOS writes accents as characters of their own
    return unicodedata.normalize("NFC", text).strip().casefold()
