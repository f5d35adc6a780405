"""Findings and notes about a submission's cells, without running them.

Parsing hostile text can end the process that does it, so this runs in `reader`'s program. It
imports nothing but a few small modules, so that it starts in a few hundredths of a second.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tutorial_lib.school.grading.lab import Lab
from tutorial_lib.school.grading.submissions.answers import NOT_PYTHON, Answers, Step, student_steps
from tutorial_lib.school.grading.submissions.needs import (
    WRITES_A_FILE,
    bound_names,
    cut,
    plain_python,
    tree_of,
    up_to,
    used_names,
)
from tutorial_lib.school.grading.submissions.review import (
    DENIED,
    HIDDEN,
    Finding,
    findings,
    imported,
)


def inspect_submission(lab: Lab, answers: Answers) -> Answers:
    """Add to answers what a person should read in them, notes for the student, and cuts."""
    sources = [cell.source for cell in lab.cells if cell.kind == "code" and not cell.mark]
    course = [tree for tree in map(tree_of, sources) if tree]
    references = [tree_of(answer.reference) for answer in lab.answers.values()]
    steps = student_steps(lab, answers)
    cells = _cells(steps)
    trees = [tree for _, _, tree in cells if tree]
    known = {name: path for tree in [*course, *trees] for name, path in imported(tree).items()}
    allowed = {path for tree in course for path in imported(tree).values()} - HIDDEN
    allowed -= {path for path in allowed for denied in DENIED if path.startswith(denied)}
    allowed |= _written(steps)
    solved = [findings(tree, known, allowed) for tree in references if tree]
    usual = {finding.what for some in solved for finding in some}
    of_course = {finding.what for tree in course for finding in findings(tree, known, allowed)}
    allowed |= {denied for denied in DENIED if any(what.startswith(denied) for what in usual)}
    found: dict[str, list[tuple[int, str, str]]] = {}
    for number, step, tree in cells:
        if tree is None:
            new = [Finding(1, NOT_PYTHON, "nobody sees what it does")]
        else:
            same = usual if "group" in step else usual | of_course
            new = [one for one in findings(tree, known, allowed) if one.what not in same]
        if new:
            new = new if step["exercise"] else [one._replace(line=0) for one in new]
            found.setdefault(number, []).extend(new)
    return replace(
        answers,
        findings=found,
        notes=[*answers.notes, *_notes(course, steps)],
        cuts={number: cut(up_to(steps, number)) for number in answers.parts},
    )


def _cells(
    steps: Sequence[Step],
) -> list[tuple[str, Step, ast.Module | None]]:
    """List the student's cells, whole: for which exercise, the step, and parsed."""
    cells: list[tuple[str, Step, ast.Module | None]] = []
    group = ""
    for step in reversed(steps):
        group = step.get("group", group)
        source = step["source"]
        if step["exercise"] or "keep" in step:
            if source.lstrip().startswith(WRITES_A_FILE):
                source = source.lstrip().partition("\n")[2]
            cells.append((group, step, tree_of(source)))
    return cells[::-1]


def _written(steps: Sequence[Step]) -> set[str]:
    """List the modules that cells write into files."""
    heads = [step["source"].lstrip().split("\n", 1)[0] for step in steps]
    return {Path(head.split()[-1]).stem for head in heads if head.startswith(WRITES_A_FILE)}


def _notes(course: Sequence[ast.Module], steps: Sequence[Step]) -> list[str]:
    """Say which changes of set-up cells had no effect, though an answer uses what was changed."""
    own = {ast.dump(statement) for tree in course for statement in tree.body}
    set_up = {name for tree in course for statement in tree.body for name in bound_names(statement)}
    used = {
        name
        for step in steps
        if step["exercise"]
        for name in used_names(plain_python(step["source"]))
    }
    changed: set[str] = set()
    for step in steps:
        tree = tree_of(step["source"]) if "keep" in step and "group" not in step else None
        for statement in tree.body if tree else ():
            if (
                not isinstance(statement, ast.Import | ast.ImportFrom)
                and ast.dump(statement) not in own
            ):
                changed |= bound_names(statement) & set_up & used
    return [
        f"{name} was changed in a cell of the course, and the course's own was used: give it "
        "another name in a cell of your own."
        for name in sorted(changed)
    ]
