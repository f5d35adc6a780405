"""Leave out a chapter that needs an extra which is not installed, and say so.

And expect other outputs of the cells that print something else with newer packages.
"""

import json
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.version import Version

from tutorial_lib.school import marks

HERE = Path(__file__).parent
collect_ignore = ["blank"]  # to work in: nothing is executed there
# Cells whose stored outputs, of the pinned packages, a newer one does not give; and why.
SENT = "torch", "2.15", "a pipeline's stage gives back outputs that it has sent"
VIEW = "torch", "2.15", "a linear layer's output is an unsafe view"
TANH = "jax", "0.12", "the derivative of tanh keeps one tensor less"
CHANGED = {
    "01_where_memory_goes": {"saved-block": VIEW},
    "13b_divide_the_model": dict.fromkeys(("pipeline-table", "all-rows", "verdicts"), SENT),
    "15_other_frameworks": dict.fromkeys(("jax", "jax-residuals", "policies", "verdicts"), TANH),
    "15b_accumulation_elsewhere": dict.fromkeys(("modules", "verdicts"), TANH),
}


@cache
def note(path):
    """Why a notebook is left out; empty where it can run."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    missing = ", ".join(marks.missing_packages(code))
    return missing and f'{path.name} needs {missing}: pip install -e ".[frameworks]"'


def changed(item):
    """A package, its release, and why this cell prints something else from there on."""
    cell = getattr(item, "cell", {}).get("id")
    return CHANGED.get(item.path.stem, {}).get(cell, ("", "", ""))


def pytest_report_header():
    return [f"left out: {why}" for path in sorted(HERE.glob("*.ipynb")) if (why := note(path))]


def pytest_collection_modifyitems(items):
    for item in items:
        package, since, why = changed(item)
        if item.path.parent == HERE and item.path.suffix == ".ipynb" and note(item.path):
            item.add_marker(pytest.mark.skip(reason=note(item.path)))
        elif why and Version(version(package)) >= Version(since):
            item.add_marker(pytest.mark.xfail(reason=f"{package} {since}: {why}", strict=True))
