"""Answers to a lab whose verdict is known: solutions/answers/labNN; and a class made of them."""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from solutions.grader import GradingError
from solutions.grader.lab import Lab, load_lab
from solutions.grader.submissions.slice_cells import bound_names, statements, used_names

_PACKAGE = "solutions.answers"
_MARKS = ("wrong", "right")
_NAMES = (
    *("ann", "bob", "chloé", "david", "émile", "fatma", "grace", "hùng", "ines", "jürgen"),
    *("kim", "lars", "mária", "nia", "ömer", "pia", "qiang", "rosa", "søren", "tomás"),
)
_ODD = ("{} (1)", "-{}", "={}+1", "{} final FINAL", "{}/lab", "p[{}]")


@dataclass(frozen=True)
class KnownAnswer:
    """An answer to one exercise.

    Args:
        exercise: As in `1.2`.
        name: Says what it does, as in `counts_elements`.
        refused_with: A part of the message that it must get; None where it must pass.
        cell: The source of an answer cell.
    """

    exercise: str
    name: str
    refused_with: str | None
    cell: str


def known_answers(root: Path, lab: Lab) -> list[KnownAnswer]:
    """Read the wrong and right answers to a lab; none where there are none."""
    folder = root / "solutions" / "answers" / lab.name.split("_")[0]
    found = []
    for number in lab.exercises:
        file = folder / f"ex{number.replace('.', '_')}.py"
        if file.is_file():
            body = ast.parse(file.read_text(encoding="utf-8")).body
            plain = _plain(folder.parent, deepcopy(body))
            for name, mark in marked_in(body):
                words, *changes = _words_and_changes(mark)
                reference = lab.answers[number].reference
                cell = changed(reference, *changes) if changes else _cell(lab, number, plain, name)
                found.append(KnownAnswer(number, name, words, cell))
    return found


def changed(source: str, *parts: str) -> str:
    """Replace parts of a source, `old, new, old, new`, of which each old one stands there once."""
    for old, new in zip(parts[::2], parts[1::2], strict=True):
        if source.count(old) != 1:
            raise GradingError(f"{old!r} stands {source.count(old)} times in {source!r}: not once.")
        source = source.replace(old, new)
    return source


def marked_in(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Find what is decorated with a mark, `@right`, or made by one.

    That is `f = wrong("...")(...)`, or `f = wrong("...", "old", "new")`, a change of the solution.
    """
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from ((node.name, mark) for mark in node.decorator_list if _is_mark(mark))
        elif isinstance(node, ast.Assign) and (mark := _mark_around(node.value)):
            yield from ((ast.unparse(target), mark) for target in node.targets)


def _is_mark(node: ast.expr) -> bool:
    return ast.unparse(node).partition("(")[0] in _MARKS


def _mark_around(value: ast.expr) -> ast.expr | None:
    if not (isinstance(value, ast.Call) and _is_mark(value.func)):
        return None
    is_change = isinstance(value.func, ast.Name) and isinstance(value.args[0], ast.Constant)
    return value if is_change else value.func


def _words_and_changes(mark: ast.expr) -> list[Any]:
    """Return a mark's words, None where it has none, and its changes of the solution."""
    given = [ast.literal_eval(part) for part in mark.args] if isinstance(mark, ast.Call) else []
    return given if ast.unparse(mark).startswith("wrong") else [None, *given]


def _plain(folder: Path, body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Take the marks off, and put what is imported from a lab's `__init__` in its place."""
    kept: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.ImportFrom) and (module := node.module or "").startswith(_PACKAGE):
            if module != _PACKAGE:
                shared = folder / module.split(".")[2] / "__init__.py"
                kept += _plain(folder, ast.parse(shared.read_text(encoding="utf-8")).body)
            continue
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            node.decorator_list = [mark for mark in node.decorator_list if not _is_mark(mark)]
        elif isinstance(node, ast.Assign) and (mark := _mark_around(node.value)):
            if mark is node.value:
                continue
            (node.value,) = node.value.args  # type: ignore[attr-defined]
        kept.append(node)
    return kept


def _cell(lab: Lab, number: str, body: Sequence[ast.stmt], name: str) -> str:
    """Write an answer cell that holds one answer, and of its file what that needs."""
    own = "\n\n".join(map(ast.unparse, _needed_for(name, body)))
    asked = _asked(lab, number)
    lines = [f"# exercise {number}"]
    if "solved(" in own:
        lines += _solved(lab, number, own)
    return "\n".join([*lines, own, *([] if name == asked else [f"{asked} = {name}"])]) + "\n"


def _needed_for(name: str, body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """List the statements that an answer needs, of those below it too."""
    names, kept, before = {name}, set[int](), -1
    while before < len(kept):
        before = len(kept)
        for place, node in enumerate(body):
            if place not in kept and names & bound_names(node):
                kept.add(place)
                names |= used_names(ast.unparse(node))
    return [node for place, node in enumerate(body) if place in kept]


def _asked(lab: Lab, number: str) -> str:
    """Name what the checks of an exercise ask for, of all that its answer cell defines."""
    used: set[str] = set()
    for cell in lab.cells:
        if cell.mark and cell.mark.kind != "exercise" and cell.mark.number == number:
            used |= used_names(cell.source)
    (name,) = used & set(lab.answers[number].names)
    return name


def _solved(lab: Lab, number: str, text: str) -> list[str]:
    """Define `solved`: what the solution defines up to here, as far as an answer asks for it."""
    nodes = list(ast.walk(ast.parse(text)))
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    attributes |= {str(node.value) for node in nodes if isinstance(node, ast.Constant)}  # getattr
    there, needed = set[str](), set(attributes)
    for cell in lab.cells:
        if cell.kind == "code" and (cell.mark is None or cell.number):
            bound = set().union(*map(bound_names, statements(cell.source)))
            there |= bound
            if bound & attributes:  # a given class may call the answer, as lab 02's Births does
                needed |= used_names(cell.source)
        if cell.number == number:
            break
    # an attribute of something else may be called like what a set-up cell leaves out here
    given = ", ".join(
        f"{name}={name} if {name!r} in globals() else None" for name in sorted(attributes & there)
    )
    answer = lab.answers[number]
    own = [answer.reference] if needed & set(answer.names) else []
    made = [f"solution = types.SimpleNamespace({given})", "solved = lambda lab: solution"]
    return [*own, "import types", *made]


def handed_in(lab: Lab, answers: Mapping[str, str]) -> dict[str, Any]:
    """Make the notebook of a student: the lab, with the source of some answer cells replaced."""
    blank = lab.path.parents[1] / "labs" / lab.path.name
    notebook: dict[str, Any] = json.loads(blank.read_text(encoding="utf-8"))
    sources = {lab.answers[number].id: source for number, source in answers.items()}
    for cell in notebook["cells"]:
        if cell["id"] in sources:
            cell["source"] = sources[cell["id"]]
    return notebook


def write_example(
    name: str, folder: Path, *, root: Path, num_students: int = 30, seed: int = 0
) -> int:
    """Write an example class: the solution, the blank, one broken file, and mixtures.

    Returns:
        How many files were written.

    Raises:
        GradingError: When something is in the folder already.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise GradingError(f"{folder} is not empty: give a new folder for the example.")
    lab = load_lab(root.resolve(), name)
    known, draw = known_answers(root, lab), random.Random(seed)
    solved = {number: answer.reference for number, answer in lab.answers.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for student in range(num_students):
        answers = [solved, {}, solved][student] if student < 3 else _mixture(lab, known, draw)
        path = folder / f"{_name(student)}.ipynb"
        path.parent.mkdir(exist_ok=True)
        text = json.dumps(handed_in(lab, answers), indent=1)
        path.write_text(text[: len(text) // 2] if student == 2 else text, encoding="utf-8")
    return num_students


def _mixture(lab: Lab, known: list[KnownAnswer], draw: random.Random) -> dict[str, str]:
    """Choose an answer to each exercise: mostly the solution's, else a known one, or none."""
    answers = {}
    for number, answer in lab.answers.items():
        others = [one.cell for one in known if one.exercise == number]
        kind = draw.random()
        if kind < 0.5 or (kind < 0.9 and not others):
            answers[number] = answer.reference
        elif kind < 0.9:
            answers[number] = draw.choice(others)
    return answers


def _name(student: int) -> str:
    name = _NAMES[student % len(_NAMES)] + str(student // len(_NAMES) or "")
    return _ODD[student % len(_ODD)].format(name) if student % 4 == 3 else name
