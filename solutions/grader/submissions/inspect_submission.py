"""Findings and notes about a submission's cells, without running them.

This runs in `reader`'s program, and so it imports nothing but a few small modules.
"""

import ast
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from solutions.grader.lab import Lab
from solutions.grader.submissions import review, slice_cells
from solutions.grader.submissions.answers import NOT_PYTHON, Answers, Step, student_steps

_LONG = 80  # parts of a syntax tree that the solution adds to the blank
_COPIED = "is the solution's, word for word, but for comments and names"


def inspect_submission(lab: Lab, answers: Answers) -> Answers:
    """Add to answers what a person should read in them, notes for the student, and cuts."""
    sources = [cell.source for cell in lab.cells if cell.kind == "code" and not cell.mark]
    course = [tree for tree in map(slice_cells.tree_of, sources) if tree]
    classes = [one for tree in course for one in tree.body if isinstance(one, ast.ClassDef)]
    known = {one.name: f"__main__.{one.name}" for one in classes}
    references = {
        number: ast.parse(slice_cells.plain_python(one.reference))
        for number, one in lab.answers.items()
    }
    steps = student_steps(lab, answers)
    cells = _cells(steps)
    for parsed in [*course, *(tree for _, _, tree in cells if tree)]:
        known |= review.imported(parsed)
    denied, hidden = review.WORDS["denied"], review.WORDS["hidden"]
    allowed = {path for tree in course for path in review.used(tree, known)}
    allowed -= {path for path in allowed for one in denied if path.startswith(one)}
    allowed |= {path for tree in course for path in review.imported(tree).values()}
    allowed |= {path for tree in references.values() for path in review.used(tree, known)}
    heads = [step["source"].lstrip().split("\n", 1)[0] for step in steps]
    writes = slice_cells.WRITES_A_FILE  # a module, into a file
    written = {Path(head.split()[-1]).stem for head in heads if head.startswith(writes)}
    allowed = (allowed - hidden - denied) | written

    def read(tree: ast.Module) -> list[review.Finding]:
        return review.findings(tree, known, allowed)

    usual = {one.what for tree in references.values() for one in read(tree)}
    of_course = {one.what for tree in course for one in read(tree)}
    allowed |= {one for one in denied if any(what.startswith(one) for what in usual)}
    found: dict[str, list[tuple[int, str, str]]] = {}
    for number, step, tree in cells:
        if tree is None:
            new = [review.Finding(1, NOT_PYTHON, "nobody sees what it does")]
        else:
            same = usual if "group" in step else usual | of_course
            new = [one for one in read(tree) if one.what not in same]
            runs = slice_cells.RUNS_A_FILE.findall(step["source"])
            if not {Path(file).stem for file in runs} <= written:
                new.append(review.Finding(1, "%run", "runs a file that no cell shows"))
            if step["exercise"]:
                whole = _shape(references[number])
                blank = slice_cells.tree_of(lab.answers[number].blank or "") or tree
                if len(whole) - len(_shape(blank)) >= _LONG and _shape(tree) == whole:
                    new.append(review.Finding(1, "this answer", _COPIED))
        if new:
            new = new if step["exercise"] else [one._replace(line=0) for one in new]
            found.setdefault(number, []).extend(new)
    cuts = {number: slice_cells.cut(slice_cells.up_to(steps, number)) for number in answers.parts}
    notes = [*answers.notes, *_notes(course, steps)]
    return replace(answers, findings=found, notes=notes, cuts=cuts)


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


def _shape(tree: ast.AST) -> list[tuple[object, ...]]:
    """List the parts of a cell without its docstrings; its own variables become numbers."""
    nodes = list(ast.walk(tree))
    texts = (n for n in nodes if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))
    prose = {id(part) for text in texts for part in (text, text.value)}
    kinds = (ast.arg, ast.FunctionDef, ast.ClassDef)
    own = [getattr(n, "arg", getattr(n, "name", "")) for n in nodes if isinstance(n, kinds)]
    own += [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    number = {name: place for place, name in enumerate(dict.fromkeys(own))}
    found: list[tuple[object, ...]] = []
    for node in nodes:
        word = getattr(node, "attr", getattr(node, "value", None))
        word = number.get(node.id, node.id) if isinstance(node, ast.Name) else word
        found += [(type(node), word if isinstance(word, str | float | int) else None)]
    return [one for one, node in zip(found, nodes, strict=True) if id(node) not in prose]


def _notes(course: Sequence[ast.Module], steps: Sequence[Step]) -> list[str]:
    """Say which changes of set-up cells had no effect, though an answer uses what was changed."""
    statements = [statement for tree in course for statement in tree.body]
    own = set(map(ast.dump, statements))
    set_up = set().union(*map(slice_cells.bound_names, statements))
    answers = [slice_cells.plain_python(step["source"]) for step in steps if step["exercise"]]
    used = set().union(*map(slice_cells.used_names, answers))
    edited = [step["source"] for step in steps if "keep" in step and "group" not in step]
    changed: set[str] = set()
    for tree in filter(None, map(slice_cells.tree_of, edited)):
        for statement in tree.body:
            is_import = isinstance(statement, ast.Import | ast.ImportFrom)
            if not is_import and ast.dump(statement) not in own:
                changed |= slice_cells.bound_names(statement) & set_up & used
    return [
        f"{name} was changed in a cell of the course, and the course's own was used: give it "
        "another name in a cell of your own."
        for name in sorted(changed)
    ]
