"""Verdicts on the sources' claims, collected from what the executed notebooks show."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from tutorial_lib.claims import MIME, Verdict, contradictions
from tutorial_lib.school.authoring.files import AuthoringError, read_notebook, write_files

COLLECTED = Path("course/claims/verdicts.json")


def update(root: Path) -> bool:
    """Write all verdicts into one file; tell whether that changed it.

    Raises:
        AuthoringError: When a verdict names no cell, has a typed number, was not run, or
            contradicts another notebook's.
    """
    rows, problems = collect(root)
    problems += contradictions(Verdict(**row) for row in rows)
    if problems:
        raise AuthoringError("\n".join(problems))
    text = _text(rows)
    path = root / COLLECTED
    if (path.read_text(encoding="utf-8") if path.is_file() else "[]\n") == text:
        return False
    write_files({path: text.encode()})
    return True


def stale(root: Path) -> list[str]:
    """Say, in one sentence, when the file is not what the notebooks show; else give nothing."""
    rows, problems = collect(root)
    path = root / COLLECTED
    if (path.read_text(encoding="utf-8") if path.is_file() else "[]\n") != _text(rows):
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


def _shown(notebook: NotebookNode) -> Iterator[dict[str, Any]]:
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            for row in output.get("data", {}).get(MIME, []):
                if "notebook" not in row:  # the last chapter shows what was collected
                    yield row


def _problems(notebook: NotebookNode, shown: list[dict[str, Any]]) -> Iterator[str]:
    ids = {cell.id for cell in notebook.cells}
    for row in shown:
        if row["cell"] not in ids:
            yield f"{row['claim']}: there is no cell {row['cell']!r} in this notebook."
    seen = {row["claim"] for row in shown}
    for cell in notebook.cells:
        if cell.cell_type == "code" and "claims.Verdict(" in cell.source:
            for call in _calls(cell.source):
                claim, number = _argument(call, 0, "claim"), _argument(call, 3, "number")
                if isinstance(number, ast.Constant):
                    yield f"cell {cell.id!r}: a number is typed; compute it from the cells above."
                if isinstance(claim, ast.Constant) and claim.value not in seen:
                    yield f"cell {cell.id!r}: {claim.value!r} has no result: run the notebook."


def _calls(source: str) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "claims.Verdict":
            yield node


def _argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    return call.args[position] if position < len(call.args) else named.get(name)


def _text(rows: list[dict[str, Any]]) -> str:
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
