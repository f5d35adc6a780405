"""Fourth step of grading: report the results, to students and instructor, in words and files."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutorial_lib.school.grading.lab import Lab
from tutorial_lib.school.grading.report import scores
from tutorial_lib.school.grading.report.class_list import class_entries, roster_warnings
from tutorial_lib.school.grading.report.roster import Roster
from tutorial_lib.school.grading.report.write_folder import write_report
from tutorial_lib.school.grading.results import Graded

if TYPE_CHECKING:
    import pandas as pd

_ADVICE = {
    "landlock+namespaces": "",
    "landlock": " No own network and process space could be made: a submission may reach the "
    "network and end other processes of yours.",
    "namespaces": " Submissions can read your files: this kernel has no usable Landlock.",
    "limits only": " Submissions can read your files and reach the network: grade only files "
    "of people you trust, or use Linux 5.13 or later.",
    "none": " Nothing holds a submission back: grade only files of people you trust.",
}
_UNWATCHED = (
    " This machine has no /proc: each answer has one process, whose memory the system limits, and "
    "an answer that starts processes gets an error."
)
_NO_EXAM = (
    " Memory exam not held: this machine cannot limit what one process maps. Memory was judged by "
    "meters alone, which an answer can change, and nobody lost points."
)


def report_class(
    out: Path,
    lab: Lab,
    results: Sequence[Graded],
    roster: Roster,
    names: Sequence[str],
    facts: Mapping[str, Any],
) -> pd.DataFrame:
    """Write the report of a class, and give the table of `scores.csv`; see `run.grade`.

    Args:
        results: Graded now, or kept of an older report.
        names: Of all submissions in the class's folder.
        facts: About the run, for `run.json`; `layers` lists what held a submission back.
    """
    import pandas as pd

    results = sorted(results, key=lambda one: one.name)
    entries = class_entries(results, roster, names)
    layers, walls = facts["layers"], isolation(facts["layers"])
    unwatched, no_exam = "unwatched" in layers, "memory exam" not in layers
    advice = f"{_ADVICE[walls]}{_UNWATCHED * unwatched}{_NO_EXAM * no_exam}"
    said = [f"isolation: {walls}.{advice}", *roster_warnings(entries)]
    versions = {name: metadata.version(name) for name in ("torch", "nbval", "pytest")}
    versions |= {"python": platform.python_version(), "system": platform.platform()}
    graded = list(map(asdict, results))
    more = {"isolation": walls, "versions": versions, "submissions": graded}
    write_report(out, lab, entries, said, {**facts, **more})
    table = pd.DataFrame(scores.rows(lab, entries)).convert_dtypes()
    table.attrs["said"] = said
    return table


def isolation(layers: Sequence[str]) -> str:
    """Name the walls around a submission, as the report does."""
    holes = {"solutions readable", "files writable"}
    landlock = "landlock" in layers and holes.isdisjoint(layers)
    names = ["landlock"] * landlock + ["namespaces"] * ("namespaces" in layers)
    if names:
        return "+".join(names)
    return "limits only" if "limits" in layers else "none"
