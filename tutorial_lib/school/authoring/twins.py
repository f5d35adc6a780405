"""The notebooks of one source: a chapter, or a lab beside its solution."""

import re
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from itertools import product
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from tutorial_lib.school.authoring.answers import (
    Answer,
    beside_ours,
    take_apart_answers,
    take_apart_blanks,
)
from tutorial_lib.school.authoring.files import AuthoringError
from tutorial_lib.school.authoring.frame import (
    FOLDED,
    TITLED,
    Settings,
    attach_figures,
    launch_cell,
    next_cell,
    note_recordings,
    notebook_metadata,
    setup_cell,
)
from tutorial_lib.school.authoring.source import Cell, read_source, refuse_broken_python
from tutorial_lib.school.authoring.verdicts import SHOWN
from tutorial_lib.school.marks import Mark

MIN_SECRET_CHARACTERS = 12

_NBGRADER_ROLES = {
    "exercise": {"grade": False, "solution": True, "locked": False},
    "check": {"grade": True, "solution": False, "locked": True},
    "hidden check": {"grade": True, "solution": False, "locked": True},
    None: {"grade": False, "solution": False, "locked": True},
}


def notebooks_of(source: Path, root: Path, settings: Settings) -> dict[Path, NotebookNode]:
    """Make the notebooks of one source, without outputs.

    Returns:
        One notebook a path: to read, in `course/` or `solutions/`, and to work in, never
        executed, in `course/blank/` or `labs/`.

    Raises:
        AuthoringError: When the source, its marks, a figure or the lab are refused.
    """
    cells = read_source(source)
    name = f"{source.stem}.ipynb"
    if source.parent.parent.name == "course":
        blanks = take_apart_blanks(cells)
        written = {cell_id: blank.solution for cell_id, blank in blanks.items()}
        open_cells = beside_ours(cells, blanks)
        empty = {cell_id: blank.blank for cell_id, blank in blanks.items()}
        path = f"course/blank/{name}"
        read = _assemble(cells, path, settings, written, root)
        return {
            root / "course" / name: note_recordings(read, root / "course/recorded"),
            root / path: _assemble(open_cells, path, settings, empty, root),
        }
    answers = take_apart_answers(cells)
    _refuse_loose_marks(cells)
    solved = {cell_id: answer.solution for cell_id, answer in answers.items()}
    blank = {cell_id: answer.blank for cell_id, answer in answers.items()}
    open_cells = [cell for cell in cells if not (cell.mark and cell.mark.kind == "hidden check")]
    lab = _assemble(open_cells, f"labs/{name}", settings, blank, root)
    for cell in open_cells:
        if cell.id in blank:
            refuse_broken_python(blank[cell.id], f"{cell.where}, with its solution cut")
    refuse_leaks(lab, answers, f"labs/{name}")
    solution = _assemble(cells, f"solutions/{name}", settings, solved, root)
    return {
        root / "solutions" / name: note_recordings(solution, root / "course/recorded"),
        root / "labs" / name: lab,
    }


def refuse_leaks(lab: NotebookNode, answers: dict[str, Answer], name: str) -> None:
    """Refuse a lab whose code cells hold solution text.

    A line of 12 characters or more gives a solution away wherever it stands in the lab, in a
    comment or a docstring too, unless it is also a line of its own among the given code. A whole
    solution of several lines gives itself away even then.
    """
    text_of = {
        cell.id: "\n".join(map(str.strip, cell.source.split("\n")))
        for cell in lab.cells
        if cell.cell_type == "code"
    }
    given = {line for text in text_of.values() for line in text.split("\n")}
    for exercise_id, answer in answers.items():
        for secret, (cell_id, text) in product(answer.secrets, text_of.items()):
            long = [line for line in secret if len(line) >= MIN_SECRET_CHARACTERS]
            whole = "\n".join(secret) in re.sub(r"(?m)^[# ]+", "", text) and len(secret) > 1
            for line in (
                long if whole else [one for one in long if one in text and one not in given]
            ):
                raise AuthoringError(
                    f"{name}, cell {cell_id!r} holds solution text of {exercise_id!r} "
                    f"({line!r}): move it between the marks, or word it differently."
                )


def _refuse_loose_marks(cells: Sequence[Cell]) -> None:
    marked = [(cell, cell.mark) for cell in cells if cell.mark is not None]
    counts = Counter(mark.number for _, mark in marked if mark.kind == "exercise")
    checked = {mark.number for _, mark in marked if mark.kind == "check"}
    for cell, mark in marked:
        if mark.kind == "exercise" and counts[mark.number] > 1:
            raise AuthoringError(f"{cell.where}: exercise {mark.number} has more than one cell.")
        if mark.kind == "exercise" and mark.number not in checked:
            raise AuthoringError(
                f"{cell.where}: has no check; add a cell `# check {mark.number} (2 points)`."
            )
        if mark.number not in counts:
            raise AuthoringError(f"{cell.where}: there is no cell `# exercise {mark.number}`.")


def _assemble(
    cells: Sequence[Cell], path: str, settings: Settings, texts: dict[str, str], root: Path
) -> NotebookNode:
    folder = path.split("/", 1)[0]
    built = []
    for cell in cells:
        text = texts.get(cell.id, cell.text)
        new = nbformat.v4.new_code_cell if cell.kind == "code" else nbformat.v4.new_markdown_cell
        is_folded = cell.kind == "code" and (SHOWN in text or text.startswith(TITLED))
        folded = FOLDED if is_folded else {}
        built.append(new(text, id=cell.id, metadata=deepcopy({**cell.metadata, **folded})))
    launch = [launch_cell(settings, path)] if settings.published else []
    built[1:1] = [*launch, setup_cell(settings, folder)]
    place = "course" if folder == "course" else "labs"
    if link := next_cell(root, f"{place}/{Path(path).name}", settings):
        built.append(link)
    if folder != "course":
        mark_of = {cell.id: cell.mark for cell in cells}
        for cell in built:
            if cell.cell_type == "code":
                cell.metadata["nbgrader"] = _nbgrader(cell.id, mark_of.get(cell.id))
    for cell in built:
        if cell.cell_type == "markdown":
            attach_figures(cell, root / "course/figures")
    notebook = nbformat.v4.new_notebook(cells=built, metadata=notebook_metadata())
    notebook.nbformat_minor = 5
    return notebook


def _nbgrader(cell_id: str, mark: Mark | None) -> dict[str, object]:
    role: dict[str, object] = {**_NBGRADER_ROLES[mark.kind if mark else None], "task": False}
    if role["grade"] and mark is not None:
        role["points"] = mark.points
    return {**role, "grade_id": cell_id, "schema_version": 3}
