"""The folder of a report: written beside its place, then put there whole."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tutorial_lib.school.grading.errors import GradingError
from tutorial_lib.school.grading.lab import Lab
from tutorial_lib.school.grading.report import pages, scores
from tutorial_lib.school.grading.report.class_list import Entry
from tutorial_lib.school.grading.report.tables import as_csv

_REPORT = {
    *("scores.csv", "scores-canvas.csv", "scores-moodle.csv"),
    *("index.html", "run.json", "feedback", "answers"),
}


def check_folder(out: Path, submissions: Path) -> None:
    """Refuse to put a report where anything but an older report stands.

    Raises:
        GradingError: When it would overwrite something else, or stand among the submissions.
    """
    if out.resolve().is_relative_to(submissions.resolve()):
        raise GradingError(f"{out} is in {submissions}, which is only read: put it elsewhere.")
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise GradingError(f"{out} is not a folder: give a new folder for the report.")
    there = {entry.name for entry in out.iterdir()} if out.exists() else set()
    if there and (there - _REPORT or "run.json" not in there):
        raise GradingError(f"{out} holds other files: give a new folder for the report.")
    try:  # now, and not after an hour of grading
        out.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryDirectory(dir=out.parent).cleanup()
    except OSError as error:
        raise GradingError(
            f"{out} cannot be written ({error.strerror}): choose another."
        ) from error


def write_report(
    out: Path, lab: Lab, entries: Sequence[Entry], said: Sequence[str], facts: Mapping[str, Any]
) -> None:
    """Write the whole report beside its place, then put it there: nothing is ever half-written."""
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as beside:
        new = Path(beside, "new")
        (new / "answers").mkdir(parents=True)
        for entry in entries:
            page = new / "feedback" / pages.feedback_name(entry.result.name)
            page.parent.mkdir(parents=True, exist_ok=True)
            _write(page, pages.feedback_page(lab, entry, str(facts.get("version", ""))))
        for exercise in lab.exercises:
            _write(new / "answers" / f"{exercise}.html", pages.answers_page(lab, exercise, entries))
        rows = scores.rows(lab, entries)
        _write(new / "scores.csv", as_csv(rows))
        _write(new / "scores-canvas.csv", scores.canvas_csv(lab, entries))
        _write(new / "scores-moodle.csv", scores.moodle_csv(lab, entries))
        _write(new / "index.html", pages.index_page(lab, entries, said))
        _write(new / "run.json", json.dumps({**facts, "rows": rows}, indent=2) + "\n")
        if out.exists():
            out.rename(Path(beside, "old"))
        new.rename(out)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
