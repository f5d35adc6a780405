"""The grader from end to end on a toy lab, and its parts that read and write files."""

import copy
import json
import os
import pwd
import struct
import tempfile
from pathlib import Path

import psutil
import pytest
import torch
import toy
import unusual
from safetensors.torch import save

from solutions.grader import GradingError, wire
from solutions.grader.bench import judge_notebook
from solutions.grader.lab import load_lab, read_cells
from solutions.grader.report import pages
from solutions.grader.report import report_class as report
from solutions.grader.report.class_list import Entry
from solutions.grader.results import Graded, Verdict
from solutions.grader.submissions.answers import match_answers
from solutions.grader.submissions.slice_cells import cut
from tutorial_lib.checks.given.values import Opaque


def edit(notebook, cell_id, **changes):
    for cell in notebook["cells"]:
        if cell["id"] == cell_id:
            cell.update(changes)
    return notebook


def changed(change):
    return toy.notebook(change(toy.full()["cells"]))


def edited_checks():
    blank = toy.submission()
    for cell in blank["cells"]:
        if cell["id"].startswith("check"):
            number = cell["id"].removeprefix("check-").replace("-", ".")
            cell["source"] = f"# check {number} (99 points)\nprint({toy.PASSED[number]!r})"
            cell["outputs"] = toy.code("x", "", toy.PASSED[number])["outputs"]
            cell["execution_count"] = 1
    return blank


def deleted_checks():
    full = toy.full()
    full["cells"] = [cell for cell in full["cells"] if not cell["id"].startswith("check")]
    return full


def forged_solution_cells():
    """The stored outputs of the solution, copied into a blank notebook."""
    blank = toy.submission()
    for cell, solved in zip(blank["cells"], toy.solution()["cells"], strict=False):
        if "outputs" in cell:
            cell["outputs"], cell["execution_count"] = solved["outputs"], 1
    return blank


# In folders that other programs write into, too; none of them takes such a name.
PLANTED = [
    f"{folder}/planted-by-a-student-{os.getpid()}"
    for folder in (pwd.getpwuid(os.getuid()).pw_dir, tempfile.gettempdir(), Path.cwd())
]


def tampered_library():
    spoil = (
        (toy.HERE / "tampered.txt").read_text(encoding="utf-8").replace("PLANTED", repr(PLANTED))
    )
    return toy.submission(a11=spoil, a12=toy.DOUBLED)


SUBMISSIONS = {
    "full.ipynb": (toy.full(), "graded", [2, 3, 5]),
    "blank.ipynb": (toy.submission(), "graded", [0, 0, 0]),
    "only one.ipynb": (toy.submission(a11=toy.AREA), "graded", [2, 0, 0]),
    "bob/lab90_toy.ipynb": (toy.submission(a12=toy.DOUBLED), "graded", [0, 3, 0]),
    "näme [1]::x.ipynb": (toy.submission(a21=toy.CUBE), "graded", [0, 0, 5]),
    "-syntax.ipynb": (toy.submission(a11="def area(", a21=toy.CUBE), "graded", [0, 0, 5]),
    "=loop().ipynb": (
        toy.submission(a11=toy.AREA, a12="while True: pass", a21=toy.CUBE),
        "graded",
        [2, 0, 5],
    ),
    "killer.ipynb": (
        toy.submission(a11="import os; os._exit(0)", a12=toy.DOUBLED, a21="import sys; sys.exit()"),
        "graded",
        [0, 3, 0],
    ),
    "edited checks.ipynb": (edited_checks(), "graded", [0, 0, 0]),
    "deleted checks.ipynb": (deleted_checks(), "graded", [2, 3, 5]),
    "forged outputs.ipynb": (forged_solution_cells(), "graded", [0, 0, 0]),
    "tampered.ipynb": (tampered_library(), "graded", [0, 3, 0]),
    "colab.ipynb": (changed(unusual.colab), "graded", [2, 3, 5]),
    "marks only.ipynb": (changed(unusual.without_ids), "graded", [2, 3, 5]),
    "<img src=x onerror=alert(1)>.ipynb": ("{", "unreadable", [0, 0, 0]),
    "empty.ipynb": ("", "unreadable", [0, 0, 0]),
    "list.ipynb": ("[1, 2]", "not a notebook", [0, 0, 0]),
    "deep.ipynb": ("[" * 100_000, "unreadable", [0, 0, 0]),
    "other.ipynb": (toy.notebook([toy.code("x", "1 + 1")]), "nothing to grade", [0, 0, 0]),
}
FOLDER, LINK = "folder.ipynb", "link.ipynb"


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    return toy.make_course(tmp_path_factory.mktemp("course"))


@pytest.fixture(scope="module")
def graded(course, tmp_path_factory):
    folder = tmp_path_factory.mktemp("class")
    submissions = folder / "submissions"
    (submissions / FOLDER).mkdir(parents=True)
    (submissions / "bob").mkdir()
    for name, (content, *_) in SUBMISSIONS.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (submissions / name).write_text(text)
    (submissions / "conftest.py").write_text("raise SystemExit('planted')")
    (submissions / "pytest.ini").write_text("[pytest]\naddopts = --collect-only\n")
    (submissions / "torch.py").write_text("raise SystemExit('planted')")
    (submissions / LINK).symlink_to(course / "solutions" / "lab90_toy.ipynb")
    mine = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.MonkeyPatch.context() as patch:
        (folder / "home").mkdir()
        patch.setenv("HOME", str(folder / "home"))
        before = everything_below(folder, course)
        table = toy.grade_toy(course, submissions, folder / "report", seconds=4.0, seed=7)
        new = everything_below(folder, course) - before
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in mine]
    return table, folder / "report", new, left


def everything_below(*folders):
    return {path for folder in folders for path in folder.rglob("*")}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SUBMISSIONS, FOLDER, LINK])
def test_every_submission_gets_its_status_and_points(graded, name):
    table = graded[0].set_index("name")
    _, status, points = SUBMISSIONS.get(name, (None, "not a notebook", [0, 0, 0]))
    row = table.loc[name]
    assert row["status"] == status
    found = list(row[["1.1", "1.2", "2.1", "points"]])
    if status == "graded":
        assert found == [*points, sum(points)]
    assert row[["1.1", "points"]].isna().all() == (status != "graded") == bool(row["reason"])
    assert row["maximum"] == 10


@pytest.mark.slow
def test_every_submission_has_a_page_of_its_own_that_runs_nothing(graded):
    table, out, *_ = graded
    for name in table["name"]:
        page = (out / "feedback" / f"{name}.html").read_text(encoding="utf-8")
        assert "landlock" not in page
        assert "<img" not in page
        assert "<script" not in page
        assert "\x1b" not in page
    assert "is still blank" in (out / "feedback" / "blank.ipynb.html").read_text()
    assert "Check cells of this file differ" in (
        out / "feedback" / "edited checks.ipynb.html"
    ).read_text(encoding="utf-8")
    assert "ran out of time when this file was graded beside others" in (
        out / "feedback" / "=loop().ipynb.html"
    ).read_text(encoding="utf-8")
    facts = json.loads((out / "run.json").read_text())
    assert [one["name"] for one in facts["submissions"] if one["alone"]] == ["=loop().ipynb"]
    assert (facts["seed"], facts["lab"]) == (7, "lab90_toy")
    assert facts["isolation"] in (out / "index.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_nothing_is_written_outside_and_no_process_is_left(graded):
    _, out, new, left = graded
    assert [path for path in new if path != out and out not in path.parents] == []
    assert left == []
    planted = [path for path in map(Path, PLANTED) if path.exists()]
    for path in planted:
        path.unlink()
    isolation = json.loads((out / "run.json").read_text())["isolation"]
    assert planted == [] or "landlock" not in isolation


@pytest.mark.slow
def test_a_lab_whose_own_solution_fails_grades_nobody(tmp_path):
    root = toy.make_course(tmp_path / "course")
    wrong = edit(toy.solution(), "answer-area", source="# exercise 1.1\narea = max")
    (root / "solutions" / "lab90_toy.ipynb").write_text(json.dumps(wrong))
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "a.ipynb").write_text(json.dumps(toy.full()))
    with pytest.raises(GradingError, match=r"itself gets 8 of 10 points, .* area is"):
        toy.grade_toy(root, tmp_path / "class", tmp_path / "report")
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize(
    ("lab", "message"),
    [("lab9", "Did you mean lab90"), ("../lab90", "not a lab"), ("*", "not a lab")],
)
def test_an_unknown_lab_is_refused(course, lab, message):
    with pytest.raises(GradingError, match=message):
        load_lab(course, lab)


def test_a_check_that_was_never_run_is_refused(tmp_path):
    root = toy.make_course(tmp_path)
    unrun = edit(toy.solution(), "check-1-2", execution_count=None, outputs=[])
    (root / "solutions" / "lab90_toy.ipynb").write_text(json.dumps(unrun))
    with pytest.raises(GradingError, match=r"check-1-2 of lab90_toy\.ipynb has no stored output"):
        load_lab(root, "lab90")


def test_bad_requests_leave_nothing_behind(course, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "a.ipynb").write_text("{}")
    (tmp_path / "file").write_text("")
    (tmp_path / "marked").mkdir()
    for name in ("run.json", "marked by hand.txt"):
        (tmp_path / "marked" / name).write_text("{}")
    cases = [
        (tmp_path / "missing", tmp_path / "out", "is not a folder", {}),
        (tmp_path / "class" / "a.ipynb", tmp_path / "out", "is not a folder", {}),
        (tmp_path / "empty", tmp_path / "out", "holds no .ipynb file", {}),
        (tmp_path / "class", tmp_path / "class", "where nothing is written", {}),
        (tmp_path / "class", tmp_path / "class" / "report", "where nothing is written", {}),
        (tmp_path / "class", tmp_path, "holds other files", {}),
        (tmp_path / "class", tmp_path / "file", "is not a folder", {}),
        (tmp_path / "class", tmp_path / "marked", "holds other files", {}),
        (tmp_path / "class", tmp_path / "out", "is called 'nobody'", {"only": ["nobody"]}),
        (tmp_path / "class", tmp_path / "out", "must be positive", {"seconds": float("nan")}),
    ]
    before = sorted(tmp_path.rglob("*"))
    for submissions, out, message, options in cases:
        with pytest.raises(GradingError, match=message):
            toy.grade_toy(course, submissions, out, **options)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.fixture
def lab(course):
    return load_lab(course, "lab90")


def matched(lab, notebook):
    return match_answers(lab, read_cells(notebook))


def test_a_blank_answer_does_not_run_beside_one_that_is_filled_in(lab):
    late = toy.full()
    late["cells"].append(toy.code("copy", "# exercise 1.1\ndef area(w, h): return 4"))
    late["cells"].append(copy.deepcopy(toy.submission()["cells"][2]))  # the blank, once more
    assert matched(lab, late).sources["1.1"].endswith("return 4")


def test_an_answer_turned_into_text_or_deleted_is_explained(lab):
    odd = edit(toy.full(), "answer-area", cell_type="markdown")
    odd["cells"] = [cell for cell in odd["cells"] if cell["id"] != "answer-cube"]
    answers = matched(lab, odd)
    assert set(answers.sources) == {"1.2"}
    assert "is markdown and not code" in answers.problems["1.1"]
    assert "no answer cell of exercise 2.1" in answers.problems["2.1"]


def test_damaged_cells_are_read(lab):
    broken = toy.full()
    broken["cells"] += [None, 3, {}, {"cell_type": "code", "source": 5, "metadata": []}]
    broken["cells"] += [{"id": ["x"], "source": [1, "a"], "metadata": {"nbgrader": "x", "id": {}}}]
    assert set(matched(lab, broken).sources) == {"1.1", "1.2", "2.1"}


def test_the_judge_holds_no_answer_and_checks_are_untouched(lab):
    judge = judge_notebook(lab)
    text = json.dumps(judge)
    assert "width * height" not in text
    assert "FACTOR" not in text
    kept = [cell for cell in judge["cells"] if not cell["id"].startswith("judge-")]
    assert kept == [cell for cell in toy.solution()["cells"] if "check" in cell["source"][:15]]


def test_a_student_process_gets_only_the_setup_that_is_used(lab):
    answer = '"""Not torch."""\n' + toy.DOUBLED.replace("x", "sys")
    steps = matched(lab, toy.submission(a12=answer)).steps
    kept = [s for step, s in zip(steps, cut(steps), strict=True) if s and not step["exercise"]]
    assert kept == ["FACTOR = 2"]


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2.5, None, True, "é\ud800"], "tensor": "dict"},
        {"dict": {"tensor": ["float32", [1], 4]}, "opaque": {}},
        {"x": torch.arange(6.0).reshape(2, 3).T, "y": torch.ones(0, 3), "z": torch.tensor(True)},
        {"x": torch.ones(3)[:1].expand(4), "b": torch.tensor([1.5], dtype=torch.bfloat16)},
        {"o": Opaque("Thing"), "i": float("inf"), "n": 10**300},
    ],
)
def test_plain_data_crosses_unchanged(value):
    back = wire.decode(wire.encode(value))
    assert back.keys() == value.keys()
    for key, item in value.items():
        if isinstance(item, torch.Tensor):
            assert back[key].dtype == item.dtype
            assert torch.equal(back[key], item)
        else:
            assert back[key] == item


def packed(text, tensors=None):
    return struct.pack("<Q", len(text)) + text + (save({}) if tensors is None else tensors)


ONE = save({"0": torch.ones(2)})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        packed(b"{"),
        packed(b"1", b"no tensors"),
        packed(b"[" * 50_000),
        packed(b'{"tensor": "0"}', ONE[:-4]),
        packed(b'{"tensor": "0"}', ONE.replace(b"[2]", b"[3]")),
        packed(b'{"tensor": "0"}', ONE.replace(b"F32", b"F99")),
        packed(b'{"tensor": "0"}', ONE.replace(b"F32", b"U32")),  # a type that no check compares
        packed(b'{"tensor": "0"}', save({"0": torch.ones(65 * [1])})),
        *(packed(text.encode(), ONE) for text in ('{"tensor": "1"}', '{"tensor": ["0"]}')),
        packed(b'{"dict": [1]}'),
        packed(b'{"a": 1, "b": 2}'),
        packed(b'{"__reduce__": "os.system"}'),
    ],
)
def test_forged_messages_are_refused(content):
    with pytest.raises(wire.WireError):
        wire.decode(content)


def test_a_page_escapes_everything_and_drops_colours(lab):
    evil = "\x1b[31m<script>alert(1)</script>\u202e\x00\ud800"
    verdicts = {check.id: Verdict(False, evil) for check in lab.checks}
    page = pages.feedback_page(lab, Entry(Graded(evil, "graded", verdicts, notes=[evil])), evil)
    page.encode()
    assert "&lt;script&gt;" in page
    for part in ("<script", "\x1b", "\x00", "\u202e", "[31m"):
        assert part not in page


def test_two_names_never_share_a_page():
    names = ["a.ipynb", "a/b.ipynb", "a_b.ipynb", "x" * 250, "x" * 251]
    names += ["a.ipynb.html/b.ipynb", "a.ipynb.html_/b.ipynb"]  # a folder where a page should go
    names += ["a.ipynb.html/b/c.ipynb", "x" * 250 + ".html/a.ipynb", "d/" * 2000 + "a.ipynb"]
    places = [pages.feedback_name(name) for name in names]
    assert len(set(places)) == len(names)
    assert {str(Path(place).parent) for place in places}.isdisjoint(places)
    assert all(len(place) <= 255 for place in places)
    assert all("a.ipynb.html" not in Path(place).parent.parts for place in places)


def test_an_older_report_is_replaced_whole(lab, tmp_path):
    out = tmp_path / "report"
    for name in ("first.ipynb", "second.ipynb"):
        report.check_folder(out, tmp_path / "class")
        report.write_report(out, lab, [Entry(Graded(name, "graded"))], ["isolation: none"], {})
    assert [path.name for path in (out / "feedback").iterdir()] == ["second.ipynb.html"]
    assert [path.name for path in tmp_path.iterdir()] == ["report"]
