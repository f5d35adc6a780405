"""Leave out a chapter that needs an extra which is not installed, and say so."""

import json
from functools import cache
from pathlib import Path

import pytest

from tutorial_lib.school import marks

HERE = Path(__file__).parent
collect_ignore = ["blank"]  # to work in: nothing is executed there


@cache
def note(path):
    """Why a notebook is left out; empty where it can run."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    missing = ", ".join(marks.missing_packages(code))
    return missing and f'{path.name} needs {missing}: pip install -e ".[frameworks]"'


def pytest_report_header():
    return [f"left out: {why}" for path in sorted(HERE.glob("*.ipynb")) if (why := note(path))]


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent == HERE and item.path.suffix == ".ipynb" and note(item.path):
            item.add_marker(pytest.mark.skip(reason=note(item.path)))
