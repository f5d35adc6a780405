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
        near = (g for g in groups if all(frozenset((x, y)) in found for x in both - g for y in g))
        if group := next(near, None):
            group |= both
        else:
            groups.append(set(both))
    shared = [{name for pair in found if pair <= group for name in found[pair]} for group in groups]
    listed = [
        Group([rows[i] for i in sorted(group)], [n for n in lab.exercises if n in names])
        for group, names in zip(groups, shared, strict=True)
    ]
    return sorted(listed, key=lambda group: -len(group.rows))


def _alike(one: Mapping[str, set[int]], other: Mapping[str, set[int]]) -> list[str]:
    """List the exercises in which two students' answers are alike; none where those are few."""
    both = [(name, one[name], other[name]) for name in one.keys() & other.keys()]
    long = [some for some in both if min(map(len, some[1:])) >= _SMALLEST]
    same = [name for name, mine, yours in long if len(mine & yours) >= _SHARE * len(mine | yours)]
    return same if len(same) >= max(_EXERCISES, len(long) / 2) else []
