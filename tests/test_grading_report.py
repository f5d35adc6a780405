"""What instructors get: rows, roster, pages, and files for other programs."""

import base64
import csv
import hashlib
import io
from dataclasses import replace

import pytest
import toy

from solutions.grader import GradingError
from solutions.grader.report import class_list, pages
from solutions.grader.report import report_class as report
from solutions.grader.report.class_list import Entry, class_entries, read_marks, roster_warnings
from solutions.grader.report.roster import Roster, as_csv
from solutions.grader.results import Graded, Verdict
from tutorial_lib.checks.given import CheckError
from tutorial_lib.checks.given.half import refuse_thread

NAMES = ["ann/a.ipynb", "ann/b.ipynb", "bob.ipynb", "=cmd().ipynb"]


def graded(lab, name, passed=(), said="area(3, 4) is 7"):
    verdicts = {c.id: Verdict(c.exercise in passed, said) for c in lab.checks}
    sources = {number: f"{source}\n# </pre><script>" for number, source in toy.ANSWERS.items()}
    return Graded(name, "graded", verdicts, sources=sources, seed=7)


def results(lab):
    done = [["1.1", "2.1"], ["1.1"], ["1.1", "1.2", "2.1"], []]
    return [graded(lab, name, passed) for name, passed in zip(NAMES, done, strict=True)]


def table(name):
    """Read rows of a text file, their cells between arrows."""
    lines = (toy.HERE / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [line.split(" => ") for line in lines]


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8-sig")
    return path


def entries_of(lab, roster=None, names=NAMES):
    found = [result for result in results(lab) if result.name in names]
    entries = class_entries(found, Roster(roster), names)
    return entries, roster_warnings(entries)


def read_csv(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_a_roster_names_students_and_who_handed_in_nothing(lab, tmp_path):
    path = write(
        tmp_path / "r.csv",
        "Full name\tFolder\tStudent ID\tE-mail",
        "Ann Lee\tANN\t=17\ta@x.org",
        "Zoe Ray\tzoe\t18\tz@x.org",
        "Bob\t\t19\t",
    )
    entries, said = entries_of(lab, path)
    students = [entry.student and entry.student.name for entry in entries]
    assert students == ["Ann Lee", "Ann Lee", "Bob", None, "Zoe Ray"]
    assert entries[-1].result.status == "nothing handed in"
    assert "Submissions of nobody on the roster: 1 (=cmd().ipynb)." in said
    assert "Students who handed in nothing: 1 (zoe)." in said
    assert "left out of the Canvas and Moodle files" in said[2]
    assert read_csv(as_csv(class_list.sheets(lab, entries)["scores"]))[0]["id"] == "'=17"


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
        entries_of(lab, write(tmp_path / "r.csv", *lines))


def test_no_encoding_is_guessed(tmp_path):
    (tmp_path / "latin.csv").write_bytes("name\nJosé\n".encode("latin-1"))
    for name, said in (("gone.csv", "cannot be read"), ("latin.csv", "is not in UTF-8")):
        with pytest.raises(GradingError, match=said):
            Roster(tmp_path / name)


@pytest.mark.parametrize(("file", "row", "found"), table("roster"))
def test_files_as_moodle_and_canvas_pack_them_are_found(lab, tmp_path, file, row, found):
    write(tmp_path / "r.csv", *row.split("; "))
    student = Roster(tmp_path / "r.csv").find(file)
    assert (student.name if student else "nobody") == found


def test_canvas_and_moodle_get_a_line_a_student(lab, tmp_path):
    path = write(tmp_path / "r.csv", "name,folder,id,email", "Ann Lee,ann,17,a@x", "Zoe,zoe,18,z@x")
    entries, _ = entries_of(lab, path, NAMES[:1])
    report.write_report(tmp_path / "report", lab, entries, [], {"lab": lab.name})
    canvas = (tmp_path / "report" / "scores-canvas.csv").read_text().splitlines()
    assert canvas == [
        "Student,ID,SIS User ID,SIS Login ID,Section,lab90_toy",
        "    Points Possible,,,,,10",
        "Ann Lee,,17,ann,,7",
        "Zoe,,18,zoe,,",
    ]
    moodle = (tmp_path / "report" / "scores-moodle.csv").read_text().splitlines()
    assert moodle[0] == "First name,Last name,ID number,Email address,lab90_toy"
    assert moodle[1] == "Ann,Lee,17,a@x,7"


def test_a_page_an_exercise_holds_all_answers_and_runs_nothing(lab, tmp_path):
    entries, _ = entries_of(lab)
    blank = replace(entries[1].result, sources={"1.2": lab.answers["1.2"].blank})
    entries[1] = replace(entries[1], result=blank)
    page = pages.answers_page(lab, "1.2", entries)
    assert page.count("<article") == 3
    assert "Without an answer of their own: 1." in page
    assert page.index("bob.ipynb") > page.index("ann/a.ipynb")  # full points come last
    assert "return FACTOR * x" in page
    assert "<script" not in page
    assert page.count("area(3, 4) is 7") == 2


def test_the_instructor_alone_sees_why_an_answer_is_to_be_read(lab, tmp_path):
    entries, _ = entries_of(lab)
    noticed = replace(entries[0].result, findings={"1.2": ["line 2: uses <sys>."]})
    entries[0] = replace(entries[0], result=noticed)
    lines = read_csv(as_csv(class_list.sheets(lab, entries)["scores"]))
    assert [line["review"] for line in lines] == ["1.2", "", "", ""]
    index = pages.index_page(lab, entries, [])
    place = index.split('<a href="answers/1.2.html#')[1].partition('"')[0]
    assert f'<article id="{place}"' in pages.answers_page(lab, "1.2", entries)
    assert "<li>uses &lt;sys&gt;." in index
    assert ">ann, 1.2, line 2</a>" in index
    assert "read:</strong> line 2: uses &lt;sys&gt;." in pages.answers_page(lab, "1.2", entries)
    assert "line 2" not in pages.feedback_page(lab, entries[0], "v1")


def test_marks_by_hand_go_before_those_of_the_checks(lab, tmp_path):
    zip_file = Graded("zoe.zip", "unreadable", reason="It is empty.")
    found = [*results(lab), zip_file]
    names = [one.name for one in found]
    path = write(
        tmp_path / "m.csv",
        "Student;Exercise;Points;Comment",
        "BOB;1.2;2,5;Half of it: see me",
        "ann;1.1;;Shorter!",
        "ann;2.1;5;",
        "zoe;1.1;2;From <paper>",
        "zoe;;;Hand in a notebook.",
    )
    marks = read_marks(path, lab, names, Roster(None))
    entries = class_entries(found, Roster(None), names, marks)
    rows = {row["name"]: row for row in class_list.sheets(lab, entries)["scores"]}
    bob, zoe, ann = (rows[name] for name in ("bob.ipynb", "zoe.zip", "ann/b.ipynb"))
    assert (bob["points"], bob["by checks"], bob["1.2"], bob["by hand"]) == (9.5, 10, 2.5, "1.2")
    assert bob["comment"] == "1.2: Half of it: see me"
    assert (zoe["points"], zoe["by checks"], zoe["1.2"]) == (2, None, None)
    assert zoe["comment"] == "1.1: From <paper> Hand in a notebook."
    assert (ann["points"], ann["by hand"], ann["comment"]) == (7, "2.1", "1.1: Shorter!")
    page = pages.feedback_page(lab, entries[2], "v1")
    assert "<strong>9.5 of 10 points</strong>" in page
    assert "by hand; the checks gave 3" in page
    assert "From &lt;paper&gt;" in pages.feedback_page(lab, entries[-1], "v1")
    assert '<td class="number">2.5*</td>' in pages.index_page(lab, entries, [])
    assert "<strong>2.5 of 3</strong> by hand" in pages.answers_page(lab, "1.2", entries)
    assert "bob,,,bob,,9.5" in as_csv(class_list.sheets(lab, entries)["scores-canvas"])


@pytest.mark.parametrize(("line", "said"), table("marks"))
def test_a_line_of_marks_that_fits_nothing_is_named(lab, tmp_path, line, said):
    heads = "student,exercise,points,comment"
    path = write(tmp_path / "m.csv", heads, "bob,1.1,1,", line, "b,9,9,")
    with pytest.raises(GradingError, match=said) as error:
        read_marks(path, lab, NAMES, Roster(None))
    assert len(str(error.value).splitlines()) == 3  # of both lines, and what to do
    assert "Nothing was graded or changed" in str(error.value)


def test_what_was_not_graded_is_no_zero(lab, tmp_path):
    """Right answers in a .zip: the student has no points yet, which are not 0 points."""
    bob = Graded("bob.zip", "no notebook found", reason="It is empty.")
    found = [bob, graded(lab, "ann.ipynb", ["1.1"])]
    entries = class_entries([*found, graded(lab, "lea.ipynb")], Roster(None))
    assert "empty cell in the Canvas and Moodle files: 1 (bob.zip)." in roster_warnings(entries)[0]
    report.write_report(tmp_path / "one", lab, entries, [], {"lab": lab.name})
    moodle = read_csv((tmp_path / "one" / "scores-moodle.csv").read_text())
    points = {line["First name"]: line[lab.name] for line in moodle}
    assert points == {"ann": "2", "bob": "", "lea": "0"}
    canvas = read_csv((tmp_path / "one" / "scores-canvas.csv").read_text())
    assert {line["Student"]: line[lab.name] for line in canvas[1:]} == points
    page = pages.index_page(lab, entries, [])
    assert "1 of 2 (50 %)" in page
    assert "Mean: 1.0 of 10 points" in page
    rows = {line["name"]: line for line in read_csv((tmp_path / "one/scores.csv").read_text())}
    assert [rows[name]["points"] for name in rows] == ["", "2", "0"]
    assert (rows["bob.zip"]["1.1"], rows["bob.zip"]["reason"]) == ("", "It is empty.")


def test_the_page_of_the_class_runs_its_own_script_alone(lab, tmp_path):
    entries, _ = entries_of(lab)
    page = pages.index_page(lab, entries, ["isolation: <none>"])
    assert page.count("<script>") == 1
    script = page.split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "(row) => row.cells[column].textContent" in script
    assert "isolation: &lt;none&gt;" in page
    # Ann once, with the better of her two
    assert "Counted here: 3." in page


def test_the_page_of_the_class_lists_what_was_stopped_and_why(lab):
    said = "the {} of exercise 1.1 was stopped: it started more than 64 processes."
    texts = (said.format("function"), said.format("answer cell"), "area(3, 4) is 7")
    entries = [Entry(graded(lab, str(n), said=text)) for n, text in enumerate(texts)]
    stopped = pages.index_page(lab, entries, []).split("<h2>Stopped</h2>")[1].split("</ul>")[0]
    assert [f"{name}, 1.1</a>" in stopped for name in "012"] == [True, True, False]
    assert stopped.count("it was stopped: it started more than 64 processes.") == 1
    assert "<h2>Stopped" not in pages.index_page(lab, entries[2:], [])
    with pytest.raises(CheckError) as refused:
        refuse_thread()
    starts = pages.index_page(lab, [Entry(graded(lab, "9", said=str(refused.value)))], [])
    assert "9, 1.1</a>" in starts.split("<h2>Stopped</h2>")[1].split(": it starts")[0]
