"""The learner's working copy, `workbook/`: blank notebooks, and edits that survive an update.

Standard library only: `lab` makes it before anything is installed.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

FOLDER = "workbook"
START_PAGE = "course/00_start_here.ipynb"
FROM = {"course/blank": "course", "labs": "labs", "solutions": "solutions"}
RULES = "labs/AGENTS.md"  # for a learner's assistant, which looks in the folder that it opens
# The first way in is the first of JupyterLab's list.
_NAMES = {"tonight.ipynb": "00__tonight.ipynb"}
_MARK = "\n<!-- as given: "  # behind the rules: their text when the learner got them
_GIVEN = "as_given"  # in a cell's metadata: its text when the learner got it

Cell = dict[str, Any]


def update(root: Path) -> list[str]:
    """Make the working copy, or bring it up to date.

    A cell that the learner never changed becomes the course's newest; a changed or added one stays
    as it is. Results of cells that stay are kept.

    Args:
        root: The course's folder.

    Returns:
        A sentence for each cell that both the learner and the course changed, and for each file
        that could not be read.
    """
    notes: list[str] = []
    for source, target in FROM.items():
        if not (root / source).is_dir():  # the zip for a class has no solutions
            continue
        folder = root / FOLDER / target
        folder.mkdir(parents=True, exist_ok=True)
        for given in sorted((root / source).glob("*.ipynb")):
            new = _mark(_renamed(json.loads(given.read_text(encoding="utf-8"))))
            path = folder / named(given.name)
            if path.exists():
                try:
                    old = json.loads(path.read_text(encoding="utf-8"))
                    new["cells"], said = merge(old["cells"], new["cells"])
                except (ValueError, KeyError, TypeError, AttributeError):
                    aside = path.with_suffix(".unreadable.ipynb")
                    path.replace(aside)
                    said = [f"could not be read: it is {aside.name} now."]
                notes += [f"{target}/{given.name}: {sentence}" for sentence in said]
            _write(path, new)
    _carry_rules(root)
    return notes


def _carry_rules(root: Path) -> None:
    """Copy the rules for assistants into each folder, unless the learner has changed them."""
    if not (root / RULES).is_file():
        return
    text = (root / RULES).read_text(encoding="utf-8")
    # Notebook Intelligence 6.2 reads the first; Codex 0.171, without git, the chat folder's.
    for name in ("AGENTS.md", "CLAUDE.md", *(f"{folder}/AGENTS.md" for folder in FROM.values())):
        path, words = root / FOLDER / name, "@AGENTS.md\n" if name == "CLAUDE.md" else text
        if not path.parent.is_dir():
            continue
        old = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        theirs, _, mark = old.rpartition(_MARK)
        if not old or mark == f"{_digest({'source': theirs})} -->\n":
            path.write_text(f"{words}{_MARK}{_digest({'source': words})} -->\n", "utf-8")


def merge(old: list[Cell], new: list[Cell]) -> tuple[list[Cell], list[str]]:
    """Cells of the course as it is now, with what the learner changed in the old ones.

    There is a sentence for each cell that both sides changed.
    """
    notes = []
    mine = {cell.get("id"): cell for cell in old}
    merged = []
    for cell in new:
        before = mine.get(cell["id"])
        if before is not None and text_of(before) == text_of(cell):
            cell = cell if cell.get("outputs") else {**cell, **_results(before)}
        elif before is not None and _edited(before):
            if before["metadata"][_GIVEN] != cell["metadata"][_GIVEN]:
                notes.append(f"cell {cell['id']!r} changed in the course; yours was kept.")
            cell = {**before, "metadata": cell["metadata"]}
        merged.append(cell)
    there = {cell["id"] for cell in new}
    for position, cell in enumerate(old):  # the learner's own cells follow the cell they followed
        if cell.get("id") not in there and (_edited(cell) or _GIVEN not in cell["metadata"]):
            ids = [other["id"] for other in merged]
            before_it = [c.get("id") for c in old[:position] if c.get("id") in ids]
            merged.insert(ids.index(before_it[-1]) + 1 if before_it else 0, cell)
            there.add(cell.get("id"))
    return merged, notes


def named(name: str) -> str:
    """Name of a notebook in the working copy."""
    return _NAMES.get(name, name)


def _renamed(notebook: dict[str, Any]) -> dict[str, Any]:
    """Point links to the names that notebooks have in the working copy."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            for old, new in _NAMES.items():
                cell["source"] = re.sub(rf"(?<=[(/]){re.escape(old)}(?=\))", new, text_of(cell))
    return notebook


def _mark(notebook: dict[str, Any]) -> dict[str, Any]:
    for cell in notebook["cells"]:
        cell["metadata"][_GIVEN] = _digest(cell)
    return notebook


def _edited(cell: Cell) -> bool:
    given: str = cell["metadata"].get(_GIVEN, _digest(cell))
    return given != _digest(cell)


def _digest(cell: Cell) -> str:
    return hashlib.sha256(text_of(cell).encode()).hexdigest()[:16]


def text_of(cell: Cell) -> str:
    """Text of a cell: a notebook has a list of lines, or one text."""
    return "".join(cell["source"])


def _results(cell: Cell) -> Cell:
    return {name: cell[name] for name in ("outputs", "execution_count") if name in cell}


def _write(path: Path, notebook: dict[str, Any]) -> None:
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    beside = path.with_suffix(".part")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
