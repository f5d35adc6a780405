"""What the instructor and the students get: scores, one page a submission, facts about the run."""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2

from tutorial_lib.school.grading.errors import GradingError
from tutorial_lib.school.grading.lab import Lab
from tutorial_lib.school.grading.results import Graded

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_]|\][^\x07]*\x07)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_REPORT = {"scores.csv", "index.html", "run.json", "feedback"}


def columns(lab: Lab) -> list[str]:
    """Name the columns of `scores.csv`."""
    return ["name", "status", "points", "maximum", *lab.exercises, "review"]


def rows(lab: Lab, results: Sequence[Graded]) -> list[dict[str, str | int]]:
    """Make the lines of `scores.csv`."""
    return [
        {
            "name": readable(result.name),
            "status": result.status,
            "points": result.points(lab),
            "maximum": lab.maximum,
            **{exercise: result.points(lab, exercise) for exercise in lab.exercises},
            "review": " ".join(result.review),
        }
        for result in results
    ]


def readable(text: str) -> str:
    """Take out colours, control characters and what no encoding can write."""
    plain = _CONTROL.sub("\ufffd", _ANSI.sub("", text))
    return plain.encode("utf-8", "backslashreplace").decode()


def scores_csv(lab: Lab, results: Sequence[Graded]) -> str:
    """Write the score sheet; a name that a spreadsheet would compute gets an apostrophe."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns(lab), lineterminator="\n")
    writer.writeheader()
    for row in rows(lab, results):
        name = str(row["name"])
        guard = "'" if name.startswith(("=", "+", "-", "@", "\t", "\r")) else ""
        writer.writerow({**row, "name": guard + name})
    return text.getvalue()


def feedback_name(name: str) -> str:
    """Choose a page's place below `feedback/`: the submission's own, so that none share one."""
    folder, _, file = name.rpartition("/")
    if len(os.fsencode(file)) > 240:  # with .html it would be too long for most file systems
        file = f"{file[:50]}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}"
    if folder.rstrip("_").endswith(".html"):  # it must not stand where a file's page goes
        folder += "_"
    return f"{folder}/{file}.html" if folder else f"{file}.html"


def feedback_page(lab: Lab, result: Graded, isolation: str) -> str:
    """Write a student's page: points, the check's message, and what happened. All is escaped."""
    title = f"{lab.name}: {result.name}"
    return _page("feedback.html", title=title, lab=lab, result=result, isolation=isolation)


def index_page(lab: Lab, results: Sequence[Graded], isolation: str) -> str:
    """Write the instructor's page: all scores, each with a link to its feedback."""
    facts = {"lab": lab, "results": results, "isolation": isolation, "link": _link}
    return _page("index.html", title=lab.name, **facts)


def _link(name: str) -> str:
    return quote(os.fsencode(f"feedback/{feedback_name(name)}"))


def _page(template: str, **facts: Any) -> str:
    return _pages().get_template(template).render(facts)


@functools.cache
def _pages() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "pages"),
        autoescape=True,
        finalize=lambda value: readable(value) if isinstance(value, str) else value,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def check_place(out: Path, submissions: Path) -> None:
    """Refuse to put a report where anything but an older report stands.

    Args:
        out: Where the report is to go.
        submissions: The folder of the class, which is only read.

    Raises:
        GradingError: When it would overwrite something else, or stand among the submissions.
    """
    if out.resolve().is_relative_to(submissions.resolve()):
        raise GradingError(f"{out} is in the folder of submissions: put the report elsewhere.")
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
    out: Path,
    lab: Lab,
    results: Sequence[Graded],
    isolation: str,
    facts: Mapping[str, Any],
    *,
    kept: Collection[str] = (),
) -> None:
    """Write the whole report beside its place, then put it there: nothing is ever half-written.

    Args:
        out: Where it goes; an older report there is replaced.
        lab: The lab.
        results: All rows, in order.
        isolation: What held the submissions, in words.
        facts: What `run.json` says.
        kept: Names whose page is taken over from the older report.
    """
    with _replacing(out) as folder:
        for result in results:
            name = feedback_name(result.name)
            page, older = folder / "feedback" / name, out / "feedback" / name
            page.parent.mkdir(parents=True, exist_ok=True)
            if result.name in kept and older.is_file():
                shutil.copyfile(older, page)
            else:
                page.write_text(feedback_page(lab, result, isolation), encoding="utf-8")
        (folder / "scores.csv").write_text(scores_csv(lab, results), encoding="utf-8")
        (folder / "index.html").write_text(index_page(lab, results, isolation), encoding="utf-8")
        (folder / "run.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _replacing(out: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as beside:
        new = Path(beside, "new")
        new.mkdir()
        yield new
        if out.exists():
            out.rename(Path(beside, "old"))
        new.rename(out)
