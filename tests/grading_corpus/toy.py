"""A toy course in a temporary folder, and submissions to it: honest, broken and hostile."""

import copy
import json
from pathlib import Path

HERE = Path(__file__).parent

AREA = "def area(width, height):\n    return width * height"
DOUBLED = "def doubled(x):\n    return FACTOR * x"
CUBE = "def cube(x):\n    return (x**3).sum()"
ANSWERS = {"1.1": AREA, "1.2": DOUBLED, "2.1": CUBE}
IDS = {"1.1": "answer-area", "1.2": "answer-doubled", "2.1": "answer-cube"}


def code(cell_id, source, printed=None):
    outputs = []
    if printed is not None:
        outputs = [{"output_type": "stream", "name": "stdout", "text": printed + "\n"}]
    return {
        "cell_type": "code",
        "id": cell_id,
        "metadata": {"nbgrader": {"grade_id": cell_id, "schema_version": 3}},
        "source": source,
        "execution_count": 1 if printed is not None else None,
        "outputs": outputs,
    }


def text(cell_id, source):
    return {"cell_type": "markdown", "id": cell_id, "metadata": {}, "source": source}


def answer(number, source):
    return code(IDS[number], f"# exercise {number}\n{source}")


def notebook(cells):
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": cells}


def solution():
    return notebook(
        [
            text("title", "# Toy"),
            code("setup", "import sys\nimport torch\nfrom toychecks import lab90\n\nFACTOR = 2"),
            answer("1.1", AREA),
            code("look", "seen = area(2, 3)\nseen", ""),
            code("check-1-1", "# check 1.1 (2 points)\nlab90.area(area)", PASSED["1.1"]),
            answer("1.2", DOUBLED),
            code("check-1-2", "# check 1.2 (3 points)\nlab90.doubled(doubled)", PASSED["1.2"]),
            answer("2.1", CUBE),
            code("check-2-1", "# check 2.1 (4 points)\nlab90.slope(cube)", PASSED["2.1"]),
            code(
                "hidden-2-1",
                "# hidden check 2.1 (1 point)\nlab90.slope_twice(cube)",
                "2.1 passed: and right again",
            ),
        ]
    )


PASSED = {
    "1.1": "1.1 passed: the area is right",
    "1.2": "1.2 passed: every entry is doubled",
    "2.1": "2.1 passed: the gradient is right",
}


def submission(**answers):
    """The lab as a student hands it in: `a11`, `a12`, `a21` replace the blank of an exercise."""
    cells = copy.deepcopy(solution()["cells"])
    kept = []
    for cell in cells:
        if cell["source"].startswith("# hidden"):
            continue
        number = next((number for number, name in IDS.items() if name == cell["id"]), None)
        if number:
            given = answers.get("a" + number.replace(".", ""))
            if given is None:
                head = ANSWERS[number].split("\n")[0]
                given = f"{head}\n    raise NotImplementedError('exercise {number}')"
            cell["source"] = f"# exercise {number}\n{given}"
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
        kept.append(cell)
    return notebook(kept)


def full():
    return submission(a11=AREA, a12=DOUBLED, a21=CUBE)


def make_course(root):
    """Write `solutions/lab90_toy.ipynb` and its blank twin."""
    for folder, content in (("solutions", solution()), ("labs", submission())):
        (root / folder).mkdir(parents=True)
        (root / folder / "lab90_toy.ipynb").write_text(json.dumps(content))
    return root


def grade_toy(root, submissions, out, **options):
    """Grade the toy lab of the course that `make_course` wrote."""
    from solutions.grader.run import grade

    options = {"workers": 2, "checks_package": "toychecks", "import_path": [HERE]} | options
    return grade("lab90", submissions, out, root=root, **options)
