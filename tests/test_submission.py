"""What students hand in: files of any kind, cells in any order, and what they are told about it."""

import contextlib
import io
import json
import time
import tracemalloc
import zipfile

import pytest
import toy
from answers import LABS

from solutions.grader import NotGradable
from solutions.grader.lab import load_lab, read_cells
from solutions.grader.submissions.answers import match_answers
from solutions.grader.submissions.class_folder import check_is_notebook, find_submissions
from solutions.grader.submissions.reader import read_submission
from solutions.grader.submissions.slice_cells import cut


def matched(lab, notebook):
    return match_answers(lab, read_cells(notebook))


def edited(cell_id, change):
    notebook = toy.full()
    for cell in notebook["cells"]:
        if cell["id"] == cell_id:
            cell["source"] = change(cell["source"])
    return notebook


def lay_out(folder, names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")


@pytest.mark.parametrize(
    ("there", "row", "said"),
    [
        ("x.rar", "x.rar", "'x.rar', and the name of a notebook ends in .ipynb"),
        ("hans.json", "hans.json", "hand in the notebook itself"),
        ("leo.ipynb ", "leo.ipynb ", "'leo.ipynb '"),
        ("carl/lab.rar", "carl", "holds lab.rar, and no .ipynb file"),
        ("dora/sub/lab.txt", "dora", "holds sub/, and no .ipynb file"),
        ("fred/lab.ipynb.txt", "fred", "lab.ipynb.txt"),
        ("emil/.DS_Store", "emil", "holds nothing"),
    ],
)
def test_what_is_no_notebook_has_a_row_that_says_what_lies_there(tmp_path, there, row, said):
    lay_out(tmp_path, ["ok.ipynb", there])
    assert set(find_submissions(tmp_path)) == {"ok.ipynb", row}
    assert find_submissions(tmp_path, only=[row]) == [row]
    with pytest.raises(NotGradable) as caught:
        check_is_notebook(tmp_path / row)
    assert caught.value.status == "no notebook found"
    assert said in caught.value.reason


def test_what_a_system_leaves_behind_has_no_row(tmp_path):
    lay_out(tmp_path, ["ok.IPYNB", ".DS_Store", "Thumbs.db", "__MACOSX/._ok.ipynb", "desktop.ini"])
    lay_out(tmp_path, ["ann/a.ipynb", "ann/data.csv", "ann/old/a.ipynb", "ann/b.zip", "ann/c.py"])
    lay_out(tmp_path, ["bob/x/y/b.ipynb", "bob/x/__MACOSX/._b.ipynb", "cy/z/c.py", "cy/z/c.zip"])
    found = ["ann/a.ipynb", "bob/x/y/b.ipynb", "cy/z/c.zip", "ok.IPYNB"]
    assert find_submissions(tmp_path) == found
    assert find_submissions(tmp_path, only=["ok"]) == found[-1:]


def test_of_a_folder_for_each_lab_the_labs_own_counts(tmp_path):
    lay_out(tmp_path, ["ann/lab01/a.ipynb", "ann/lab02/a.ipynb", "bob/b.ipynb"])
    of_lab = ["ann/lab01/a.ipynb", "bob/b.ipynb"]
    assert find_submissions(tmp_path, lab="lab01_ledger") == of_lab
    assert find_submissions(tmp_path) == ["ann/lab01/a.ipynb", "ann/lab02/a.ipynb", "bob/b.ipynb"]


def packed(**files):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


def as_script(notebook, mark):
    return "".join(
        f"{mark}\n{cell['source']}\n\n# ## a text\n#\n# of two lines\n\n\n"
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    )


@pytest.mark.parametrize("mark", ["# In[ ]:\n\n", "# %%", '# %% id="x"'])
def test_an_archive_of_one_notebook_and_a_script_are_read(lab, mark):
    whole = json.dumps(toy.full())
    script = as_script(toy.full(), mark)
    beside = {"__MACOSX/._lab.ipynb": "x", "a/._lab.ipynb": "x", "helper.py": "x = 1"}
    beside["a/.ipynb_checkpoints/lab-checkpoint.ipynb"] = whole
    one = packed(**{"a/lab.ipynb": whole}, **beside)
    of_windows = ("\ufeff" + script.replace("\n", "\r\n")).encode()
    for content in (one, script.encode(), packed(**{"lab.py": script}), of_windows):
        answers = read_submission(lab, content)
        assert [answers.sources[number].split("\n", 1)[1].strip() for number in toy.ANSWERS] == [
            *toy.ANSWERS.values()
        ]
        assert answers.notes == []
        assert not any("keep" in step for step in answers.steps)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (packed(**{"a.ipynb": "{}", "b.ipynb": "{}"}), "holds 2 notebooks"),
        (packed(**{"a.txt": "x"}), "holds no notebooks"),
        (packed(**{"a.ipynb": "x" * 30_000_000}), "too large"),
        (b"PK\x03\x04broken", "damaged"),
    ],
)
def test_another_archive_is_described(lab, content, said):
    with pytest.raises(NotGradable, match=said):
        read_submission(lab, content)


def test_the_wrong_lab_is_named(lab):
    cells = [toy.code("x", f"# exercise 3.{number}\ndef f(): pass") for number in (1, 2)]
    with pytest.raises(NotGradable, match=r"this is lab 03, with answers to 3\.1, 3\.2"):
        matched(lab, toy.notebook(cells))


@pytest.mark.parametrize("line", ["#exercise 1.1", "# Exercise 1.1:", "", "import math"])
def test_an_answer_without_id_and_mark_is_found_by_the_name_it_defines(lab, line):
    notebook = edited("answer-area", lambda source: source.replace("# exercise 1.1", line))
    for cell in notebook["cells"]:
        del cell["id"]
        cell["metadata"] = {}
    answers = matched(lab, notebook)
    assert toy.AREA in answers.sources["1.1"]
    assert answers.notes == ["The answer to exercise 1.1 was found by the name that it defines: "
                             "begin its cell with the line `# exercise 1.1`."]  # fmt: skip
    notebook["cells"] += [toy.code("late", "def area(w, h):\n    return h * w")]
    assert "h * w" in matched(lab, notebook).sources["1.1"]


def test_a_cell_that_defines_the_name_does_not_replace_a_marked_answer(lab):
    notebook = toy.full()
    notebook["cells"].append(toy.code("try", "# Exercise 1.1:\narea = max"))
    assert matched(lab, notebook).sources["1.1"] == f"# exercise 1.1\n{toy.AREA}"


def test_cells_of_one_exercise_are_run_in_their_order(lab):
    notebook = toy.full()
    notebook["cells"].append(toy.code("try", "# exercise 1.1\narea(2, 3)"))
    answers = matched(lab, notebook)
    assert len(answers.cells(own=False)["1.1"]) == 2
    assert "2 cells belong to exercise 1.1: they were run in their order" in answers.notes[0]


def test_cells_that_were_merged_are_taken_apart_at_their_marks(lab):
    notebook = toy.full()
    text = "\n\n".join(cell["source"] for cell in notebook["cells"] if "def" in cell["source"])
    notebook["cells"] = [toy.code("answer-area", f"{text}\n# check 1.1 (2 points)\nboom()")]
    answers = matched(lab, notebook)
    assert list(answers.sources) == ["1.1", "1.2", "2.1"]
    assert not any("boom" in source for source in answers.sources.values())
    inside = f'{toy.AREA}\ntext = """\n# exercise 1.2\n"""'
    assert "1.2" not in matched(lab, toy.notebook([toy.code("answer-area", inside)])).sources


def kept(lab, notebook):
    """What is run of a submission beside its answers."""
    steps = matched(lab, notebook).steps
    cells = zip(steps, cut(steps), strict=True)
    return [source for step, source in cells if source and not step["exercise"]]


def test_a_changed_setup_cell_gives_what_it_adds_and_keeps_the_course_own(lab):
    notebook = edited("setup", lambda source: f"{source}\nimport operator\nFACTOR = 3\nODD = 1")
    notebook["cells"][2]["source"] += "\narea = operator.mul"
    assert kept(lab, notebook) == ["FACTOR = 2", "import operator"]
    assert matched(lab, edited("look", lambda source: "seen = area(4, 5)")).notes == []


def test_own_cells_run_before_the_answer_as_far_as_it_needs_them(lab):
    notebook = toy.full()
    own = """import math, json
SIDES = []
SIDES.append(math.pi)
print(SIDES)
area = None
torch.rand(10**9)
def helper(): return SIDES"""
    notebook["cells"][2]["source"] += "\nhelper()"
    notebook["cells"].insert(2, toy.code("mine", own))
    notebook["cells"].insert(4, toy.code("late", "del area\nhelper = None\nwhile True: pass"))
    cells = [one for one in matched(lab, notebook).steps if one.get("group") == "1.1"]
    assert ["keep" in step for step in cells] == [True, False, True]
    assert kept(lab, notebook) == [
        "FACTOR = 2",
        "import math\nSIDES = []\nSIDES.append(math.pi)\ndef helper():\n    return SIDES",
    ]


def test_an_answer_below_its_check_is_noted_and_not_used(lab):
    notebook = toy.full()
    notebook["cells"].append(toy.code("late", "def cube(x):\n    return x"))
    (note,) = matched(lab, notebook).notes
    assert "A cell below the check of exercise 2.1 defines its answer once more" in note


@contextlib.contextmanager
def little_memory_and_time():
    started = time.process_time()
    tracemalloc.start()
    try:
        yield
        peak_bytes, seconds = tracemalloc.get_traced_memory()[1], time.process_time() - started
    finally:
        tracemalloc.stop()
    assert peak_bytes < 50_000_000
    assert seconds < 20


@pytest.mark.parametrize(
    ("source", "repeated"),
    [
        (f"{toy.AREA}\n", "1;"),  # each character is a token
        (f"{toy.AREA}\n", "aa "),  # all words
        ("", "a,"),  # an assignment, but for its end
        ("", "\n"),
    ],
)
def test_a_huge_answer_is_not_read(lab, source, repeated):
    for size in (49_000, 2_000_000):
        answer = source + repeated * (size // len(repeated)) + "x"
        cells = read_cells(edited("answer-area", lambda _, answer=answer: answer))
        with little_memory_and_time():
            answers = match_answers(lab, cells)
    assert set(answers.sources) == {"1.2", "2.1"}
    assert "more than 50,000 characters, and no more are read" in answers.problems["1.1"]


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b'{"cells": [' + 6_900_000 * b"{}," + b"{}]}", "unreadable"),  # 20 MB that take 1.5 GB
        (b'{"cells": [' + 6_000 * b"{}," + b"{}]}", "too large"),
        (json.dumps({"cells": [{"source": "a" * 50_000}] * 81}).encode(), "too large"),
        (b"[" * 20_000_000, "unreadable"),
    ],
)
def test_a_file_is_read_in_another_process_with_little_memory(lab, content, status):
    with little_memory_and_time(), pytest.raises(NotGradable) as caught:
        read_submission(lab, content)
    assert caught.value.status == status


@pytest.mark.parametrize("name", LABS)
def test_the_course_itself_gets_no_note(root, name):
    lab = load_lab(root, name)
    for folder in ("labs", "solutions"):
        notebook = json.loads((root / folder / lab.path.name).read_text(encoding="utf-8"))
        for cell in notebook["cells"] * (folder == "labs"):  # as some programs save it
            del cell["id"]
            cell["metadata"] = {}
        answers = matched(lab, notebook)
        assert answers.notes == []
        assert not any("keep" in step for step in answers.steps)
