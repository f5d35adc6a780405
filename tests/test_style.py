"""Style and types of everything, notebooks too: what ruff and mypy say."""

import ast
import subprocess
import sys

import jupytext
import pytest


@pytest.mark.parametrize(
    "words",
    [
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        pytest.param(("mypy",), marks=pytest.mark.weekly),
    ],
    ids=["lint", "format", "types"],
)
def test_nothing_to_complain_about(root, words):
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=root, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def long_lines(notebook):
    """Lines of code that a reader would not see whole; the formatter leaves text as it is."""
    code = (cell.source for cell in notebook.cells if cell.cell_type == "code")
    return [line for source in code for line in source.splitlines() if len(line) > 88]


def test_code_in_notebooks_is_not_cut_off(root):
    sources = [*root.glob("course/source/*.py"), *root.glob("solutions/source/*.py")]
    found = {path.name: long_lines(jupytext.read(path)) for path in sources}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_docstrings_say_what_is_returned_or_done(root):
    """No docstring begins with "Give" or "Let"."""
    content = ("recorded/rows", "figures/drawn", "claims", "frameworks", "levers", "ranks")
    rooms = ("tutorial_lib", "labs/checks", "solutions/grader", *(f"course/{c}" for c in content))
    found = {
        f"{path.relative_to(root)}: {doc.splitlines()[0]}"
        for room in rooms
        for path in (root / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if (doc := ast.get_docstring(node)) and doc.split()[0] in ("Give", "Gives", "Let", "Lets")
    }
    assert found == set()
