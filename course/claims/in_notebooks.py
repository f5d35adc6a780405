"""The verdicts that an executed notebook shows, and what is wrong with them."""

import ast
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from nbformat import NotebookNode

from .verdicts import MIME, ClaimError, Verdict

_NUMBER = re.compile(  # as in 1,024 and 1e-12, and not the 64 of float64
    r"(?<![\w.])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?|\b(?:True|False)\b"
)


def contradictions(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
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


def rows_of(notebook: NotebookNode) -> Iterator[dict[str, Any]]:
    """Yield the data of each verdict that a notebook's outputs hold."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            for row in output.get("data", {}).get(MIME, []):
                if "notebook" not in row:  # the last chapter shows what was collected
                    yield row


def faults(notebook: NotebookNode, shown: list[dict[str, Any]]) -> Iterator[str]:
    """Say, a sentence each, which verdicts name no cell, or a number that no cell shows."""
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
