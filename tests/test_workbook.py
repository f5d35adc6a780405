"""The learner's working copy: blank at first, and never without the learner's edits."""

import json

import nbformat
import pytest

from tutorial_lib.school import workbook


def notebook(**texts):
    cells = [nbformat.v4.new_code_cell(text, id=name) for name, text in texts.items()]
    return nbformat.v4.new_notebook(cells=cells)


@pytest.fixture
def course(tmp_path):
    for folder in ("course/blank", "labs"):
        (tmp_path / folder).mkdir(parents=True)
    nbformat.write(notebook(a="1", b="2", c="3"), tmp_path / "labs/lab01.ipynb")
    workbook.update(tmp_path)
    return tmp_path


def change(path, **texts):
    """Edit cells by id; `new` is added behind b, with a result."""
    cells = nbformat.read(path, as_version=4)
    for cell in cells.cells:
        cell.source = texts.get(cell.id, cell.source)
        cell.outputs = [nbformat.v4.new_output("stream", text=f"ran {cell.id}\n")]
    if "new" in texts:
        cells.cells.insert(2, nbformat.v4.new_code_cell(texts["new"], id="mine"))
    nbformat.write(cells, path)


def seen(course):
    cells = json.loads((course / "workbook/labs/lab01.ipynb").read_text())["cells"]
    return [("".join(cell["source"]), bool(cell["outputs"])) for cell in cells]


def test_a_learners_edits_cells_and_results_stay_and_the_rest_is_renewed(course):
    change(course / "workbook/labs/lab01.ipynb", a="my 1", new="mine")
    nbformat.write(notebook(a="1", b="2, better", c="3", d="4"), course / "labs/lab01.ipynb")
    assert workbook.update(course) == []
    wanted = [("my 1", True), ("2, better", False), ("mine", False), ("3", True), ("4", False)]
    assert seen(course) == wanted
    assert workbook.update(course) == []
    assert seen(course) == wanted
    folders = {path.name for path in (course / "workbook").iterdir()}
    assert folders == {"course", "labs"}  # solutions only where there are some


def test_a_cell_that_both_changed_is_the_learners_and_named(course):
    change(course / "workbook/labs/lab01.ipynb", a="my 1", c="my 3")
    nbformat.write(notebook(a="1, better", b="2"), course / "labs/lab01.ipynb")
    said = workbook.update(course)
    assert said == ["labs/lab01.ipynb: cell 'a' changed in the course; yours was kept."]
    assert [text for text, _ in seen(course)] == ["my 1", "2", "my 3"]


def test_a_file_that_cannot_be_read_is_put_aside(course):
    path = course / "workbook/labs/lab01.ipynb"
    path.write_text("{ half a notebook")
    assert "is lab01.unreadable.ipynb now" in workbook.update(course)[0]
    assert path.with_suffix(".unreadable.ipynb").read_text() == "{ half a notebook"
    assert len(seen(course)) == 3
    nbformat.validate(nbformat.read(path, as_version=4))


def test_tonight_is_the_first_of_the_list_and_links_follow_it(course):
    nbformat.write(notebook(a="1"), course / "course/blank/tonight.ipynb")
    first = nbformat.v4.new_markdown_cell("[now](tonight.ipynb)", id="b")
    start = nbformat.v4.new_notebook(cells=[first])
    nbformat.write(start, course / "course/blank/00_start_here.ipynb")
    assert workbook.update(course) == []
    names = [path.name for path in (course / "workbook/course").iterdir()]
    # as JupyterLab sorts: by characters, and punctuation comes before letters
    assert sorted(names, key=lambda name: name.replace("_", " ")) == [
        "00__tonight.ipynb",
        "00_start_here.ipynb",
    ]
    assert (
        "[now](00__tonight.ipynb)" in (course / "workbook/course/00_start_here.ipynb").read_text()
    )


def test_an_assistant_finds_the_rules_and_the_learners_own_stay(course, root):
    given = course / workbook.RULES
    mine, other = (course / "workbook" / name for name in ("AGENTS.md", "CLAUDE.md"))
    assert not mine.exists()
    given.write_text((root / workbook.RULES).read_text(encoding="utf-8"), encoding="utf-8")
    workbook.update(course)
    assert mine.read_text(encoding="utf-8").startswith(given.read_text(encoding="utf-8"))
    assert other.read_text(encoding="utf-8").startswith("@AGENTS.md\n")
    beside = course / "workbook/labs/AGENTS.md"  # of a chat that was opened in this folder
    assert beside.read_bytes() == mine.read_bytes()
    given.write_text("newer rules\n", encoding="utf-8")
    workbook.update(course)
    for path in (mine, beside):
        assert path.read_text(encoding="utf-8").startswith("newer rules\n")
    for text in (
        "rules of mine\n",
        mine.read_text(encoding="utf-8") + "and one of mine\n",
        "\ufffd",
    ):
        mine.write_text(text, encoding="utf-8")
        workbook.update(course)
        assert mine.read_text(encoding="utf-8") == text


def test_what_the_rules_name_is_there(root):
    text = (root / workbook.RULES).read_text(encoding="utf-8")
    assert len(text.split()) < 600  # a page
    blank = (root / "course/blank/10d_the_loss_that_does_not_fit.ipynb").read_text(encoding="utf-8")
    lab = (root / "labs/lab10_the_loss.ipynb").read_text(encoding="utf-8")
    for words in ("raise NotImplementedError", "Our lines", "Check: run this cell", "On paper"):
        assert words in " ".join(text.split())
        assert words in blank
    for words in ("# exercise", "# check"):
        assert f"`{words}`" in text
        assert f'"{words} 10.' in lab
    for folder in ("solutions/", "labs/checks/"):
        assert f"`{folder}`" in text
        assert (root / folder).is_dir()
    assert " progress`" in text
