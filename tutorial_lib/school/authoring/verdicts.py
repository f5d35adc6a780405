"""Verdicts on the sources' claims, collected from what the executed notebooks show."""

import ast
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from tutorial_lib.claims import MIME, ClaimError, Verdict
from tutorial_lib.school.authoring.files import AuthoringError, read_notebook, write_files

COLLECTED = Path("course/claims/verdicts.json")
SHOWN = "claims.Verdicts("  # in a cell that shows some: its code is folded away
_NUMBER = re.compile(  # as in 1,024 and 1e-12, and not the 64 of float64
    r"(?<![\w.])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?|\b(?:True|False)\b"
)


def update(root: Path) -> bool:
    """Write all verdicts into one file; tell whether that changed it.

    Raises:
        AuthoringError: When a verdict names no cell, has a typed number, was not run, is not what
            its values allow, or contradicts another notebook's.
    """
    rows, problems = collect(root)
    problems += _contradictions(rows)
    if problems:
        raise AuthoringError("\n".join(problems))
    text = _text(rows)
    path = root / COLLECTED
    if (path.read_text(encoding="utf-8") if path.is_file() else _text([])) == text:
        return False
    write_files({path: text.encode()})
    return True


def stale(root: Path) -> list[str]:
    """Say, in one sentence, when the file is not what the notebooks show; else give nothing."""
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
            shown = list(_shown(notebook))
            problems += [f"{name}, {problem}" for problem in _problems(notebook, shown)]
            rows += [{**row, "notebook": name} for row in shown]
    return sorted(rows, key=lambda row: (row["claim"], row["notebook"])), problems


def _contradictions(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Name the verdicts that their own values, or another notebook's verdict, contradict."""
    first: dict[str, dict[str, Any]] = {}
    for row in rows:
        try:
            Verdict(**row)
        except ClaimError as error:
            yield f"{row['notebook']}, {error}"
        other = first.setdefault(row["claim"], row)
        if other["verdict"] != row["verdict"]:
            yield (
                f"{row['claim']}: {other['notebook']} says {other['verdict']!r}, "
                f"and {row['notebook']} says {row['verdict']!r}."
            )


def _shown(notebook: NotebookNode) -> Iterator[dict[str, Any]]:
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            for row in output.get("data", {}).get(MIME, []):
                if "notebook" not in row:  # the last chapter shows what was collected
                    yield row


def _problems(notebook: NotebookNode, shown: list[dict[str, Any]]) -> Iterator[str]:
    cells = {cell.id: cell for cell in notebook.cells}
    for row in shown:
        if row["cell"] not in cells:
            yield f"{row['claim']}: there is no cell {row['cell']!r} in this notebook."
        elif missing := unseen(row["number"], cells[row["cell"]]):
            yield (
                f"{row['claim']}: {', '.join(missing)} of {row['number']!r} is not in the output "
                f"of cell {row['cell']!r}: let that cell show it, or name the cell that does."
            )
    seen = {row["claim"] for row in shown}
    for cell in notebook.cells:
        if cell.cell_type == "code" and "claims.Verdict(" in cell.source:
            for call in _calls(cell.source):
                claim, number = _argument(call, 0, "claim"), _argument(call, 3, "number")
                if isinstance(number, ast.Constant):
                    yield f"cell {cell.id!r}: a number is typed; compute it from the cells above."
                if isinstance(claim, ast.Constant) and claim.value not in seen:
                    yield f"cell {cell.id!r}: {claim.value!r} has no result: run the notebook."


def unseen(number: str, cell: NotebookNode) -> list[str]:
    """Return those numbers of a verdict that a cell's output does not show, as they are written.

    A number counts as shown whatever its sign and its separators of thousands, in text, in a
    table, or in the words of a figure.
    """
    shown = {_bare(found) for text in _texts(cell) for found in _NUMBER.findall(text)}
    return [found for found in _NUMBER.findall(number) if _bare(found) not in shown]


def _bare(number: str) -> str:
    """Return a number as it is compared: 1,024 is 1024, and 75.0 is 75."""
    text = number.replace(",", "")
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def _texts(cell: NotebookNode) -> Iterator[str]:
    for output in cell.get("outputs", []):
        data, about = output.get("data", {}), output.get("metadata", {})
        texts = (text for kind, text in data.items() if kind.startswith("text/"))
        for text in (output.get("text", ""), *texts, json.dumps(about, ensure_ascii=False)):
            yield re.sub(r"<[^>]*>", " ", "".join(text))


def _calls(source: str) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "claims.Verdict":
            yield node


def _argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    return call.args[position] if position < len(call.args) else named.get(name)


def _text(rows: list[dict[str, Any]]) -> str:
    """Return JSON with one row a line, so that a diff shows the verdicts that moved."""
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"
