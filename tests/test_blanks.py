"""Blanks of the chapters: what a reader writes, and what runs while it is not written."""

import contextlib
import functools

import pytest

from tutorial_lib import blanks
from tutorial_lib.school.authoring.answers import take_apart_blanks
from tutorial_lib.school.authoring.files import read_notebook
from tutorial_lib.school.authoring.run import execute
from tutorial_lib.school.authoring.source import read_source

# Chapter 16 computes nothing of its own: there the reader answers the ten questions again.
CORE = [*(f"{number:02}" for number in range(16)), "11c"]


class Written:
    limit = 3

    @staticmethod
    def forward(x):
        return x


class HalfWritten(Written):
    @staticmethod
    def backward(x):
        raise NotImplementedError("your turn: write this body")


def blank(x):
    raise NotImplementedError


def blank_within(x):
    @contextlib.contextmanager
    def inner():
        raise NotImplementedError

    return inner


def written(x):
    return x


@pytest.mark.parametrize(
    ("yours", "kept"),
    [
        (written, True),
        (functools.cache(written), True),
        (Written, True),
        (blank, False),
        (blank_within, False),
        (contextlib.contextmanager(blank), False),
        (HalfWritten, False),
    ],
)
def test_our_lines_run_only_where_yours_are_blank_and_say_so(capsys, yours, kept):
    def ours(x):
        return -x

    assert blanks.unless_written(yours)(ours) is (yours if kept else ours)
    assert capsys.readouterr().out == ("" if kept else "ours is blank above: ours runs instead.\n")


def source_of(root, number):
    (path,) = root.glob(f"course/source/{number}_*.py")
    return path


@pytest.mark.parametrize("number", CORE)
def test_each_core_chapter_has_two_to_four_blanks_of_a_few_lines(root, number):
    cells = read_source(source_of(root, number))
    found = take_apart_blanks(cells)
    assert 2 <= len(found) <= 4
    lines = {name: sum(map(len, answer.secrets)) for name, answer in found.items()}
    assert all(2 <= count <= 12 for count in lines.values()), lines
    assert sum("**Write.**" in cell.text for cell in cells) >= 2


def ran(root, number, *, filled=False):
    """Run a chapter's copy to work in; which of its blanks our lines stood in for, in order."""
    path = source_of(root, number)
    notebook = read_notebook(root / f"course/blank/{path.stem}.ipynb")
    read = read_notebook(root / f"course/{path.stem}.ipynb")
    solved = {cell.id: cell.source for cell in read.cells}
    names = list(take_apart_blanks(read_source(path)))
    for cell in notebook.cells:
        if filled and cell.id in names:
            cell.source = solved[cell.id]
    execute(notebook, root / "course", path.stem)
    said = {
        cell.id: "".join(output.get("text", "") for output in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    }
    return names, [name for name in names if "is blank above" in said[f"{name}-ours"]]


@pytest.mark.weekly
@pytest.mark.parametrize("number", CORE)
def test_a_chapter_runs_to_its_end_with_every_blank_unfilled(root, number):
    names, stood_in = ran(root, number)
    if number != "15":  # whose cells for a framework that is not here are left out
        assert stood_in == names


@pytest.mark.weekly
@pytest.mark.parametrize("number", ["04", "09"])
def test_a_chapter_runs_on_what_its_reader_wrote(root, number):
    _, stood_in = ran(root, number, filled=True)
    assert stood_in == []
