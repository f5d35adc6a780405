"""Answers of the same structure: what is found, and how often answers are alike by chance."""

from itertools import combinations

import answers
import pytest
import toy

from solutions.answers.known import known_answers
from solutions.grader.lab import load_lab
from solutions.grader.report import pages
from solutions.grader.report.class_list import Entry
from solutions.grader.report.pages import alike
from solutions.grader.report.roster import Student
from solutions.grader.results import Graded
from solutions.grader.submissions.answers import plain_answers
from solutions.grader.submissions.inspect_submission import structure, structures

ONE, SAME, OTHER = (cells[0] for *_, cells in answers.read("../alike"))


def share(one, other):
    one, other = structure(one), structure(other)
    return len(one & other) / len(one | other)


def test_names_order_comments_and_annotations_are_ignored():
    assert share(ONE, SAME.replace("    extra: int = 7\n", "").replace(": int", "")) == 1
    assert share(ONE, OTHER) < 0.3
    assert share(ONE, ONE.replace("budget // 2", "budget // 3")) < 0.8


def entry(lab, name, sources):
    cells = {number: f"# exercise {number}\n{source}" for number, source in sources.items()}
    found = structures(lab, plain_answers(lab, cells))
    return Entry(Graded(name, "graded", sources=cells, structures=found), Student(name))


@pytest.fixture(scope="module")
def lab06(root):
    return load_lab(root, "lab06")


def test_copies_are_grouped_once_and_shown_side_by_side(lab06):
    right = {number: one.reference for number, one in lab06.answers.items()}
    long = ("6.4", "6.5", "6.6")
    wrong = {number: f"def f(a):\n    return [a + {number}, a.x<'{number}'>1]" for number in right}
    copied = {number: right[number].replace("loss", "l0ss") for number in long}
    half = {number: right[number] for number in long[:1]}
    rows = [entry(lab06, name, wrong | copied) for name in ("ann", "bob", "cem")]
    rows += [entry(lab06, "dee", wrong | half), entry(lab06, "eve", {})]
    (group,) = alike(lab06, rows)
    names = [row.name for row in group.rows]
    assert names == ["ann", "bob", "cem", "the course's solution"]
    assert set(long) <= set(group.exercises)
    page = pages.alike_page(lab06, [group])
    assert page.count("<article>") == 4 * len(group.exercises)
    assert "does not say who" in page
    assert 'href="feedback/ann.html"' in page
    assert 'href="alike.html">' in pages.index_page(lab06, rows, [], [group])
    assert "There are none." in pages.alike_page(lab06, [])


def test_short_answers_are_never_alike(lab):
    rows = [entry(lab, name, toy.ANSWERS) for name in ("ann", "bob")]
    assert alike(lab, rows) == []


@pytest.mark.weekly
def test_right_answers_written_apart_are_seldom_alike(root):
    """One pair of fifty, in one exercise; to be listed, students need two and half of all."""
    pairs, near = 0, []
    for name in answers.LABS:
        course = load_lab(root, name)
        given = [(number, "", one.reference) for number, one in course.answers.items()]
        written = [one for one in answers.read(name) if one[1] == "right"]
        given += [(number, title, "\n".join(cells)) for number, _, title, _, cells in written]
        known = [one for one in known_answers(root, course) if one.refused_with is None]
        given += [(one.exercise, one.name, one.cell) for one in known]
        parts = [
            (number, title, {*structures(course, plain_answers(course, {number: source}))[number]})
            for number, title, source in given
        ]
        for (number, title, one), (where, other_title, other) in combinations(parts, 2):
            if number == where and min(len(one), len(other)) >= 8:
                pairs += 1
                if len(one & other) >= 0.8 * len(one | other):
                    near.append(f"{number}: {title or 'the solution'}, {other_title}")
    print(f"{len(near)} of {pairs} pairs are alike:", *near, sep="\n")
    assert pairs > 400
    assert len(near) / pairs <= 0.02, near
