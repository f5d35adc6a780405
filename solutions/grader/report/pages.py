"""Pages of a report: one a submission, one an exercise with all answers, one for the class."""

import base64
import functools
import hashlib
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from solutions.grader.lab import Lab
from solutions.grader.report.class_list import Entry
from solutions.grader.report.roster import student_key
from solutions.grader.report.tables import readable

_BLANK = "is still blank"  # in a check's message, about this exercise or one that it calls
_NUMBER = re.compile(r"\d[\d,.]*")
_TEMPLATES = Path(__file__).resolve().parents[1] / "pages"


def feedback_name(name: str) -> str:
    """Choose a page's place below `feedback/`: the submission's own, so that none share one."""
    folder, _, file = name.rpartition("/")
    # too long for a file system, or a folder where a file's page may go
    if len(os.fsencode(name)) > 240 or ".html/" in f"{folder}/":
        folder, file = "", f"{file[:50]}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}"
    return f"{folder}/{file}.html" if folder else f"{file}.html"


def feedback_page(lab: Lab, entry: Entry, version: str) -> str:
    """Write a student's page: points, messages, the code they are about. All is escaped."""
    title = f"{lab.name}: {entry.student.name if entry.student else entry.result.name}"
    return _page("feedback.html", title=title, lab=lab, entry=entry, version=version)


def answers_page(lab: Lab, exercise: str, entries: Sequence[Entry]) -> str:
    """Write the instructor's page of one exercise: all answers side by side."""
    blank = (lab.answers[exercise].blank or "").split()
    results = [entry.result for entry in entries]
    answers = [one for one in results if one.sources.get(exercise, "").split() not in ([], blank)]
    answers.sort(key=lambda one: (one.points(lab, exercise), one.message(lab, exercise)))
    facts = {"lab": lab, "exercise": exercise, "answers": answers, "num_rows": len(entries)}
    return _page("answers.html", title=f"{lab.name}, exercise {exercise}", **facts)


def index_page(lab: Lab, entries: Sequence[Entry], said: Sequence[str]) -> str:
    """Write the instructor's page: the class at a glance, and a row a submission."""
    best = {
        entry.student or student_key(entry.result.name): entry
        for entry in sorted(entries, key=lambda one: one.result.points(lab))
        if entry.result.status == "graded"
    }
    counted = [*best.values()]
    facts = {"lab": lab, "entries": entries, "said": said, "counted": len(counted)}
    facts["mean"] = fmean([one.result.points(lab) for one in counted] or [0])
    return _page("index.html", title=lab.name, summary=by_exercise(lab, counted), **facts)


def by_exercise(lab: Lab, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Say for each exercise who has all points, who a blank, and what checks said most often.

    Messages that differ in numbers alone count as one.
    """
    found = []
    for exercise in lab.exercises:
        points = [entry.result.points(lab, exercise) for entry in entries]
        texts = [entry.result.message(lab, exercise) for entry in entries]
        messages = [text for text in texts if text and _BLANK not in text]
        example = {_NUMBER.sub("0", text): text for text in messages}
        alike = Counter(_NUMBER.sub("0", text) for text in messages).most_common(1)
        ((message, said),) = alike or [("", 0)]
        facts = {"exercise": exercise, "said": said, "message": example.get(message, "")}
        facts["blank"] = sum(_BLANK in text for text in texts)
        found.append(facts | {"mean": fmean(points or [0]), "points": points})
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
