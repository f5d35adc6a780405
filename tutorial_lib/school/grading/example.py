"""A class to try grading on: the lab with known answers in it, mixed by a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tutorial_lib.school.grading.errors import GradingError
from tutorial_lib.school.grading.known_answers import KnownAnswer, known_answers
from tutorial_lib.school.grading.lab import Lab, load_lab

_NAMES = (
    *("ann", "bob", "chloé", "david", "émile", "fatma", "grace", "hùng", "ines", "jürgen"),
    *("kim", "lars", "mária", "nia", "ömer", "pia", "qiang", "rosa", "søren", "tomás"),
)
_ODD = ("{} (1)", "-{}", "={}+1", "{} final FINAL", "{}/lab", "p[{}]")


def handed_in(lab: Lab, answers: Mapping[str, str]) -> dict[str, Any]:
    """Make the notebook of a student: the lab, with the source of some answer cells replaced.

    Args:
        lab: The lab; its blank twin is read from `labs/`.
        answers: Sources by exercise.
    """
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

    Args:
        name: Of the lab, as in `lab01`.
        folder: A folder that is new or empty.
        root: The course folder.
        num_students: How many submissions.
        seed: Of the mixture.

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
