"""Pages of a report: of a submission, an exercise, answers that are alike, and the class."""

import base64
import functools
import hashlib
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from solutions.grader.bench import solution
from solutions.grader.lab import Lab
from solutions.grader.report.class_list import Entry
from solutions.grader.report.roster import Student, readable, student_key
from solutions.grader.results import Graded
from solutions.grader.submissions.inspect_submission import structures

_SHARE = 0.8  # of the statements and expressions in two answers, both have this share
_SMALLEST = 8  # statements and expressions: everybody writes the same short answer
_EXERCISES = 2  # a single one may be chance, and so may a few of many: see `_alike`
_SOLUTION = Student("the course's solution")
_BLANK = "is still blank"  # in a check's message, about this exercise or one that it calls
_KINDS = ("all points", "some", "none", "blank")
_NUMBER = re.compile(r"\d[\d,.]*")
# a session's, or that of an answer's process
_STOPPED = re.compile(
    r"the (?:function|answer cell) of exercise \S+ (?P<how>.+)|your code (?P<does>starts .+)"
)
_TEMPLATES = Path(__file__).resolve().parents[1] / "pages"


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


def feedback_name(name: str) -> str:
    """Choose a page's place below `feedback/`: the submission's own, so that none share one."""
    folder, _, file = name.rpartition("/")
    # too long for a file system, or a folder where a file's page may go
    if len(os.fsencode(name)) > 240 or ".html/" in f"{folder}/":
        folder, file = "", f"{file[:50]}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}"
    return f"{folder}/{file}.html" if folder else f"{file}.html"


def feedback_page(lab: Lab, entry: Entry, version: str) -> str:
    """Write a student's page: points, messages, the code they are about. All is escaped."""
    title = f"{lab.heading} ({entry.name})"
    return _page("feedback.html", title=title, lab=lab, entry=entry, version=version)


def answers_page(lab: Lab, exercise: str, entries: Sequence[Entry]) -> str:
    """Write the instructor's page of one exercise: all answers side by side."""
    empty: tuple[list[str], ...] = ([], (lab.answers[exercise].blank or "").split())
    given = [one for one in entries if one.result.sources.get(exercise, "").split() not in empty]
    given.sort(key=lambda one: (one.grade(lab, exercise) or 0, one.result.message(lab, exercise)))
    facts = {"lab": lab, "exercise": exercise, "answers": given, "num_rows": len(entries)}
    return _page("answers.html", title=f"{lab.heading}, exercise {exercise}", **facts)


def alike_page(lab: Lab, groups: Sequence[Group]) -> str:
    """Write the instructor's page of answers that are alike, two side by side."""
    return _page("alike.html", title=f"{lab.heading}, answers alike", lab=lab, groups=groups)


def index_page(
    lab: Lab, entries: Sequence[Entry], said: Sequence[str], groups: Sequence[Group] = ()
) -> str:
    """Write the instructor's page: the class at a glance, and a row a submission."""
    graded = [entry for entry in entries if entry.result.status == "graded"]
    graded.sort(key=lambda one: one.grade(lab) or 0)  # the best row of a student counts
    counted = [*{one.student or student_key(one.result.name): one for one in graded}.values()]
    facts = {"lab": lab, "entries": entries, "said": said, "groups": groups}
    points = [one.grade(lab) or 0 for one in counted]
    facts |= {"counted": len(counted), "mean": fmean(points or [0]), "kinds": _KINDS}
    facts["totals"] = Counter(int(one) for one in points)
    findings, stopped = [], []
    for entry in entries:
        for exercise in lab.exercises:
            if ended := _STOPPED.match(entry.result.message(lab, exercise)):
                stopped.append((ended["how"] or ended["does"], entry, exercise))
        for exercise, lines in entry.result.findings.items():
            for place, _, what in (line.partition(": ") for line in lines):
                findings.append((what, entry, exercise, place))
    facts |= {"findings": _grouped(findings), "stopped": _grouped(stopped)}
    return _page("index.html", title=lab.heading, summary=by_exercise(lab, counted), **facts)


def _grouped(found: Sequence[tuple[Any, ...]]) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """Group rows by what stands first in them; the largest group comes first."""
    groups: dict[str, list[tuple[Any, ...]]] = {}
    for what, *others in found:
        groups.setdefault(what, []).append(tuple(others))
    return sorted(groups.items(), key=lambda one: -len(one[1]))


def by_exercise(lab: Lab, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Say for each exercise who has all points, who a blank, and what checks said most often.

    Messages that differ in numbers alone count as one.
    """
    found = []
    for exercise in lab.exercises:
        most = lab.maximum_of(exercise)
        points = [entry.grade(lab, exercise) or 0 for entry in entries]
        texts = [entry.result.message(lab, exercise) for entry in entries]
        blank = [_BLANK in text for text in texts]
        messages: dict[str, list[str]] = {}
        for text in texts:
            if text and _BLANK not in text:
                messages.setdefault(_NUMBER.sub("0", text), []).append(text)
        said = max(messages.values(), key=len, default=[""])
        kinds = Counter(
            _KINDS[0 if point == most else 1 if point else 2 + empty]
            for point, empty in zip(points, blank, strict=True)
        )
        facts = {"exercise": exercise, "blank": sum(blank), "mean": fmean(points or [0])}
        facts |= {"said": len(said) if messages else 0, "message": said[-1]}
        found.append(facts | {"kinds": [(kind, kinds[kind]) for kind in _KINDS]})
    return found


def _page(template: str, **facts: Any) -> str:
    return _pages().get_template(template).render(facts)


@functools.cache
def _pages() -> jinja2.Environment:
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        finalize=lambda value: readable(value) if type(value) is str else value,  # not our script
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (_TEMPLATES / "sort.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # by its hash: a browser runs this script, and none that a submission may have brought in
    pages.globals["link"] = lambda name: quote(os.fsencode(f"feedback/{feedback_name(name)}"))
    pages.globals |= {"script": Markup(script), "script_hash": digest}
    return pages
