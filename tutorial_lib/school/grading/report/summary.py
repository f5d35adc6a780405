"""The class at a glance: a histogram of points, and each exercise with its commonest message."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tutorial_lib.school.grading.lab import Lab
from tutorial_lib.school.grading.report.class_list import Entry

_MOST_BARS = 20
_NUMBER = re.compile(r"\d[\d,.]*")


def histogram(lab: Lab, entries: Sequence[Entry]) -> list[tuple[str, int]]:
    """Count rows by points: for each bar its label and its count."""
    points = [entry.points(lab) for entry in entries]
    width = max(1, -(-(lab.maximum + 1) // _MOST_BARS))
    bars = []
    for low in range(0, lab.maximum + 1, width):
        high = min(low + width - 1, lab.maximum)
        label = f"{low}" if high == low else f"{low}-{high}"
        bars.append((label, sum(low <= one < low + width for one in points)))
    return bars


def by_exercise(lab: Lab, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Say for each exercise how many have all points, and what its checks said most often.

    Messages that differ in numbers alone count as one.
    """
    found = []
    for exercise in lab.exercises:
        maximum = lab.maximum_of(exercise)
        passed = sum(entry.points(lab, exercise) == maximum for entry in entries)
        messages = [text for entry in entries if (text := entry.message(lab, exercise))]
        example = {_NUMBER.sub("0", text): text for text in messages}
        alike = Counter(_NUMBER.sub("0", text) for text in messages).most_common(1)
        facts = {"exercise": exercise, "maximum": maximum, "passed": passed}
        said = {"said": alike[0][1], "message": example[alike[0][0]]} if alike else {"said": 0}
        found.append(facts | said)
    return found
