"""Grading: nbval drives the judge on the pristine lab; the student's code runs in a sandbox.

Two processes, and one idea: the kernel that decides never executes a line of a submission.
`run.grade` grades a class.
"""

import tomllib
from pathlib import Path

_WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text("utf-8"))


class GradingError(ValueError):
    """A class cannot be graded as asked: says what came, what was needed and what to try."""


class NotGradable(Exception):  # noqa: N818 - a finding about one file, and no failure of grading
    """One submission cannot be graded: the status for `scores.csv`, and a sentence for its page."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def words(key: str, /, **facts: object) -> str:
    """Return a sentence of `words.toml`, with facts filled in."""
    return str(_WORDS[key]).format(**facts)
