"""Unusual submissions and answers, each with exactly its points; few now, all of them weekly."""

import copy
import json

import answers
import pytest
import toy
import unusual

from solutions.grader.lab import load_lab, read_cells
from solutions.grader.run import grade
from solutions.grader.submissions.answers import match_answers


def points(folder, submissions, lab, root, **options):
    """Grade notebooks by name; their points as a share of the maximum, and their review."""
    (folder / "class").mkdir()
    for name, content in submissions.items():
        (folder / "class" / f"{name}.ipynb").write_text(json.dumps(content))
    table = grade(lab, folder / "class", folder / "report", root=root, seed=3, **options)
    table["name"] = table["name"].str.removesuffix(".ipynb")
    table = table.set_index("name")
    return (table["points"] / table["maximum"]).to_dict(), table["review"].to_dict()


def toy_points(folder, names):
    root = toy.make_course(folder / "course")
    options = {"seconds": 4.0, "checks_package": "toychecks", "import_path": [toy.HERE]}
    submissions = {name: unusual.toy_submission(name) for name in names}
    return points(folder, submissions, "lab90", root, **options)


@pytest.mark.weekly
def test_every_unusual_submission_gets_all_points(tmp_path):
    shares, review = toy_points(tmp_path, unusual.ALL)
    assert {name: share for name, share in shares.items() if share < 1} == {}
    to_read = {"defined through globals", "a broken try before", "trials that exit"}
    to_read.add("method from the cell below")
    assert {name for name, numbers in review.items() if numbers} <= to_read


@pytest.mark.parametrize("name", answers.LABS)
def test_every_answer_is_found_whatever_editors_do(root, name):
    lab = load_lab(root, name)
    solved = json.loads(lab.path.read_text(encoding="utf-8"))
    wanted = {number: bare(one.reference) for number, one in lab.answers.items()}
    for kind, change in unusual.ANY.items():
        cells = change(copy.deepcopy(solved["cells"]))
        found = match_answers(lab, read_cells(json.loads(json.dumps({"cells": cells})))).sources
        assert [n for n in wanted if wanted[n] not in bare(f"#\n{found.get(n)}")] == [], kind


def bare(source):
    """Return a cell without its first line, and without blanks."""
    return "".join(source.split("\n", 1)[1].split())


# Daily the lab whose run halves change more of the process than others.
SOLVED = [
    name if name == "lab02" else pytest.param(name, marks=pytest.mark.weekly)
    for name in answers.LABS
]


@pytest.mark.parametrize("name", SOLVED)
def test_a_labs_own_solutions_get_all_points_where_they_are_graded(root, tmp_path, name):
    (path,) = (root / "solutions").glob(f"{name}_*.ipynb")
    shares, _ = points(tmp_path, {"solved": json.loads(path.read_text("utf-8"))}, name, root)
    assert shares == {"solved": 1}


@pytest.mark.weekly
@pytest.mark.parametrize("name", answers.LABS)
def test_answers_of_other_students_get_what_they_deserve(root, name):
    assert answers.faults(root, name) == {}
