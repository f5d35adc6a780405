"""A look at what a submission's cells say, beside what the judge says of their results."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

from tutorial_lib.school.grading.lab import Lab
from tutorial_lib.school.grading.results import Graded
from tutorial_lib.school.grading.submissions import looker
from tutorial_lib.school.grading.submissions.submission import Answers, student_steps

_SECONDS = 120  # on the clock; of CPU time it has what a reader has


def looked_through(lab: Lab, answers: Answers, result: Graded) -> Graded:
    """Add to a result what a person should read, fingerprints, and notes on the set-up.

    Args:
        lab: The lab.
        answers: What the submission says.
        result: What the judge says.
    """
    task = {
        "steps": student_steps(lab, answers),
        "course": [cell.source for cell in lab.cells if cell.kind == "code" and not cell.mark],
        "references": {answer.exercise: answer.reference for answer in lab.answers.values()},
        "blanks": {answer.exercise: answer.blank or "" for answer in lab.answers.values()},
    }
    command = [sys.executable, "-I", "-S", looker.__file__]
    try:
        done = subprocess.run(
            command, input=json.dumps(task).encode(), capture_output=True, timeout=_SECONDS
        )
        seen = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        reason = (1, looker.NOT_PYTHON, "to parse these cells ends the process that does it")
        seen = {
            "findings": {number: [reason] for number in answers.parts},
            "parts": {},
            "notes": [],
        }
    lines: dict[str, list[str]] = {}
    for number, found in seen["findings"].items():
        for line, what, why in found:
            # a slip that cost all points is nothing to read
            if what != looker.NOT_PYTHON or result.points(lab, number):
                place = f"line {line}" if line else "a cell beside the answer"
                lines.setdefault(number, []).append(f"{place}: {what}: {why}")
    notes = [*result.notes, *seen["notes"]]
    return replace(result, findings=lines, parts=seen["parts"], notes=notes)
