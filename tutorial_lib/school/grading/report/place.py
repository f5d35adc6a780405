"""Where a report stands: it is written beside its place, then put there whole."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tutorial_lib.school.grading.errors import GradingError
from tutorial_lib.school.grading.lab import Lab
from tutorial_lib.school.grading.report import pages, scores
from tutorial_lib.school.grading.report.class_list import Entry
from tutorial_lib.school.grading.report.overrides import OVERRIDES

_OURS = {"scores.csv", "scores-canvas.csv", "scores-moodle.csv", "index.html", "run.json"}
_REPORT = {*_OURS, "feedback", "answers", OVERRIDES}


def check_place(out: Path, submissions: Path) -> None:
    """Refuse to put a report where anything but an older report stands.

    Raises:
        GradingError: When it would overwrite something else, or stand among the submissions.
    """
    if out.resolve().is_relative_to(submissions.resolve()):
        raise GradingError(f"{out} is in {submissions}, which is only read: put it elsewhere.")
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise GradingError(f"{out} is not a folder: give a new folder for the report.")
    there = {entry.name for entry in out.iterdir()} if out.exists() else set()
    if there - {OVERRIDES} and (there - _REPORT or "run.json" not in there):
        raise GradingError(f"{out} holds other files: give a new folder for the report.")
    try:  # now, and not after an hour of grading
        out.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryDirectory(dir=out.parent).cleanup()
    except OSError as error:
        raise GradingError(
            f"{out} cannot be written ({error.strerror}): choose another."
        ) from error


def write_report(
    out: Path,
    lab: Lab,
    entries: Sequence[Entry],
    said: Sequence[str],
    facts: Mapping[str, Any],
) -> None:
    """Write the whole report beside its place, then put it there: nothing is ever half-written."""
    with replacing(out) as folder:
        for entry in entries:
            page = folder / "feedback" / pages.feedback_name(entry.result.name)
            page.parent.mkdir(parents=True, exist_ok=True)
            write(page, pages.feedback_page(lab, entry, str(facts.get("version", ""))))
        (folder / "answers").mkdir()
        for exercise in lab.exercises:
            answers = pages.answers_page(lab, exercise, entries)
            write(folder / "answers" / f"{exercise}.html", answers)
        write(folder / "scores.csv", scores.scores_csv(lab, entries))
        write_exports(folder, {lab.name: lab.maximum}, scores.grades_of(lab, entries))
        write(folder / "index.html", pages.index_page(lab, entries, said))
        rows = [
            {**row, "student": asdict(entry.student) if entry.student else None}
            for row, entry in zip(scores.rows(lab, entries), entries, strict=True)
        ]
        write(folder / "run.json", json.dumps({**facts, "rows": rows}, indent=2) + "\n")


def write_exports(folder: Path, maxima: Mapping[str, int], grades: scores.Grades) -> None:
    """Write the files that Canvas and Moodle import."""
    write(folder / "scores-canvas.csv", scores.canvas_csv(maxima, grades))
    write(folder / "scores-moodle.csv", scores.moodle_csv(maxima, grades))


def write(path: Path, text: str) -> None:
    """Write one file of a report."""
    path.write_text(text, encoding="utf-8")


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """Give a folder to write into, which takes the place of `out` when all went well."""
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as beside:
        new = Path(beside, "new")
        new.mkdir()
        yield new
        if out.exists():
            if (out / OVERRIDES).is_file():  # the instructor's own file
                shutil.copy2(out / OVERRIDES, new / OVERRIDES)
            out.rename(Path(beside, "old"))
        new.rename(out)
