"""Verdicts on the sources' claims, collected from what the executed notebooks show."""

import json
from pathlib import Path
from typing import Any

from tutorial_lib.claims import contradictions, faults, rows_of
from tutorial_lib.school.authoring.files import AuthoringError, read_notebook, write_files

COLLECTED = Path("course/claims/verdicts.json")
SHOWN = "claims.Verdicts("  # in a cell that shows some: its code is folded away


def update(root: Path) -> bool:
    """Write all verdicts into one file; tell whether that changed it.

    Raises:
        AuthoringError: When a verdict names no cell, has a typed number, was not run, is not what
            its values allow, or contradicts another notebook's.
    """
    rows, problems = collect(root)
    problems += contradictions(rows)
    if problems:
        raise AuthoringError("\n".join(problems))
    text = _text(rows)
    path = root / COLLECTED
    if (path.read_text(encoding="utf-8") if path.is_file() else _text([])) == text:
        return False
    write_files({path: text.encode()})
    return True


def stale(root: Path) -> list[str]:
    """Say, in one sentence, when the file is not what the notebooks show; else return nothing."""
    rows, problems = collect(root)
    path = root / COLLECTED
    if (path.read_text(encoding="utf-8") if path.is_file() else _text([])) != _text(rows):
        problems.append(f"{COLLECTED} is not what the notebooks show: build it again.")
    return problems


def collect(root: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Read the verdicts of every chapter and solution, and what is wrong with them."""
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    for folder in ("course", "solutions"):
        for path in sorted((root / folder).glob("*.ipynb")):
            name = f"{folder}/{path.stem}"
            notebook = read_notebook(path)
            shown = list(rows_of(notebook))
            problems += [f"{name}, {problem}" for problem in faults(notebook, shown)]
            rows += [{**row, "notebook": name} for row in shown]
    return sorted(rows, key=lambda row: (row["claim"], row["notebook"])), problems


def _text(rows: list[dict[str, Any]]) -> str:
    """Return JSON with one row a line, so that a diff shows the verdicts that moved."""
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"
