"""Roster of a class: students by name, folder, id or e-mail, and whose a submission is.

With the CSV files that instructors write by hand, export, or open.
"""

import csv
import io
import itertools
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from solutions.grader import GradingError, words
from solutions.grader.submissions.class_folder import stem

# In these spellings, the first that is there and filled in: Canvas' and Moodle's exports fit.
_NAME = ("name", "student", "full name")
_FOLDER = ("folder", "username", "sis login id")
_ID = ("sis user id", "student id", "id number", "id")  # Canvas' "ID" is none of the school's
_EMAIL = ("email", "e-mail", "email address", "e-mail address")
# What Moodle and Canvas call the files of a class that they pack for an instructor.
_MOODLE = re.compile(r"(.+?)_(\d+)_assignsubmission_.*")
_CANVAS = re.compile(r"([^_/]+)_(?:LATE_)?(\d+)_\d+_.*")
_MOST_WORDS = 5  # of a name, in any order
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_]|\][^\x07]*\x07)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_COMPUTED = {*"=+-@\t\r\n"}  # so begins what a spreadsheet would compute


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
    return folder if slash else stem(folder)


class Roster:
    """The students of a class; without a CSV file, those who handed something in.

    It's a GradingError when a file has neither name nor folder, or one word for two students.
    """

    def __init__(self, path: Path | None) -> None:
        self.path, self.students = path, list[Student]()
        self._by_key: dict[str, Student] = {}
        self._by_name: dict[str, set[Student]] = {}
        for number, cells in read_table(path, (*_NAME, "first name", *_FOLDER)) if path else ():
            if student := _student(cells):
                self._add(student, number)
        if path and not self.students:
            raise GradingError(words("no student", path=path))

    def _add(self, student: Student, number: int) -> None:
        keys = (student.name, student.folder, student.id, student.email, student.canvas_id)
        for key in {_normal(key) for key in keys if key}:
            if key in self._by_key:
                raise GradingError(words("same key", number=number, path=self.path, key=key))
            self._by_key[key] = student
        for some in itertools.permutations(_words(student.name)[:_MOST_WORDS]):
            self._by_name.setdefault("".join(some), set()).add(student)
        self.students.append(student)

    def find(self, name: str) -> Student | None:
        """Find whose submission this is; None when the roster does not say."""
        key = student_key(name)
        packed = _MOODLE.fullmatch(key) or _CANVAS.fullmatch(key)
        called, number = packed.groups() if packed else (key, "")
        if self.path is None:
            return Student(called, key, canvas_id="" if _MOODLE.fullmatch(key) else number)
        for word in (key, called):
            if student := self._by_key.get(_normal(word)):
                return student
        # Canvas writes all words as one. A number may be another student's, of another kind.
        whole, found = "".join(_words(called)), self._by_key.get(number)
        if found and (found.canvas_id == number or any(w in whole for w in _words(found.name))):
            return found
        same = self._by_name.get(whole, ())
        return next(iter(same)) if len(same) == 1 else None


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


def _words(name: str) -> list[str]:
    """List the words of a name in plain letters, as an LMS or a file system may write them."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c))
    return re.findall(r"\w+", plain.casefold())


def _normal(text: str) -> str:
    # macOS writes accents as characters of their own
    return unicodedata.normalize("NFC", text).strip().casefold()


def readable(text: str) -> str:
    """Take out colours, control characters and what no encoding can write."""
    plain = _CONTROL.sub("\ufffd", _ANSI.sub("", text))
    return plain.encode("utf-8", "backslashreplace").decode()


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write a table, whose first row has all columns.

    A text that a spreadsheet would compute gets an apostrophe.
    """

    def guarded(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        text = readable(value)
        return f"'{text}" if {text[:1], value[:1]} & _COMPUTED else text

    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: guarded(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def read_table(path: Path, wanted: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """Read a CSV file that a person wrote or a spreadsheet exported, by commas, semicolons or tabs.

    Each line that is not empty comes with its number, and its cells by column in small letters. A
    file that cannot be read, or has none of the `wanted` columns, is a GradingError.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "it is not in UTF-8")
        raise GradingError(words("not CSV", path=path, why=why)) from error
    head = text.partition("\n")[0]
    reader = csv.DictReader(io.StringIO(text), delimiter=max(",;\t", key=head.count))
    there = [name.strip().lower() for name in reader.fieldnames or ()]
    if not set(wanted) & set(there):
        columns, needed = ", ".join(there) or "of no table", " or ".join(wanted)
        raise GradingError(words("no column", path=path, columns=columns, wanted=needed))
    lines = []
    for row in reader:
        texts = [(str(name), value or "") for name, value in row.items() if type(value) is not list]
        cells = {name.strip().lower(): value.strip() for name, value in texts}
        if any(cells.values()):
            lines.append((reader.line_num, cells))
    return lines
