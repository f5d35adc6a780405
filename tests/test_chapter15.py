"""Chapters 15 and 15b: their comparison, and a note, no failure, where frameworks are missing."""

from importlib.util import find_spec

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

from tutorial_lib.school import authoring, marks

NOTEBOOKS = ("course/15_other_frameworks.ipynb", "course/15b_accumulation_elsewhere.ipynb")
FRAMEWORKS = ("flax", "haiku", "jax", "keras", "optax", "tensorflow")

without_the_extra = pytest.mark.skipif(
    any(map(find_spec, FRAMEWORKS)), reason="this is about an environment without the extra"
)


@pytest.fixture(params=NOTEBOOKS)
def notebook(request):
    return request.param


def read(root, notebook):
    return nbformat.read(root / notebook, as_version=4)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.fixture
def relative_error(root):
    chapter = read(root, "course/15_other_frameworks.ipynb")
    (cell,) = (cell for cell in code(chapter) if cell.id == "compare")
    names = {"np": np, "wanted": [np.array([1.0, 2.0]), np.array([[4.0]])]}
    exec(cell.source, names)
    return names["relative_error"]


@pytest.mark.parametrize(
    ("change", "equal"), [(0, True), (1e-5, True), (1e-4, False), (-8.0, False), (np.nan, False)]
)
def test_one_wrong_number_in_the_last_weight_is_noticed(relative_error, change, equal):
    first, last = np.array([1.0, 2.0]), np.array([[4.0 + change]])
    assert (relative_error([first, last]) < 1e-5) == equal
    with pytest.raises(ValueError, match="longer"):
        relative_error([first])


@without_the_extra
@pytest.mark.slow
@pytest.mark.weekly  # daily: what leaves cells out (test_frameworks), and a chapter that changed
def test_a_missing_framework_is_said_once_and_the_rest_goes_on(root, notebook):
    chapter = read(root, notebook)
    for cell in code(chapter):
        cell.outputs = []
    NotebookClient(chapter, resources={"metadata": {"path": str(root / "course")}}).execute()
    text = "".join(out.get("text", "") for cell in code(chapter) for out in cell.outputs)
    missing = marks.missing_packages(cell.source for cell in code(chapter))
    assert {"jax", "keras", "tensorflow"} <= {*missing} <= {*FRAMEWORKS}
    for name in missing:
        assert text.count(f"{name} is not installed: its cells are left out.\n") == 1
    last = [cell for cell in code(chapter) if not cell.source.startswith("# needs")][-1]
    assert "torch" in str(last.outputs).lower()
    assert "tensorflow" not in str(last.outputs).lower()


def toy(root, needs):
    for folder in ("source", "figures"):
        (root / "course" / folder).mkdir(parents=True, exist_ok=True)
    (root / "course/figures/colab-badge.png").write_text("<svg/>")
    (root / "pyproject.toml").write_text('[tool.tutorial]\nrepository = "a/b"\ntag = "v1"\n')
    text = f'# %% [markdown] id="title"\n# # Toy\n\n# %% id="one"\n# needs {needs}\n1 + 1\n'
    (root / "course/source/15_toy.py").write_text(text)
    return root / "course/15_toy.ipynb"


def test_a_build_leaves_it_out_and_keeps_what_is_there(tmp_path, capsys):
    notebook = toy(tmp_path, "json, no_such_package")
    assert notebook not in authoring.build(tmp_path)  # the blank form needs no run
    said = "left out course/15_toy.ipynb: it needs no_such_package to be executed.\n"
    assert capsys.readouterr().out == said
    assert not notebook.exists()
    assert notebook in authoring.build(toy(tmp_path, "json").parents[1])
    before = notebook.read_bytes()
    toy(tmp_path, "no_such_package")
    assert notebook not in authoring.build(tmp_path, force=True)
    assert notebook.read_bytes() == before
    assert authoring.check(tmp_path) != []  # it is stale, and that is said
