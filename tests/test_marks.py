"""The marks of a lab cell."""

import pytest

from tutorial_lib.school.marks import Mark, cell_mark, is_misspelt, missing_packages


@pytest.mark.parametrize(
    ("source", "mark"),
    [
        ("# exercise 3.2\ndef f(): ...", Mark("exercise", "3.2", 0)),
        ("# check 3.2 (2 points)\nf()", Mark("check", "3.2", 2)),
        ("# check 10.11 (1 point)", Mark("check", "10.11", 1)),
        ("# hidden check 3.2 (1 point)\nf()", Mark("hidden check", "3.2", 1)),
        ("\n\n# exercise 3.2  \r\nx", Mark("exercise", "3.2", 0)),
    ],
)
def test_a_mark_is_read(source, mark):
    assert cell_mark(source) == mark
    assert not is_misspelt(source)


@pytest.mark.parametrize(
    "source",
    [
        "# exercise 3.2 (2 points)",
        "# Exercise 3.2",
        "#exercise 3.2",
        "# check 3.2",
        "# check 3.2 (0 points)",
        "# check 3.2 (-1 points)",
        "# check 3.2 (2 points) or more",
        "## hidden check 3.2 (1 point)",
    ],
)
def test_a_misspelt_mark_is_none_and_is_noticed(source):
    assert cell_mark(source) is None
    assert is_misspelt(source)


@pytest.mark.parametrize("source", ["", "x = 1\n# exercise 3.2", "# check x is 1", "# exercise"])
def test_other_cells_have_no_mark(source):
    assert cell_mark(source) is None
    assert not is_misspelt(source)


def test_what_cells_need_and_this_python_has_not_is_listed_once():
    cells = ["# needs json, no_b, no_a\nx", "\n# needs no_a \nx", "x\n# needs no_c", "#needs no_d"]
    assert missing_packages(cells) == ["no_a", "no_b"]
