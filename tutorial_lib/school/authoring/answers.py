"""What stands between solution marks: the answers of a lab, the blanks of a chapter."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tutorial_lib.school.authoring.files import AuthoringError
from tutorial_lib.school.authoring.frame import FOLDED
from tutorial_lib.school.authoring.source import Cell
from tutorial_lib.school.marks import BEGIN_SOLUTION, END_SOLUTION

# Behind a blank of a chapter: what runs while nobody has filled it in.
_OURS = """\
# @title Our lines: run this cell; open it to compare
from tutorial_lib.blanks import unless_written


@unless_written({name})
"""


@dataclass(frozen=True)
class Answer:
    """An answer cell taken apart."""

    solution: str  # the cell without the lines of the marks
    blank: str  # the cell with one `raise NotImplementedError` in place of each solution
    secrets: tuple[tuple[str, ...], ...]  # the lines between each pair of marks, stripped


def take_apart_answers(cells: Sequence[Cell]) -> dict[str, Answer]:
    """Take apart every answer cell, by its id; marks that are missing or astray are refused."""
    answers = {}
    for cell in cells:
        if cell.kind != "code":
            continue
        if cell.mark is not None and cell.mark.kind == "exercise":
            said = f"exercise {cell.mark.number}: write the body, then run the check below"
            answers[cell.id] = _take_apart(cell, said)
        elif _is_mark_line(cell.text):
            raise AuthoringError(
                f"{cell.where}: solution marks belong in an answer cell only, "
                "whose first line is `# exercise 3.2`."
            )
    return answers


def take_apart_blanks(cells: Sequence[Cell]) -> dict[str, Answer]:
    """Take apart the cells of a chapter that its reader writes; marks of labs are refused.

    A blank is one definition and nothing else: what ran beside it would take the blank for good.
    """
    blanks = {}
    for cell in cells:
        if cell.mark:
            raise AuthoringError(f"{cell.where}: marks belong in a lab, and this is a chapter.")
        if cell.kind == "code" and _is_mark_line(cell.text):
            blanks[cell.id] = blank = _take_apart(cell, "your turn: write this body")
            if not _defined(blank.solution):
                raise AuthoringError(
                    f"{cell.where}: a blank is a cell with one function or class and nothing else."
                )
    return blanks


def beside_ours(cells: Sequence[Cell], blanks: dict[str, Answer]) -> list[Cell]:
    """Put behind each blank a folded cell with our lines, which run as long as it is blank."""
    found = []
    for cell in cells:
        found.append(cell)
        if cell.id in blanks:
            lines = blanks[cell.id].solution.split("\n")
            body = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
            ours = _OURS.format(name=_defined(blanks[cell.id].solution)).split("\n")
            text = "\n".join([*lines[:body], *ours[:-1], *lines[body:]])
            found.append(replace(cell, id=f"{cell.id}-ours", text=text, metadata=FOLDED))
    return found


def _defined(text: str) -> str:
    """Name of the one function or class that a cell is; empty where it is something else."""
    body = ast.parse(text).body
    single = len(body) == 1 and isinstance(body[0], ast.FunctionDef | ast.ClassDef)
    return body[0].name if single else ""  # type: ignore[attr-defined]


def _take_apart(cell: Cell, said: str) -> Answer:
    solution: list[str] = []
    blank: list[str] = []
    secrets: list[list[str]] = []
    inside = False
    for line in cell.text.split("\n"):
        stripped = line.strip()
        if stripped == (END_SOLUTION if inside else BEGIN_SOLUTION):
            inside = not inside
            if inside:
                secrets.append([])
                blank.append(_stub(line, cell, said))
            continue
        if _is_mark_line(line):
            raise AuthoringError(
                f"{cell.where}: {stripped!r} is out of order; "
                f"a solution goes between {BEGIN_SOLUTION!r} and {END_SOLUTION!r}."
            )
        solution.append(line)
        if inside:
            secrets[-1] += [stripped] if stripped else []
        else:
            blank.append(line)
    if inside or not secrets or not all(secrets):
        what = "is not ended" if inside else "is empty" if secrets else "is missing"
        raise AuthoringError(
            f"{cell.where}: the solution {what}; "
            f"write it between {BEGIN_SOLUTION!r} and {END_SOLUTION!r}."
        )
    return Answer("\n".join(solution), "\n".join(blank), tuple(map(tuple, secrets)))


def _stub(begin: str, cell: Cell, said: str) -> str:
    indentation = begin[: len(begin) - len(begin.lstrip())]
    if not indentation:
        raise AuthoringError(
            f"{cell.where}: the solution marks must stand inside a function: "
            "a blank that raises on its own would stop the notebook before its check."
        )
    return f'{indentation}raise NotImplementedError("{said}")'


def _is_mark_line(text: str) -> bool:
    return "BEGIN SOLUTION" in text or "END SOLUTION" in text
