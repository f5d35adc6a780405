"""Every lab as a learner opens it: it runs, says what is still blank, and gives nothing away."""

import ast
import json
import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tutorial_lib.school.marks import cell_mark

ROOT = Path(__file__).resolve().parent.parent
LABS = sorted(path.stem for path in ROOT.glob("labs/*.ipynb"))
each_lab = pytest.mark.parametrize("lab", LABS)
SHORTEST_SECRET = 12  # characters; `return total` gives nothing away


def read(folder, lab):
    return nbformat.read(ROOT / folder / f"{lab}.ipynb", as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def of_kind(notebook, *kinds):
    marks = {cell.id: cell_mark(cell.source) for cell in code_cells(notebook)}
    return {key: mark.number for key, mark in marks.items() if mark and mark.kind in kinds}


def lines_of(cells):
    return {line.strip() for cell in cells for line in cell.source.splitlines()}


def secrets(lab):
    """Lines of the answers, between the marks of a solution, that no other cell gives away."""
    inside, found = False, set()
    for line in (ROOT / "solutions" / "source" / f"{lab}.py").read_text("utf-8").splitlines():
        if "### BEGIN SOLUTION" in line or "### END SOLUTION" in line:
            inside = "BEGIN" in line
        elif inside and len(line.strip()) >= SHORTEST_SECRET:
            found.add(line.strip())
    solved = read("solutions", lab)
    answers = of_kind(solved, "exercise")
    return found - lines_of(cell for cell in solved.cells if cell.id not in answers)


def errors(cell):
    return [output for output in cell.outputs if output.output_type == "error"]


def run(notebook):
    client = NotebookClient(
        notebook,
        timeout=300,
        allow_errors=True,
        kernel_name="python3",
        resources={"metadata": {"path": str(ROOT / "labs")}},
    )
    client.execute(env={**os.environ, "PYTHONPATH": str(ROOT)})


# Each takes as long as its notebook: one in every run, all of them in the weekly one.
weekly = [
    pytest.param(lab, marks=[pytest.mark.weekly] * (lab != "lab03_my_checkpoint")) for lab in LABS
]


def made_by(source):
    nodes = [*ast.walk(ast.parse(source))]
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return stored | {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}


@pytest.mark.slow
@pytest.mark.parametrize("lab", weekly)
def test_a_fresh_lab_fails_where_an_answer_is_needed_and_says_which(lab):
    notebook = read("labs", lab)
    run(notebook)
    checks, answers, above = of_kind(notebook, "check"), of_kind(notebook, "exercise"), set()
    missing = set()  # names that cells would have made which a blank has stopped
    for cell in code_cells(notebook):
        above |= {answers[cell.id]} if cell.id in answers else set()
        if cell.id in checks:
            (error,) = errors(cell)
            assert error.ename == "CheckError"
            assert error.evalue.startswith(f"exercise {checks[cell.id]} is still blank: replace")
            assert " ".join(error.traceback) == f"CheckError: {error.evalue}"
        elif errors(cell):  # it uses an answer: the blank itself says which
            (error,) = errors(cell)
            if error.ename == "NameError":
                name = re.match(r"name '(\w+)' is not defined", error.evalue)[1]
                assert name in missing, (cell.id, name)
            else:
                assert (error.ename, cell.id) == ("NotImplementedError", cell.id)
                assert re.match(r"exercise (\d+\.\d+): ", error.evalue)[1] in above
            missing |= made_by(cell.source)


@each_lab
def test_nothing_of_a_solution_stands_in_the_lab(lab):
    text = json.dumps(read("labs", lab), ensure_ascii=False)
    found = [line for line in secrets(lab) if json.dumps(line, ensure_ascii=False)[1:-1] in text]
    assert found == []
