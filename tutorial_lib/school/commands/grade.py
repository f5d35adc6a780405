"""Grade a folder of submissions: scores.csv, and a page of feedback for each.

A run that was stopped goes on where it was when the same command is given again, and what has not
changed since an older report is not graded again. See solutions/GRADING.md.

`grade --selftest LAB` grades the solution, the blank and all known answers.

`grade --example LAB FOLDER` writes a class to try it on.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from tutorial_lib.school.bootstrap import ROOT

if TYPE_CHECKING:
    import pandas as pd


def options(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.usage = "%(prog)s LAB FOLDER --out REPORT [options]"
    add = parser.add_argument
    add("lab", metavar="LAB", help="the lab, as in lab01")
    add("folders", metavar="FOLDER", nargs="*", type=Path, help="of notebooks, or of folders")
    add("--out", type=Path, help="folder for the report: new, or an older report")
    add("--workers", type=int, metavar="N", help="submissions at once; by cores and free memory")
    add("--dask", metavar="ADDRESS", help="grade on a Dask cluster: its address")
    add("--seconds", type=float, default=20.0, help="CPU time of a function in one check")
    only = "one submission; may be repeated; a report in --out keeps the others"
    add("--only", action="append", default=[], metavar="NAME", help=only)
    add("--seed", type=int, help="as in an older run.json: draws the same cases again")
    add("--roster", type=Path, metavar="CSV", help="name or folder, id, email")
    add("--marks", type=Path, metavar="CSV", help="by hand: student, exercise, points, comment")
    add("--selftest", action="store_true", help="grade answers whose verdict is known")
    add("--example", action="store_true", help="write a class of thirty into the folder")


def run(options: argparse.Namespace) -> int:
    """Grade, or do what one of the two other forms asks for."""
    find_grader(ROOT)
    from solutions.grader.run import grade

    lab, given, out = options.lab, options.folders, options.out
    if options.selftest and not given:
        selftest = import_module("solutions.answers.selftest").selftest
        return _selftest(
            *selftest(lab, root=ROOT, workers=options.workers, seconds=options.seconds)
        )
    if options.example and len(given) == 1:
        write_example = import_module("solutions.answers.known").write_example
        number = write_example(lab, given[0], root=ROOT)
        print(f"{number} submissions: {given[0]}")
    elif options.selftest or options.example or len(given) != 1 or not out:
        raise ValueError(
            "grade takes a lab, one folder of submissions and --out FOLDER; "
            "`grade --help` shows what goes with --selftest and --example."
        )
    else:
        names = ("workers", "dask", "seconds", "only", "seed", "roster", "marks")
        chosen = {name: getattr(options, name) for name in names}
        table = grade(lab, given[0], out, root=ROOT, **chosen)
        _say(table, out)
    return 0


def find_grader(root: Path) -> None:
    """Have this Python import the grader, which is beside the solutions that it grades against."""
    if not (root / "solutions" / "grader").is_dir():
        raise ValueError(
            "grade needs solutions/ of the course's repository, which an installed package and the "
            "zip for a class leave out: run this in a clone of it."
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))


def _say(table: pd.DataFrame, out: Path) -> None:
    for sentence in table.attrs["said"]:
        print(sentence)
    counts = table["status"].value_counts()
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
    if read := list(table["name"][table["review"] != ""]):
        print(f"Answers that a person should read (column review): {', '.join(read)}")
    print(f"Scores: {out / 'scores.csv'}. Feedback: {out / 'index.html'}.")


def _selftest(table: pd.DataFrame, faults: list[str]) -> int:
    print("Answers that got the points and the message that they should get:")
    print(table.to_string())
    print("\n".join(faults) or "No fault.")
    return 1 if faults else 0
