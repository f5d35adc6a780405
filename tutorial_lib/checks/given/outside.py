"""Counts that an answer cannot put back, since they are kept outside of its process.

The judge's own operations report each call at once. In a notebook nobody listens, and a run half
gives its own counts. Where an answer is graded, each report leaves the process before the next line
runs, and the judge reads the counts that came instead of those that the process claims.
"""

from collections.abc import Callable

COUNTS = "counted outside"
_listeners: list[Callable[[str], None]] = []


def listen(listener: Callable[[str], None]) -> None:
    """Have a function called with the name of everything that is reported from now on."""
    _listeners.append(listener)


def report(name: str) -> None:
    """Count one more of something, as in `begun 2`."""
    for listener in _listeners:
        listener(name)
