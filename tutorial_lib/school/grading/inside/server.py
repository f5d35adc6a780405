"""The start of the fork server: it leaves the installed course for its view before all else.

Nothing of this library but the grader's own files may be imported above: what this process holds in
memory, the process of every answer inherits.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tutorial_lib.school.grading.inside import view


def serve() -> None:
    """Enter the view, then serve; see `forks.serve` for what its first line holds."""
    order = json.loads(sys.stdin.readline())
    answering = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # an import may print, and must not answer in our place
    copy = Path(order["view"])
    hidden = view.enter(copy, order["package"], order["preload"])

    from tutorial_lib.school.grading.inside import forks

    forks.serve(order, copy, hidden, answering)


def isolation(layers: Sequence[str]) -> str:
    """Put the layers into the words of the report."""
    holes = {"solutions readable", "files writable"}
    landlock = "landlock" in layers and holes.isdisjoint(layers)
    names = ["landlock"] * landlock + ["namespaces"] * ("namespaces" in layers)
    if names:
        return "+".join(names)
    return "limits only" if "limits" in layers else "none"
