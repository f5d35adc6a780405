"""A learner's guess, shown beside what was measured; ten questions, asked first and last."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import Any

QUESTIONS = Path(__file__).resolve().parent.parent / "course/claims/questions.json"
ANSWERS = Path("my_answers.json")  # beside the notebook


def beside(guess: Any, seen: float) -> str:
    """Say how far a guess is from what was seen.

    Args:
        guess: A number, or None where none was made.
        seen: What came out, in the same unit.

    Returns:
        Empty for None, so that the output of a cell without a guess does not change.
    """
    if guess is None:
        return ""
    if isinstance(guess, bool) or not isinstance(guess, Real) or not isfinite(guess):
        return f"   (your guess, {guess!r}, is no number: write one, as in guess = 2.5)"
    ratio = f", {guess / seen:.2g} times that" if seen else ""
    return f"   (you guessed {guess:g}{ratio})"


def questions() -> list[dict[str, str]]:
    """Give the ten questions of chapters 00 and 16: three choices, the answer, and its claim."""
    found: list[dict[str, str]] = json.loads(QUESTIONS.read_text("utf-8"))
    return found


def keep(when: str, answers: Mapping[int, str | None], path: Path = ANSWERS) -> str:
    """Keep a reader's answers to `questions` in a file beside the notebook, and nowhere else.

    Args:
        when: `before` or `after` the course.
        answers: From a question's number, 1 for the first, to its letter, or to None.
        path: The file; what it keeps of other times stays.

    Returns:
        How many answers are kept, or which of them is none: then the file stays as it was.
    """
    given = {str(number): letter for number, letter in answers.items() if letter is not None}
    for number, letter in given.items():
        if letter not in ("a", "b", "c"):
            return f"Question {number}: {letter!r} is no answer. Write 'a', 'b' or 'c', or None."
    if not given:
        return "No answers yet: write letters in place of None, and run this cell again."
    path.write_text(json.dumps(kept(path) | {when: given}, indent=1), "utf-8")
    return f"{len(given)} of {len(questions())} answers are kept in {path.name}."


def kept(path: Path = ANSWERS) -> dict[str, dict[str, str]]:
    """Read the answers that `keep` wrote: by when they were given, then by question."""
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}
