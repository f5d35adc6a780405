"""Findings and notes about a submission's cells, without running them.

This runs in `reader`'s program, and so it imports nothing but a few small modules.
"""

import ast
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from solutions.grader.lab import Lab
from solutions.grader.submissions import review, slice_cells
from solutions.grader.submissions.answers import NOT_PYTHON, Answers, Step
from solutions.grader.submissions.structure import structures


class Course:
    """What the lab and its solution use: the measure of an answer, the same for all."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        sources = [cell.source for cell in lab.cells if cell.kind == "code" and not cell.mark]
        trees = [tree for tree in map(slice_cells.tree_of, sources) if tree]
        solved = [slice_cells.tree_of(one.reference) for one in lab.answers.values()]
        references = [tree for tree in solved if tree]
        self.statements = [statement for tree in trees for statement in tree.body]
        classes = [one for one in self.statements if isinstance(one, ast.ClassDef)]
        self.known = {one.name: f"__main__.{one.name}" for one in classes}
        for tree in (*trees, *references):
            self.known |= review.imported(tree)
        denied, hidden = review.WORDS["denied"], review.WORDS["hidden"]
        allowed = {path for tree in trees for path in review.used(tree, self.known)}
        allowed -= {path for path in allowed for one in denied if path.startswith(one)}
        allowed |= {path for tree in trees for path in review.imported(tree).values()}
        allowed |= {path for tree in references for path in review.used(tree, self.known)}
        self.allowed = allowed - hidden - denied
        # what is found in these is nothing to read in an answer
        self.in_answers = self._found(references)
        self.in_cells = self.in_answers | self._found(trees)
        usual = {one for one in denied if any(what.startswith(one) for what in self.in_answers)}
        self.allowed |= usual
        self.dumps = set(map(ast.dump, self.statements))
        self.names = set().union(*map(slice_cells.bound_names, self.statements))

    def _found(self, trees: Sequence[ast.Module]) -> set[str]:
        findings = (review.findings(tree, self.known, self.allowed) for tree in trees)
        return {one.what for some in findings for one in some}


def inspect_submission(course: Course, answers: Answers) -> Answers:
    """Add to answers what a person should read in them, notes for the student, and cuts."""
    steps = answers.steps
    cells = _cells(steps)
    known = dict(course.known)
    for parsed in (tree for _, _, tree in cells if tree):
        known |= review.imported(parsed)
    heads = [step["source"].lstrip().split("\n", 1)[0] for step in steps]
    writes = slice_cells.WRITES_A_FILE  # a module, into a file
    written = {Path(head.split()[-1]).stem for head in heads if head.startswith(writes)}
    found: dict[str, list[tuple[int, str, str]]] = {}
    for number, step, tree in cells:
        if tree is None:
            new = [review.Finding(1, NOT_PYTHON, "nobody sees what it does")]
        else:
            same = course.in_answers if "group" in step else course.in_cells
            every = review.findings(tree, known, course.allowed | written)
            new = [one for one in every if one.what not in same]
            runs = slice_cells.RUNS_A_FILE.findall(step["source"])
            if not {Path(file).stem for file in runs} <= written:
                new.append(review.Finding(1, "%run", "runs a file that no cell shows"))
        if new:
            new = new if step["exercise"] else [one._replace(line=0) for one in new]
            found.setdefault(number, []).extend(new)
    cuts = {number: slice_cells.cut(slice_cells.up_to(steps, number)) for number in answers.cells()}
    notes = [*answers.notes, *_notes(course, steps)]
    shapes = structures(course.lab, answers)
    return replace(answers, findings=found, notes=notes, cuts=cuts, structures=shapes)


def _cells(steps: Sequence[Step]) -> list[tuple[str, Step, ast.Module | None]]:
    """List the student's cells, whole: for which exercise, the step, and parsed."""
    cells: list[tuple[str, Step, ast.Module | None]] = []
    group = ""
    for step in reversed(steps):
        group = step.get("group", group)
        source = step["source"]
        if step["exercise"] or "keep" in step:
            if source.lstrip().startswith(slice_cells.WRITES_A_FILE):
                source = source.lstrip().partition("\n")[2]
            cells.append((group, step, slice_cells.tree_of(source)))
    return cells[::-1]


def _notes(course: Course, steps: Sequence[Step]) -> list[str]:
    """Say which changes of set-up cells had no effect, though an answer uses what was changed."""
    answers = [slice_cells.plain_python(step["source"]) for step in steps if step["exercise"]]
    used = set().union(*map(slice_cells.used_names, answers))
    edited = [step["source"] for step in steps if "keep" in step and "group" not in step]
    changed: set[str] = set()
    for tree in filter(None, map(slice_cells.tree_of, edited)):
        for statement in tree.body:
            is_import = isinstance(statement, ast.Import | ast.ImportFrom)
            if not is_import and ast.dump(statement) not in course.dumps:
                changed |= slice_cells.bound_names(statement) & course.names & used
    return [
        f"{name} was changed in a cell of the course, and the course's own was used: give it "
        "another name in a cell of your own."
        for name in sorted(changed)
    ]
