"""Counts that an answer cannot put back, since they are kept outside of its process.

The judge's own operations report each call at once. In a notebook nobody listens, and a run half
gives its own counts. Where an answer is graded, each report leaves the process before the next line
runs, and the judge reads the counts that came instead of those that the process claims.
"""

from __future__ import annotations

from collections.abc import Callable

from tutorial_lib.checks import read
from tutorial_lib.checks.core import Result

COUNTS = "counted outside"
_listeners: list[Callable[[str], None]] = []


def listen(listener: Callable[[str], None]) -> None:
    """Have a function called with the name of everything that is reported from now on."""
    _listeners.append(listener)


def report(name: str) -> None:
    """Count one more of something."""
    for listener in _listeners:
        listener(name)


def counts(result: Result, key: str, number: int, words: str) -> list[int]:
    """Read how often each of some numbered things was reported, as in `begun 2`.

    Args:
        result: With the counts of a grader, or else with a list of its own under `key`.
        key: What was reported.
        number: How many things there are.
        words: For a message where nothing can be read.

    Raises:
        CheckError: When the list is anything else.
    """
    seen = result.get(key)
    if isinstance(counted := result.get(COUNTS), dict):
        seen = [counted.get(f"{key} {i}", 0) for i in range(number)]
    return read.integers(seen, words, number)
