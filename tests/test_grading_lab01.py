"""Lab 01 graded from the command line, as an instructor does: nine submissions in a folder."""

import csv
import json

import psutil
import pytest

from solutions.answers.known import handed_in
from solutions.grader.lab import load_lab
from tutorial_lib.school.commands.main import run

pytestmark = [pytest.mark.slow, pytest.mark.weekly]

POINTS = {"1.1": 2, "1.2": 2, "1.3": 3, "1.4": 2, "1.5": 3}
# 1.5 calls 1.1 and 1.2, so that alone it stands on its own definitions of them.
LEDGER = """
def parameter_bytes(model): return sum(p.nbytes for p in model.parameters())
def gradient_and_state_bytes(model, optimizer):
    trained = [p for p in model.parameters() if p.requires_grad]
    g = sum(p.nbytes for p in trained)
    state = {"sgd": 0, "momentum": g, "adamw": 2 * g + 4 * len(trained)}[optimizer]
    return {"gradients": g, "optimizer_state": state}
"""


@pytest.fixture(scope="module")
def graded(root, tmp_path_factory):
    """Score sheet and pages, and the processes that were left."""
    lab = load_lab(root, "lab01")
    solved = {number: cell.reference for number, cell in lab.answers.items()}
    mark, _, body = solved["1.5"].partition("\n")
    some = {number: solved[number] for number in ("1.1", "1.3")}
    looping = solved | {"1.2": "# exercise 1.2\nwhile True: pass"}
    edited = handed_in(lab, {})
    for cell in edited["cells"]:
        if "".join(cell["source"]).startswith("# check"):
            cell["source"] = "".join(cell["source"]).split("\n")[0] + "\nprint('1.1 passed')"
    notebooks = {
        "some": handed_in(lab, some),
        "last": handed_in(lab, {"1.5": mark + LEDGER + body}),
        "full": handed_in(lab, solved),
        "blank": handed_in(lab, {}),
        "syntax": handed_in(lab, solved | {"1.3": "# exercise 1.3\ndef chain_saved("}),
        "loop": handed_in(lab, looping),
        "edited checks": edited,
    }
    files = {f"{name}.ipynb": json.dumps(notebook) for name, notebook in notebooks.items()}
    files |= {"half a file.ipynb": files["full.ipynb"][:5000], "empty.ipynb": ""}
    folder = tmp_path_factory.mktemp("class")
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    out = folder.parent / "report of lab 01"
    words = ["grade", "lab01", str(folder), "--out", str(out), "--workers", "2", "--seconds", "6"]
    before = psutil.Process().children(recursive=True)
    assert run(words) == 0
    left = [child for child in psutil.Process().children(recursive=True) if child not in before]
    with (out / "scores.csv").open(newline="", encoding="utf-8") as sheet:
        scores = {row["name"]: row for row in csv.DictReader(sheet)}
    pages = {name: (out / "feedback" / f"{name}.html").read_text("utf-8") for name in scores}
    assert set(scores) == set(files)
    return scores, pages, left


@pytest.mark.parametrize(
    ("name", "solved", "said"),
    [
        ("full", "1.1 1.2 1.3 1.4 1.5", "12 of 12 points"),
        ("blank", "", "exercise 1.4 is still blank"),
        ("some", "1.1 1.3", "5 of 12 points"),
        ("last", "1.5", "3 of 12 points"),
        ("syntax", "1.1 1.2 1.4 1.5", "SyntaxError in line 2"),
        # 1.5 calls the function that never came to be
        ("loop", "1.1 1.3 1.4", "answer cell of exercise 1.2 was stopped after 6.00 s"),
        ("edited checks", "", "Check cells of this file differ"),
    ],
)
def test_points_and_feedback(graded, name, solved, said):
    scores, pages, _ = graded
    row = scores[f"{name}.ipynb"]
    expected = {number: str(p if number in solved.split() else 0) for number, p in POINTS.items()}
    assert (row["status"], {number: row[number] for number in POINTS}) == ("graded", expected)
    assert int(row["points"]) == sum(map(int, expected.values()))
    assert said in pages[f"{name}.ipynb"]


@pytest.mark.parametrize(
    ("name", "said"), [("half a file", "is not valid JSON"), ("empty", "The file is empty")]
)
def test_a_broken_file_has_a_row_and_a_reason(graded, name, said):
    scores, pages, _ = graded
    row = scores[f"{name}.ipynb"]
    assert (row["status"], row["points"], row["maximum"]) == ("unreadable", "", "12")
    assert said in pages[f"{name}.ipynb"]


def test_no_page_tells_an_answer_and_no_process_is_left(graded):
    _, pages, left = graded
    told = {name.removesuffix(".ipynb") for name, page in pages.items() if "step_counts" in page}
    assert told <= {"full", "syntax"}  # those pages show the student's own code
    assert left == []
