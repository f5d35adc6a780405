"""The progress that a long cell shows, and the page on what a learner has done."""

import shutil

import nbformat
import pytest

from tutorial_lib.school import workbook
from tutorial_lib.school.commands import progress as done
from tutorial_lib.school.commands.main import main


@pytest.fixture
def course(tmp_path):
    """A chapter with a blank and a lab with two checks, given and in a working copy."""
    chapter = {"a": "1", "blank": 'def f():\n    raise NotImplementedError("exercise")', "b": "2"}
    lab = {"answer": "# exercise 1.1\nraise NotImplementedError", "c": "# check 1.1 (2 points)\n1"}
    lab |= {"d": "# check 1.2 (1 point)\n1"}
    names = {"course/blank/00_a": chapter, "course/blank/tonight": {"a": "1"}, "labs/lab01_b": lab}
    for name, texts in names.items():
        cells = [nbformat.v4.new_code_cell(text, id=one) for one, text in texts.items()]
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / f"{name}.ipynb")
    workbook.update(tmp_path)
    return tmp_path


def work(path, **texts):
    """Run cells, by id: the text is the learner's, None that of the course; "!" fails."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.id in texts:
            text = texts[cell.id]
            cell.execution_count = 1
            failed = [nbformat.v4.new_output("error", ename="E", evalue="e", traceback=[])]
            cell.outputs = failed if text == "!" else []
            cell.source = cell.source if text in (None, "!") else text
    nbformat.write(notebook, path)


def test_progress_is_read_from_the_working_copy(course, monkeypatch, capsys):
    assert "not begun: 3, from 00_a on" in done.text(course)
    work(course / "workbook/course/00_a.ipynb", a=None, blank="def f():\n    return 1", b=None)
    work(course / "workbook/labs/lab01_b.ipynb", answer="!", c=None, d="!")
    said = done.text(course)
    assert "00_a                                    3 of 3          1 of 1  done" in said
    assert "lab01_b                                 1 of 3          0 of 1      2 of 3" in said
    assert "1 of 2 chapters and 0 of 1 labs done, 1 of 2 blanks filled, 2 of 3 points" in said
    (course / "workbook/course/00_a.ipynb").write_text("{ half")
    assert "0 of 2 chapters" in done.text(course)
    shutil.rmtree(course / "workbook")
    monkeypatch.setattr("tutorial_lib.school.bootstrap.ROOT", course)
    assert main(["progress"]) == 0
    assert "lab` makes it" in capsys.readouterr().out
