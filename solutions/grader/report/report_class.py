"""Fourth step of grading: report the results, to students and instructor, in words and files.

A report is written beside its place, then put there whole.
"""

from __future__ import annotations

import json
import platform
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solutions.grader import GradingError
from solutions.grader.lab import Lab
from solutions.grader.report import class_list, pages
from solutions.grader.report.class_list import Entry, Mark, class_entries, roster_warnings
from solutions.grader.report.pages import alike
from solutions.grader.report.roster import Roster, as_csv
from solutions.grader.results import Graded

if TYPE_CHECKING:
    import pandas as pd

_SAID = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_REPORT = {"scores.csv", "scores-canvas.csv", "scores-moodle.csv", "index.html", "run.json"}
_REPORT |= {"feedback", "answers", "alike.html"}


def report_class(
    out: Path,
    lab: Lab,
    results: Sequence[Graded],
    roster: Roster,
    names: Sequence[str],
    facts: Mapping[str, Any],
    marks: Mapping[str, Mapping[str, Mark]] | None = None,
) -> pd.DataFrame:
    """Write the report of a class, and return the table of `scores.csv`; see `run.grade`.

    The results may be of an older report; `names` are those of all submissions in the folder. The
    `facts` are for `run.json`: their `layers` list what held a submission back.
    """
    import pandas as pd

    results = sorted(results, key=lambda one: one.name)
    entries = class_entries(results, roster, names, marks)
    layers, walls = facts["layers"], isolation(facts["layers"])
    no_exam = [] if "memory exam" in layers else [_SAID["no memory exam"]]
    said = [" ".join([f"isolation: {walls}.", _SAID[walls], *no_exam]), *roster_warnings(entries)]
    versions = {name: metadata.version(name) for name in ("torch", "nbval", "pytest")}
    versions |= {"python": platform.python_version(), "system": platform.platform()}
    more = {"isolation": walls, "versions": versions, "submissions": [*map(asdict, results)]}
    table = pd.DataFrame(write_report(out, lab, entries, said, {**facts, **more}))
    table.attrs["said"] = said
    return table


def isolation(layers: Sequence[str]) -> str:
    """Name the walls around a submission, as the report does."""
    holes = {"solutions readable", "files writable"}
    walls = ["landlock"] if holes.isdisjoint(layers) else []
    if names := [name for name in (*walls, "namespaces") if name in layers]:
        return "+".join(names)
    return "limits only" if "limits" in layers else "none"


def check_folder(out: Path, submissions: Path) -> None:
    """Refuse, as a GradingError, to put a report where anything but an older report stands."""
    there = {entry.name for entry in out.iterdir()} if out.is_dir() else set()
    said = ""
    if out.resolve().is_relative_to(submissions.resolve()):
        said = f"is in {submissions}, where nothing is written: put it elsewhere."
    elif out.is_symlink() or (out.exists() and not out.is_dir()):
        said = "is not a folder: give a new folder for the report."
    elif there and (there - _REPORT or "run.json" not in there):
        said = "holds other files: give a new folder for the report."
    try:  # now, and not after an hour of grading
        if not said:
            out.parent.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryDirectory(dir=out.parent).cleanup()
    except OSError as error:
        said = f"cannot be written ({error.strerror}): choose another."
    if said:
        raise GradingError(f"{out} {said}")


def write_report(
    out: Path, lab: Lab, entries: Sequence[Entry], said: Sequence[str], facts: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Write the whole report beside its place, then put it there: nothing is ever half-written.

    Returns the lines of `scores.csv`.
    """
    sheets, groups = class_list.sheets(lab, entries), alike(lab, entries)
    version, rows = str(facts.get("version", "")), sheets["scores"]
    texts = {f"{name}.csv": as_csv(lines) for name, lines in sheets.items()}
    texts |= {f"answers/{n}.html": pages.answers_page(lab, n, entries) for n in lab.exercises}
    texts["alike.html"] = pages.alike_page(lab, groups)
    texts["index.html"] = pages.index_page(lab, entries, said, groups)
    texts["run.json"] = json.dumps({**facts, "rows": rows}, indent=2) + "\n"
    for entry in entries:
        name = f"feedback/{pages.feedback_name(entry.result.name)}"
        texts[name] = pages.feedback_page(lab, entry, version)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as beside:
        new = Path(beside, "new")
        for name, text in texts.items():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            (new / name).write_text(text, encoding="utf-8")
        if out.exists():
            out.rename(Path(beside, "old"))
        new.rename(out)
    return rows
