"""What instructors get: rows, overrides, roster, dates, pages, and files for other programs."""

import base64
import csv
import hashlib
import io
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "grading_corpus"))

import toy

from tutorial_lib.school.grading import GradingError, Rules, merge, report
from tutorial_lib.school.grading.judging.judge import Verdict
from tutorial_lib.school.grading.lab import load_lab
from tutorial_lib.school.grading.report import pages, scores
from tutorial_lib.school.grading.report.class_list import ClassList, late_days, read_deadline
from tutorial_lib.school.grading.report.tables import as_csv, readable, unguarded
from tutorial_lib.school.grading.results import Graded
from tutorial_lib.school.grading.submissions.class_folder import handed_in

NAMES = ["ann/a.ipynb", "ann/b.ipynb", "bob.ipynb", "=cmd().ipynb"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return load_lab(toy.make_course(tmp_path_factory.mktemp("course")), "lab90")


def graded(lab, name, passed=(), said="area(3, 4) is 7", when="2026-11-20T10:00:00+00:00"):
    verdicts = {c.id: Verdict(c.exercise in passed, said) for c in lab.checks}
    sources = {number: f"{source}\n# </pre><script>" for number, source in toy.ANSWERS.items()}
    return Graded(name, "graded", verdicts, sources=sources, seed=7, handed_in=when)


def results(lab):
    done = [["1.1", "2.1"], ["1.1"], ["1.1", "1.2", "2.1"], []]
    days = [20, 21, 22, 23]
    return [
        graded(lab, name, passed, when=f"2026-11-{day}T10:00:00+00:00")
        for name, passed, day in zip(NAMES, done, days, strict=True)
    ]


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8-sig")
    return path


def entries_of(lab, folder, **rules):
    class_list = ClassList(Rules(**rules), lab, NAMES, folder / "report")
    entries = class_list.entries(results(lab))
    return entries, class_list.warnings(entries)


def read_csv(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_overrides_stand_for_the_points_of_the_checks(lab, tmp_path):
    (tmp_path / "report").mkdir()
    write(
        tmp_path / "report" / "overrides.csv",
        "name;exercise;points;comment",
        "bob;1.2;2,5;nearly <b>",
        "'=cmd().ipynb;2.1;5;by hand",
        ";;;",
    )
    entries, _ = entries_of(lab, tmp_path)
    assert [entry.points(lab) for entry in entries] == [7, 2, 9.5, 5]
    lines = read_csv(scores.scores_csv(lab, entries))
    assert [line["overridden"] for line in lines] == ["", "", "1.2", "2.1"]
    assert (lines[2]["1.2"], lines[2]["points"]) == ("2.5", "9.5")
    page = pages.feedback_page(lab, entries[2], "v1")
    assert "Overridden by the instructor.</strong> nearly &lt;b&gt;" in page
    # the report is replaced, and this file of the instructor's stays
    report.write_report(tmp_path / "report", lab, entries, [], {})
    report.check_place(tmp_path / "report", tmp_path / "class")
    assert entries_of(lab, tmp_path)[0][2].points(lab) == 9.5


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("bbo,1.1,1,", "line 2: no submission is called 'bbo' .did you mean 'bob'"),
        ("ann,1.1,1,", "'ann' may be ann/a.ipynb or ann/b.ipynb"),
        ("bob,1.3,1,", "has no exercise '1.3'; there are 1.1, 1.2, 2.1"),
        ("bob,1.1,3,", "'3' points for exercise 1.1: a number from 0 to 2"),
        ("bob,1.1,nan,", "'nan' points"),
        ("bob,1.1,,", "'' points"),
        ("bob,1.1,1,\nbob.ipynb,1.1,2,", "line 3: exercise 1.1 of bob.ipynb stands there twice"),
    ],
)
def test_an_override_that_cannot_be_applied_is_refused(lab, tmp_path, line, said):
    path = write(tmp_path / "o.csv", "name,exercise,points,comment", line)
    with pytest.raises(GradingError, match=said):
        entries_of(lab, tmp_path, overrides=path)


def test_a_roster_names_students_and_who_handed_in_nothing(lab, tmp_path):
    path = write(
        tmp_path / "r.csv",
        "Full name\tFolder\tStudent ID\tE-mail",
        "Ann Lee\tANN\t=17\ta@x.org",
        "Zoe Ray\tzoe\t18\tz@x.org",
        "Bob\t\t19\t",
    )
    entries, said = entries_of(lab, tmp_path, roster=path)
    students = [entry.student and entry.student.name for entry in entries]
    assert students == ["Ann Lee", "Ann Lee", "Bob", None, "Zoe Ray"]
    assert entries[-1].result.status == "nothing handed in"
    assert "Submissions of nobody on the roster: 1 (=cmd().ipynb)." in said
    assert "Students who handed in nothing: 1 (zoe)." in said
    assert "left out of the Canvas and Moodle files" in said[2]
    assert read_csv(scores.scores_csv(lab, entries))[0]["id"] == "'=17"
    # the second notebook of Ann's: the better one, and the later one
    for take, points in (("best", 7), ("last", 2)):
        entries, said = entries_of(lab, tmp_path, roster=path, take=take)
        assert entries[0].points(lab) == points
        assert len(entries) == 4
        assert len(said) == 2
        other = "b" if take == "best" else "a"
        assert f"holds other notebooks ({other}.ipynb)" in entries[0].notes[0]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["id,email", "1,a"], "needs one called name or student"),
        ([""], "of no table"),
        (["name", ","], "names no student"),
        (["name,id", "Ann,1", "Änn,1"], "line 3 .* has '1', as an earlier line has"),
    ],
)
def test_a_roster_that_cannot_be_read_is_refused(lab, tmp_path, lines, said):
    with pytest.raises(GradingError, match=said):
        entries_of(lab, tmp_path, roster=write(tmp_path / "r.csv", *lines))


def test_no_rule_is_guessed(lab, tmp_path):
    (tmp_path / "latin.csv").write_bytes("name\nJosé\n".encode("latin-1"))
    for rules, said in (
        ({"take": "first"}, "choose best or last"),
        ({"deadline": "tomorrow"}, "'tomorrow' is no date"),
        ({"roster": tmp_path / "gone.csv"}, "cannot be read"),
        ({"roster": tmp_path / "latin.csv"}, "is not in UTF-8"),
    ):
        with pytest.raises(GradingError, match=said):
            entries_of(lab, tmp_path, **rules)


@pytest.mark.parametrize(
    ("file", "row", "found"),
    [
        ("Ann Lee_4711_assignsubmission_file_/lab.ipynb", "name\nAnn Lee\n", "Ann Lee"),
        ("leeann_LATE_21_99_lab01.ipynb", "Student,ID,SIS User ID\nLee,21,s1\n", "Lee"),
        ("leeann_21_99_lab01.ipynb", "Student,ID,SIS User ID\n    Points Possible,,\nX,3,\n", None),
        ("jose\u0301.ipynb", "First name,Last name,Username\nJ,M,JOS\u00c9\n", "J M"),
    ],
)
def test_files_as_moodle_and_canvas_pack_them_are_found(lab, tmp_path, file, row, found):
    (tmp_path / "r.csv").write_text(row, encoding="utf-8")
    student = ClassList(Rules(roster=tmp_path / "r.csv"), lab, [], tmp_path).roster.find(file)
    assert (student and student.name) == found


def test_canvas_and_moodle_get_a_line_a_student(lab, tmp_path):
    path = write(tmp_path / "r.csv", "name,folder,id,email", "Ann Lee,ann,17,a@x", "Zoe,zoe,18,z@x")
    entries, _ = entries_of(lab, tmp_path, roster=path, take="best")
    report.write_report(tmp_path / "report", lab, entries, [], {"lab": lab.name})
    canvas = (tmp_path / "report" / "scores-canvas.csv").read_text().splitlines()
    assert canvas == [
        "Student,ID,SIS User ID,SIS Login ID,Section,lab90_toy",
        "    Points Possible,,,,,10",
        "Ann Lee,,17,ann,,7",
        "Zoe,,18,zoe,,",
    ]
    moodle = read_csv((tmp_path / "report" / "scores-moodle.csv").read_text())
    assert moodle[0] == {
        "First name": "Ann",
        "Last name": "Lee",
        "ID number": "17",
        "Email address": "a@x",
        "lab90_toy": "7",
    }


def test_reports_of_several_labs_make_one_table(lab, tmp_path):
    path = write(tmp_path / "r.csv", "name,folder,id", "Ann,ann,17", "Bob,bob,18", "Zoe,zoe,19")
    entries, _ = entries_of(lab, tmp_path, roster=path, take="best")
    for name in ("one", "two"):
        report.write_report(tmp_path / name, lab, entries, [], {"lab": name})
    places = [tmp_path / "one", tmp_path / "two"]
    assert merge(places, tmp_path / "all") == 4
    lines = read_csv((tmp_path / "all" / "scores.csv").read_text())
    assert [(line["id"], line["one"], line["points"], line["maximum"]) for line in lines] == [
        ("", "0", "0", "20"),
        ("17", "7", "14", "20"),
        ("18", "10", "20", "20"),
        ("19", "", "0", "20"),
    ]
    assert merge(places, tmp_path / "all") == 4  # an older one is replaced
    assert "Points Possible,,,,,10,10" in (tmp_path / "all" / "scores-canvas.csv").read_text()
    several, _ = entries_of(lab, tmp_path, roster=path)
    report.write_report(tmp_path / "several", lab, several, [], {"lab": "x"})
    for reports, out, said in (
        (places[:1] * 2, "new", "is of one, as an earlier report is"),
        ([tmp_path / "gone"], "new", "holds no report of a lab"),
        ([tmp_path / "all"], "new", "holds no report of a lab"),
        ([tmp_path / "several"], "new", "Ann has several rows .*--take best"),
        (places, "one", "which is only read"),
    ):
        with pytest.raises(GradingError, match=said):
            merge(reports, tmp_path / out)
    assert not (tmp_path / "new").exists()


def test_late_days_begin_with_the_deadline(tmp_path):
    deadline = read_deadline("2026-11-30T23:59+00:00")
    for when, days in (("30T23:59:00", 0), ("30T23:59:01", 1)):
        assert late_days(f"2026-11-{when}+00:00", deadline) == days
    assert late_days("2026-12-03T01:00:00+01:00", deadline) == 3
    assert late_days("", deadline) == late_days("2026-12-03T01:00:00+01:00", None) == 0


def test_a_date_is_of_nbgraders_file_or_of_the_file_itself(tmp_path):
    for name in ("a", "b", "c", "d"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.ipynb").write_text("")
        os.utime(tmp_path / name / "x.ipynb", (0, 0))
    (tmp_path / "a" / "timestamp.txt").write_text("2026-11-02 15:58:23.948203 UTC\n")
    (tmp_path / "b" / "timestamp.txt").write_text("9" * 10**6)
    (tmp_path / "c" / "timestamp.txt").symlink_to(tmp_path / "a" / "timestamp.txt")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "d" / "timestamp.txt")
    assert handed_in(tmp_path / "a" / "x.ipynb") == ("2026-11-02T15:58:23+00:00", "timestamp.txt")
    for name in "bcd":
        assert handed_in(tmp_path / name / "x.ipynb")[1] == "file time"
    assert handed_in(tmp_path / "e" / "x.ipynb") == ("", "")


def test_a_page_an_exercise_holds_all_answers_and_runs_nothing(lab, tmp_path):
    entries, _ = entries_of(lab, tmp_path)
    blank = replace(entries[1].result, sources={"1.2": lab.answers["1.2"].blank})
    entries[1] = replace(entries[1], result=blank)
    page = pages.answers_page(lab, "1.2", entries)
    assert page.count("<article>") == 3
    assert "Without an answer of their own: 1." in page
    assert page.index("bob.ipynb") > page.index("ann/a.ipynb")  # full points come last
    assert "return FACTOR * x" in page
    assert "<script" not in page
    assert page.count("area(3, 4) is 7") == 2


def test_the_instructor_alone_sees_why_an_answer_is_to_be_read(lab, tmp_path):
    entries, _ = entries_of(lab, tmp_path)
    noticed = replace(entries[0].result, findings={"1.2": ["line 2: uses <sys>."]})
    entries[0] = replace(entries[0], result=noticed)
    lines = read_csv(scores.scores_csv(lab, entries))
    assert [line["review"] for line in lines] == ["1.2", "", "", ""]
    assert "Please read:</strong> line 2: uses &lt;sys&gt;." in pages.answers_page(
        lab, "1.2", entries
    )
    assert "line 2" not in pages.feedback_page(lab, entries[0], "v1")


def test_what_was_not_graded_is_no_zero(lab, tmp_path):
    """Right answers in a .zip or a .py: the student has no points yet, which are not 0 points."""
    path = write(tmp_path / "points.csv", "name,exercise,points,comment", "kim.py,1.1,2,by mail")
    names = ["ann.ipynb", "bob.zip", "kim.py", "lea.ipynb"]
    found = [Graded(name, "no notebook found") for name in names[1:3]]
    found += [graded(lab, "ann.ipynb", ["1.1"]), graded(lab, "lea.ipynb")]
    class_list = ClassList(Rules(overrides=path), lab, names, tmp_path / "report")
    entries = class_list.entries(found)
    assert (
        "empty cell in the Canvas and Moodle files: 1 (bob.zip)." in class_list.warnings(entries)[0]
    )
    for name in ("one", "two"):
        report.write_report(tmp_path / name, lab, entries, [], {"lab": name})
    merge([tmp_path / "one", tmp_path / "two"], tmp_path / "all")
    for folder, column in (("one", lab.name), ("all", "two")):
        moodle = read_csv((tmp_path / folder / "scores-moodle.csv").read_text())
        points = {line["First name"]: line[column] for line in moodle}
        assert points == {"ann": "2", "bob.zip": "", "kim.py": "2", "lea": "0"}
        canvas = read_csv((tmp_path / folder / "scores-canvas.csv").read_text())
        assert {line["Student"]: line[column] for line in canvas[1:]} == points
    page = pages.index_page(lab, entries, [])
    assert 'aria-label="Students by points: 0 points: 1; 2 points: 2; "' in page
    assert "2 of 3 (67 %)" in page


def test_the_page_of_the_class_runs_its_own_script_alone(lab, tmp_path):
    entries, _ = entries_of(lab, tmp_path, deadline="2026-11-22T00:00+00:00")
    page = pages.index_page(lab, entries, ["isolation: <none>"])
    assert page.count("<script>") == 1
    script = page.split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "(row) => row.cells[column].textContent" in script
    assert "isolation: &lt;none&gt;" in page
    # Ann once, with the better of her two
    assert 'aria-label="Students by points: 0 points: 1; 7 points: 1; 10 points: 1; "' in page
    assert [entry.late_days for entry in entries] == [0, 0, 1, 2]


def test_the_commonest_message_counts_numbers_as_equal(lab):
    entries = ClassList(Rules(), lab, NAMES, Path("none")).entries(
        [graded(lab, name, said=f"area(3, {name}) is 7") for name in "1234"]
        + [graded(lab, "x", said="another")]
    )
    first = pages.by_exercise(lab, entries)[0]
    assert (first["said"], first["passed"]) == (4, 0)
    assert sum(count for _, count in pages.histogram(lab, entries)) == 5


def test_a_students_page_says_what_was_graded_and_not_what_held_it(lab, tmp_path):
    entry = entries_of(lab, tmp_path)[0][1]
    page = pages.feedback_page(lab, entry, "v1")
    for words in ("return width * height", "seed 7", "version v1", "2026-11-21T10:00", "(a.ipynb)"):
        assert words in page
    assert "isolation" not in page
    assert "<script" not in page


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1"])
def test_no_cell_of_any_table_computes(text):
    line = read_csv(as_csv([{"a": text, "b": -1}]))[0]
    assert line["a"][0] == "'"
    assert line["b"] == "-1"
    assert unguarded(line["a"]) == readable(text)


def test_run_json_holds_the_rows_for_other_programs(lab, tmp_path):
    entries, _ = entries_of(lab, tmp_path)
    report.write_report(tmp_path / "report", lab, entries, [], {"lab": lab.name})
    facts = json.loads((tmp_path / "report" / "run.json").read_text())
    assert [row["points"] for row in facts["rows"]] == [7, 2, 10, 0]
