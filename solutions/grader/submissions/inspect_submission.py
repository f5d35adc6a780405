"""Findings and notes about a submission's cells, and their structure, without running them.

The structure of an answer is what is left without its own names, order, comments and annotations.
This runs in `reader`'s program, and so it imports nothing but a few small modules.
"""

import ast
import functools
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from solutions.grader import words
from solutions.grader.lab import Lab
from solutions.grader.submissions import review
from solutions.grader.submissions.answers import NOT_PYTHON, Answers, Step
from solutions.grader.submissions.slice_cells import (
    RUNS_A_FILE,
    WRITES_A_FILE,
    bound_names,
    cut,
    plain_python,
    tree_of,
    up_to,
    used_names,
)

_SMALLEST = 5  # nodes of a part: below that everybody's code is alike
_LEFT_OUT = {"ctx", "annotation", "returns", "type_comment", "kind", "asname"}
_BINDS = (ast.arg, ast.FunctionDef, ast.ClassDef, ast.alias)


class Course:
    """What the lab and its solution use: the measure of an answer, the same for all."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        sources = [cell.source for cell in lab.cells if cell.kind == "code" and not cell.mark]
        trees = [*filter(None, map(tree_of, sources))]
        references = [*filter(None, (tree_of(one.reference) for one in lab.answers.values()))]
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
        self.allowed |= {one for one in denied if any(w.startswith(one) for w in self.in_answers)}
        self.dumps = set(map(ast.dump, self.statements))
        self.names = set().union(*map(bound_names, self.statements))

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
    written = {Path(head.split()[-1]).stem for head in heads if head.startswith(WRITES_A_FILE)}
    found: dict[str, list[tuple[int, str, str]]] = {}
    for number, step, tree in cells:
        if tree is None:
            new = [review.Finding(1, NOT_PYTHON, "nobody sees what it does")]
        else:
            same = course.in_answers if "group" in step else course.in_cells
            every = review.findings(tree, known, course.allowed | written)
            new = [one for one in every if one.what not in same]
            runs = RUNS_A_FILE.findall(step["source"])
            if not {Path(file).stem for file in runs} <= written:
                new.append(review.Finding(1, "%run", "runs a file that no cell shows"))
        if new:
            new = new if step["exercise"] else [one._replace(line=0) for one in new]
            found.setdefault(number, []).extend(new)
    cuts = {number: cut(up_to(steps, number)) for number in answers.cells()}
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
            if source.lstrip().startswith(WRITES_A_FILE):
                source = source.lstrip().partition("\n")[2]
            cells.append((group, step, tree_of(source)))
    return cells[::-1]


def _notes(course: Course, steps: Sequence[Step]) -> list[str]:
    """Say which changes of set-up cells had no effect, though an answer uses what was changed."""
    answers = [plain_python(step["source"]) for step in steps if step["exercise"]]
    used = set().union(*map(used_names, answers))
    edited = [step["source"] for step in steps if "keep" in step and "group" not in step]
    changed: set[str] = set()
    for tree in filter(None, map(tree_of, edited)):
        for statement in tree.body:
            is_import = isinstance(statement, ast.Import | ast.ImportFrom)
            if not is_import and ast.dump(statement) not in course.dumps:
                changed |= bound_names(statement) & course.names & used
    return [words("changed", name=name) for name in sorted(changed)]


def structures(lab: Lab, answers: Answers) -> dict[str, list[int]]:
    """List the structure of each exercise's answer, without what the lab itself gives."""
    given = (cell.source for cell in lab.cells if cell.kind == "code" and not cell.mark)
    of_course = structure(*given)
    return {
        number: sorted(structure(*cells) - of_course - structure(lab.answers[number].blank or ""))
        for number, cells in answers.cells().items()
    }


@functools.cache  # for what the lab gives
def structure(*sources: str) -> frozenset[int]:
    """Return a number for each statement and expression in some cells, but for the smallest.

    Two of them have the same number when they differ only in names that the cells choose, in the
    order of statements, in docstrings and annotations.
    """
    nodes = [node for tree in filter(None, map(tree_of, sources)) for node in ast.walk(tree)]
    stores = [node for node in nodes if isinstance(getattr(node, "ctx", None), ast.Store)]
    own = {_name(node) for node in (*stores, *(n for n in nodes if isinstance(n, _BINDS)))}
    code: dict[int, int] = {}
    size: dict[int, int] = {}
    for node in reversed(nodes):  # children come first, and no depth is too much
        words: list[object] = [type(node).__name__]
        inner: list[ast.AST] = []
        for field, value in ast.iter_fields(node):
            if field in _LEFT_OUT:
                continue
            some = value if isinstance(value, list) else [value]
            children = [one for one in some if isinstance(one, ast.AST) and not _is_prose(one)]
            numbers = [code[id(one)] for one in children]
            if children and isinstance(children[0], ast.stmt):
                numbers.sort()
            plain = [None if one in own else one for one in some if not isinstance(one, ast.AST)]
            words += [field, numbers, plain]
            inner += children
        code[id(node)] = zlib.crc32(repr(words).encode("utf-8", "backslashreplace"))
        size[id(node)] = 1 + sum(size[id(one)] for one in inner)
    kept = [one for one in nodes if isinstance(one, ast.stmt | ast.expr) and not _is_prose(one)]
    return frozenset(code[id(one)] for one in kept if size[id(one)] >= _SMALLEST)


def _name(node: ast.AST) -> str:
    fields: Iterable[str] = ("asname", "id", "arg", "attr", "name")
    return next((name for one in fields if (name := getattr(node, one, None))), "")


def _is_prose(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
