"""Whatever lies in a class's folder gets a row, with a status that a teacher understands."""

import ast
import csv
import json
import os
import socket
import tomllib
from pathlib import Path
from string import Formatter
from urllib.parse import unquote

import answers
import pytest
import toy
from test_grading_session import SHORT_CLOCK, with_patch

from solutions.grader import NotGradable
from solutions.grader.report import report_class as report
from solutions.grader.report.class_list import class_entries
from solutions.grader.report.roster import Roster
from solutions.grader.results import Graded, Verdict
from solutions.grader.submissions.class_folder import find_submissions, read_content
from solutions.grader.submissions.reader import read_submission

FULL = json.dumps(toy.full())
CELLS = toy.full()["cells"]
OLD = {"nbformat": 4, "nbformat_minor": 0, "cells": [{**cell, "id": None} for cell in CELLS]}

pytestmark = pytest.mark.skipif(os.name != "posix", reason="grading needs Linux or macOS")


def status_of(lab, folder, name):
    """What becomes of a file before it is judged, and why."""
    try:
        read_submission(lab, read_content(folder / name))
    except NotGradable as finding:
        return finding.status, finding.reason
    return "graded", ""


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        (FULL.encode(), "graded", ""),
        (json.dumps(OLD).encode(), "graded", ""),
        (FULL.encode("utf-8-sig"), "graded", ""),
        (FULL.encode("utf-16"), "graded", ""),
        (FULL.replace("Toy", "Tö").encode("utf-16-le"), "graded", ""),
        (FULL.replace("Toy", "Tö").encode("latin-1"), "unreadable", "not in UTF-8"),
        (b"", "unreadable", "is empty"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "unreadable", "not in UTF-8"),
        (b"PK\x03\x04 a zip file", "unreadable", "is an archive that is damaged"),
        (FULL[:-100].encode(), "unreadable", "is not valid JSON"),
        (b"[]", "not a notebook", "no list of cells"),
        (b'{"cells": []}', "nothing to grade", "No answer cell"),
    ],
)
def test_a_file_of_any_kind_is_read_or_explained(lab, tmp_path, content, status, said):
    (tmp_path / "a.ipynb").write_bytes(content)
    found, reason = status_of(lab, tmp_path, "a.ipynb")
    assert found == status
    assert said in reason


def make_link(path):
    path.symlink_to(Path(toy.__file__))


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))  # the whole name may be too long for a socket's


def make_60_mb(path):
    with path.open("wb") as file:
        file.truncate(60 * 10**6)


@pytest.mark.parametrize(
    ("make", "status", "said"),
    [
        *(
            (make, "not a notebook", "This is a folder, a link, or no file at all")
            for make in (make_link, Path.mkdir, os.mkfifo, make_socket)
        ),
        (make_60_mb, "too large", "has 57.2 MiB, and 20.0 MiB are allowed: clear the outputs"),
    ],
)
def test_what_is_no_file_or_too_large_is_explained(lab, tmp_path, monkeypatch, make, status, said):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "a.ipynb")
    assert find_submissions(tmp_path) == ["a.ipynb"]
    found, reason = status_of(lab, tmp_path, "a.ipynb")
    assert found == status
    assert said in reason


@pytest.mark.parametrize(
    "name",
    [
        *("with a space.ipynb", "Zoë 日本.ipynb", "-x.ipynb", "a::b.ipynb", "p[1].ipynb"),
        *("two\nlines.ipynb", "=1+1.ipynb", "+1.ipynb", "@a.ipynb", "\t=1.ipynb", "\r=1.ipynb"),
        *("?#%41.ipynb", "<script>.ipynb", "'\"&.ipynb", "--only.ipynb", "%s{0}.ipynb"),
        *("\udcff.ipynb", "$(touch x).ipynb", "..ipynb", "=ann/=a.ipynb", "x" * 240 + ".ipynb"),
    ],
)
def test_a_file_of_any_name_has_a_row_a_page_and_no_formula(lab, tmp_path, name):
    folder, out = tmp_path / "class", tmp_path / "report"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text(FULL)
    if name.startswith("."):
        (folder / "a.ipynb").write_text(FULL)
        assert find_submissions(folder) == ["a.ipynb"]  # hidden, as what editors leave behind
        return
    assert find_submissions(folder) == [name]
    assert status_of(lab, folder, name)[0] == "graded"
    verdicts = {check.id: Verdict(False, "=1+1") for check in lab.checks}
    entries = class_entries([Graded(name, "graded", verdicts)], Roster(None), [name])
    report.write_report(out, lab, entries, [], {"lab": lab.name})
    (page,) = [path for path in (out / "feedback").rglob("*") if path.is_file()]
    index = (out / "index.html").read_text()
    link = index.split('<a href="feedback')[1].split('"')[0]
    assert page.samefile(out / unquote(f"feedback{link}", errors="surrogateescape"))
    assert "<script>." not in index + page.read_text()
    tables = list(out.glob("*.csv"))
    assert len(tables) == 3
    for table in tables:
        with table.open(newline="", encoding="utf-8") as file:
            lines = list(csv.reader(file))
        assert len({len(line) for line in lines}) == 1
        assert not [cell for line in lines for cell in line if cell.startswith(tuple("=+-@\t\r\n"))]


STOPPED = answers.by_title("../stopped", "stopped")


@pytest.mark.weekly
def test_what_has_to_be_stopped_costs_its_exercise_and_the_class_page_says_why(
    tmp_path, monkeypatch
):
    with_patch(monkeypatch, SHORT_CLOCK)
    (tmp_path / "class").mkdir()
    for name, answer in STOPPED.items():
        one = toy.submission(a11=answer, a12=toy.DOUBLED, a21=toy.CUBE)
        (tmp_path / "class" / f"{name}.ipynb").write_text(json.dumps(one))
    places = toy.make_course(tmp_path / "course"), tmp_path / "class", tmp_path / "report"
    table = toy.grade_toy(*places, seconds=3.0).set_index("name")
    assert {tuple(row) for row in table[["1.1", "1.2", "2.1"]].to_numpy()} == {(0, 3, 5)}
    index = (tmp_path / "report" / "index.html").read_text()
    stopped = index.split("<h2>Stopped</h2>")[1].split("</ul>")[0]
    for name in STOPPED:  # by its time, or the number of its processes
        (line,) = [one for one in stopped.split("<li>") if f"{name}, 1.1" in one]
        assert "it was stopped" in line


def test_every_sentence_is_said_with_what_it_names(root):
    grader, said = root / "solutions/grader", set()
    sentences = tomllib.loads((grader / "words.toml").read_text(encoding="utf-8"))
    for path in grader.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "words":
                inside, given = ast.walk(node.args[0]), {one.arg for one in node.keywords}
                for key in (one.value for one in inside if isinstance(one, ast.Constant)):
                    fields = {name for _, name, *_ in Formatter().parse(sentences[key]) if name}
                    assert fields <= given or None in given, key
                    said.add(key)
    assert set(sentences) - said <= {"strangers", "missing", "not graded", "several rows"}
