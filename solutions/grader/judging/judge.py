"""The judge: the pristine notebook with remote functions for the answers, run by nbval.

The notebook that nbval runs holds three kinds of cells, in their old order: what the check cells
need of the set-up, one cell of remote functions for each answer cell, and the check cells with
their stored outputs, untouched. No line of a submission is in it.
"""

import ast
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from solutions.grader import NotGradable
from solutions.grader.inside.watch import longest
from solutions.grader.lab import Lab
from solutions.grader.launch import Server
from solutions.grader.results import Verdict
from solutions.grader.submissions.answers import Answers
from solutions.grader.submissions.slice_cells import cut, statements

_SPARE_SECONDS = 60.0  # for the judge's own work in one cell, on a busy machine
_REMOTE_FUNCTION = "solutions.grader.judging.remote_function"
_OUTCOMES = "outcomes.jsonl"
_PYTEST = ["judge.ipynb", "-c", "judge.ini", "--rootdir=.", "-q", "--color=no", "--noconftest"]
_PYTEST += ["--nbval", "--capture=no", f"--outcomes={_OUTCOMES}"]
# and without what no notebook needs, and each judge would load
_WITHOUT = ("cacheprovider", "doctest", "junitxml", "logging", "unittest")
_PYTEST += [f"-pno:{name}" for name in _WITHOUT]
_OURS = "judge-"  # begins the id of every cell that is not the pristine notebook's


def judge_notebook(lab: Lab) -> dict[str, Any]:
    """Build the notebook that nbval runs; the same for every submission."""
    code = [cell for cell in lab.cells if cell.kind == "code"]
    checks = [cell.mark.number if cell.mark else None for cell in code]
    sources = ["" if cell.number else cell.source for cell in code]
    steps = [{"exercise": check, "source": s} for check, s in zip(checks, sources, strict=True)]
    cells: list[Any] = []
    for cell, setup in zip(code, cut(steps), strict=True):
        if setup and not cell.mark:
            cells.append(_code_cell(f"setup-{len(cells)}", setup))
        elif cell.number:
            lines = [
                f"{name} = RemoteFunction({cell.number!r}, {name!r})"
                for name in lab.answers[cell.number].names
            ]
            lines.insert(0, f"from {_REMOTE_FUNCTION} import RemoteFunction")
            cells.append(_code_cell(f"answer-{len(cells)}", "\n".join(lines)))
        elif cell.mark:
            cells.append(dict(cell.raw))
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def preload(lab: Lab) -> list[str]:
    """List the modules, and names in them, that the pristine notebook imports."""
    modules: list[str] = []
    tops = (top for cell in lab.cells if cell.kind == "code" for top in statements(cell.source))
    for node in (node for top in tops for node in ast.walk(top)):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules += [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
    return list(dict.fromkeys(modules))


def _code_cell(cell_id: str, source: str) -> dict[str, Any]:
    empty: dict[str, Any] = {"metadata": {}, "execution_count": None, "outputs": []}
    return {"cell_type": "code", "id": f"{_OURS}{cell_id}", "source": source, **empty}


def prepare(folder: Path, lab: Lab, answers: Answers) -> None:
    """Write what one submission's judge and session need into a fresh folder."""
    folder.mkdir(parents=True)
    (folder / "judge.ini").write_text("[pytest]\n")
    (folder / "judge.ipynb").write_text(json.dumps(judge_notebook(lab)), encoding="utf-8")
    bundle = {name: getattr(answers, name) for name in ("steps", "cuts", "problems")}
    (folder / "bundle.json").write_text(json.dumps(bundle), encoding="utf-8")


def pytest_arguments(seconds: float) -> list[str]:
    """Return what pytest is called with in each judge; seconds as in `run.grade`."""
    return [*_PYTEST, f"--nbval-cell-timeout={longest(seconds) + _SPARE_SECONDS}"]


def run_judge(
    judges: Server, folder: Path, lab: Lab, *, seconds: float, stopped: threading.Event
) -> Mapping[str, Verdict]:
    """Run nbval on a prepared folder, in a process of its own: a verdict for every check cell.

    Raises:
        NotGradable: When nbval did not come to an end, or left out a check.
    """
    most = _SPARE_SECONDS + (longest(seconds) + _SPARE_SECONDS) * len(lab.checks)
    if not judges.run(folder, most, stopped.is_set):
        if stopped.is_set():
            raise NotGradable("stopped", "Grading was stopped.")
        raise NotGradable("timed out", "Grading this file took too long.")
    outcomes, lines = folder / _OUTCOMES, []
    if outcomes.exists():
        lines = [json.loads(line) for line in outcomes.read_text(encoding="utf-8").splitlines()]
    if any(line["lost"] for line in lines):
        raise NotGradable("crashed", "The process for this submission's code was lost.")
    if any(line["id"].startswith(_OURS) and not line["verdict"]["passed"] for line in lines):
        raise NotGradable("crashed", "The judge's own set-up failed.")
    verdicts = {line["id"]: Verdict(**line["verdict"]) for line in lines}
    if any(check.id not in verdicts for check in lab.checks):
        raise NotGradable("crashed", "The judge stopped before it had run every check.")
    return {check.id: verdicts[check.id] for check in lab.checks}
