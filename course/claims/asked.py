"""Ten questions about the course's claims, asked first and last; a reader's answers are kept."""

import json
from collections.abc import Mapping
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any

from tutorial_lib.claims import FOLDER

QUESTIONS = FOLDER / "questions.json"
ANSWERS = Path("my_answers.json")  # beside the notebook
VIEW = "application/vnd.jupyter.widget-view+json"


def questions() -> list[dict[str, str]]:
    """Ten questions of chapters 00 and 16: three choices, the answer, and its claim."""
    found: list[dict[str, str]] = json.loads(QUESTIONS.read_text("utf-8"))
    return found


class Form(str):
    """What `keep` says; a front end shows buttons for the ten questions with it."""

    when: str
    answers: dict[int, str | None]
    path: Path

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": repr(str(self)), "text/html": self._listed()}
        with suppress(ImportError):
            view = {"version_major": 2, "version_minor": 0, "model_id": self._buttons().model_id}
            bundle[VIEW] = view
        return bundle

    def _listed(self) -> str:
        """List the questions, where no buttons can show."""
        items = [
            f"<li>{escape(asked['question'])}<br>"
            + "<br>".join(f"{letter}: {escape(asked[letter])}" for letter in "abc")
            for asked in questions()
        ]
        return f"<ol>{''.join(items)}</ol><p>{escape(self)}</p>"

    def _buttons(self) -> Any:
        """Build radio buttons; each press keeps all answers."""
        import ipywidgets

        before = kept(self.path).get(self.when, {})
        words = self if before else "No answers yet: press a choice, and it is kept at once."
        said, rows = ipywidgets.HTML(f'<p role="status">{escape(words)}</p>'), []

        def press(number: int, letter: str) -> None:
            self.answers[number] = letter
            words = _keep(self.when, self.answers, self.path)
            said.value = f'<p role="status">{escape(words)}</p>'

        wide = {"width": "auto"}
        for number, asked in enumerate(questions(), 1):
            letter = self.answers.get(number) or before.get(str(number))
            self.answers[number] = letter if letter in ("a", "b", "c") else None
            choices = [(asked[letter], letter) for letter in "abc"]
            chosen = ipywidgets.RadioButtons(
                options=choices, value=self.answers[number], layout=wide
            )
            chosen.observe(lambda change, n=number: press(n, change["new"]), "value")
            rows += [ipywidgets.HTML(f"<b>{number}. {escape(asked['question'])}</b>"), chosen]
        return ipywidgets.VBox([*rows, said])


def keep(when: str, answers: Mapping[int, str | None], path: Path = ANSWERS) -> Form:
    """Keep a reader's answers to `questions` in a file beside the notebook, and nowhere else.

    Args:
        when: `before` or `after` the course.
        answers: From a question's number, 1 for the first, to its letter, or to None.
        path: The file; what it keeps of other times stays.

    Returns:
        How many answers are kept, or which of them is none: then the file stays as it was. Shown
        as the last value of a cell, it has buttons to answer with, where a front end is there.
    """
    form = Form(_keep(when, answers, path))
    form.when, form.answers, form.path = when, dict(answers), path
    return form


def _keep(when: str, answers: Mapping[int, str | None], path: Path) -> str:
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
