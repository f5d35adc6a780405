#!/usr/bin/env bash
# A student who copies a check's cell stops nbgrader's autograding for those later in the alphabet.
#
# nbgrader 0.9.6, Python 3.11. Guessed before: the copy loses points, or that one notebook is skipped
# and the others are graded. But `nbgrader autograde` ends with status 1 at the notebook, students
# after it get no grade, and the last lines blame an old version of the metadata format and advise
# `nbgrader update`, which is no help: the cell's id is there twice.
#
# Seen, with the students ann, bob (who copied the check) and cem: status 1; graded ann; the message
# names an old version of the metadata format.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "nbgrader==0.9.6" "ipykernel==7.4.0"
cd "$folder"
PATH="$folder/venv/bin:$PATH" "$folder/venv/bin/python" - <<'PYTHON'
import copy
import subprocess
from importlib.metadata import version
from pathlib import Path

from nbformat import v4, write


def cell(name, source, **grade):
    roles = {"grade": False, "locked": False, "solution": False, "schema_version": 3, "task": False}
    metadata = {"nbgrader": {"grade_id": name, **roles, **grade}}
    return v4.new_code_cell(source, id=name, metadata=metadata)


answer = cell("answer", "def two():\n    return 2", solution=True)
check = cell("check", "assert two() == 2", grade=True, locked=True, points=1)
kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}


def save(where, cells):
    Path(where).mkdir(parents=True)
    write(v4.new_notebook(cells=cells, metadata=kernel), f"{where}/lab.ipynb")


save("source/one", [answer, check])
command = ["nbgrader", "generate_assignment", "one", "--create"]
subprocess.run(command, check=True, capture_output=True)
copied = copy.deepcopy(check)
copied.id = "a-copy"
save("submitted/ann/one", [answer, check])
save("submitted/bob/one", [answer, check, copied])
save("submitted/cem/one", [answer, check])
run = subprocess.run(["nbgrader", "autograde", "one"], capture_output=True, text=True)
graded = sorted(path.parts[1] for path in Path("autograded").glob("*/one/lab.ipynb"))
blamed = "old version of the nbgrader metadata format" in " ".join(run.stderr.split())
print(f"nbgrader {version('nbgrader')}: status {run.returncode}, graded {', '.join(graded)}")
print(f"an old version of the metadata format is blamed: {blamed}")
assert (run.returncode, graded, blamed) == (1, ["ann"], True), run.stderr[-2000:]
PYTHON
