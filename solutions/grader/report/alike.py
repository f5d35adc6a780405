"""Students whose answers have the same structure, for a person to look at.

That says who may have worked together, and not who did. `tests/test_grading_alike.py` counts how
often answers that were written apart are alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from solutions.grader.bench import solution
from solutions.grader.lab import Lab
from solutions.grader.report.class_list import Entry
from solutions.grader.report.roster import Student
from solutions.grader.results import Graded
from solutions.grader.submissions.structure import structures

_SHARE = 0.8  # of the statements and expressions in two answers, both have this share
_SMALLEST = 8  # statements and expressions: everybody writes the same short answer
_EXERCISES = 2  # a single one may be chance, and so may a few of many: see `_alike`
_SOLUTION = Student("the course's solution")


@dataclass(frozen=True)
class Group:
    """Rows of the class of which each is like each other, and the exercises where they are."""

    rows: Sequence[Entry]
    exercises: Sequence[str]


def alike(lab: Lab, entries: Sequence[Entry]) -> list[Group]:
    """Group students by answers of the same structure; the course's solution counts as a student.

    Large groups come first. A student may be in several.
    """
    course = solution(lab)
    given = Graded("", "", sources=course.sources, structures=structures(lab, course))
    rows = [*entries, Entry(given, _SOLUTION)]
    parts = [{name: {*one} for name, one in row.result.structures.items()} for row in rows]
    found: dict[frozenset[int], list[str]] = {}
    for pair in combinations(range(len(rows)), 2):
        one, other = (rows[place] for place in pair)
        exercises = _alike(*(parts[place] for place in pair))
        if exercises and (one.student is None or one.student != other.student):
            found[frozenset(pair)] = exercises
    groups: list[set[int]] = []
    for both in sorted(found, key=lambda both: -len(found[both])):
        if any(both <= group for group in groups):
            continue
        for group in groups:
            if all(frozenset((x, y)) in found for x in both - group for y in group):
                group |= both
                break
        else:
            groups.append(set(both))
    groups.sort(key=len, reverse=True)
    return [
        Group(
            [rows[place] for place in sorted(group)],
            [
                name
                for name in lab.exercises
                if any(name in found.get(frozenset(pair), ()) for pair in combinations(group, 2))
            ],
        )
        for group in groups
    ]


def _alike(one: Mapping[str, set[int]], other: Mapping[str, set[int]]) -> list[str]:
    """List the exercises in which two students' answers are alike; none where those are few."""
    long = [
        name
        for name in one.keys() & other.keys()
        if min(len(one[name]), len(other[name])) >= _SMALLEST
    ]
    same = [
        name
        for name in long
        if len(one[name] & other[name]) >= _SHARE * len(one[name] | other[name])
    ]
    return same if len(same) >= max(_EXERCISES, len(long) / 2) else []
