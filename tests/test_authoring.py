"""Sources to notebooks: what is built, what is refused, what is left alone."""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest

import tutorial_lib
from tutorial_lib.school import authoring
from tutorial_lib.school.authoring import handout, run
from tutorial_lib.school.authoring.build import holds_work
from tutorial_lib.school.authoring.files import read_notebook, write_files
from tutorial_lib.school.authoring.frame import Settings, setup_cell
from tutorial_lib.school.authoring.twins import notebooks_of

PYPROJECT = """\
[project]
name = "toy"
urls = { Home = "https://github.com/COURSE-OWNER/COURSE-REPOSITORY" }

[tool.tutorial]
repository = "COURSE-OWNER/COURSE-REPOSITORY"
tag = "v0.1.0"  # as in CHANGELOG

[tool.other]
tag = "left alone"
"""

CHAPTER = """\
# %% [markdown] id="title"
# # A chapter
#
# Costs $2^3$.

# %% id="count-runs"
# copy the boundary: a comment whose first word is a shell command
from pathlib import Path

with Path("runs.log").open("a") as log:
    log.write("run\\n")

# %% id="speak"
print("one")
print("two", flush=True)
%precision 2

# %% id="fails" tags=["raises-exception"]
error = KeyError("shown on purpose")
error._render_traceback_ = lambda: [str(error)]  # IPython 7 would show a path
raise error
""".replace("%precision", "# %precision")

LAB = '''\
# %% [markdown] id="title"
# # A lab

# %% id="imports"
from dataclasses import dataclass

BITS = 8
WIDE_BITS = 2 * BITS
measured = sum(range(10))


@dataclass
class Pair:
    """Two numbers."""

    left: int
    right: int


# %% id="twice"
# exercise 1.1
def twice(x: int) -> int:
    """Double a number."""
    ### BEGIN SOLUTION
    secret_sum = x + x
    return secret_sum
    ### END SOLUTION


# %% id="check-twice"
# check 1.1 (2 points)
assert twice(3) == 6
print("1.1 passed")

# %% id="hidden-twice"
# hidden check 1.1 (1 point)
assert twice(-4) == -8
'''


def write_course(root, *, chapter=None, lab=None):
    (root / "course/source").mkdir(parents=True)
    (root / "solutions/source").mkdir(parents=True)
    (root / "course/figures").mkdir()
    (root / "course/figures/colab-badge.png").write_text("<svg/>")
    (root / "pyproject.toml").write_text(PYPROJECT)
    if chapter is not None:
        (root / "course/source/00_toy.py").write_text(chapter)
    if lab is not None:
        (root / "solutions/source/lab90_toy.py").write_text(lab)
    return root


@pytest.fixture(scope="module", autouse=True)
def kernels_find_the_library():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(tutorial_lib.__file__).parents[1]))
        yield


@pytest.fixture(scope="module")
def built_once(tmp_path_factory):
    root = write_course(tmp_path_factory.mktemp("built") / "root", chapter=CHAPTER, lab=LAB)
    authoring.build(root)
    return root


@pytest.fixture
def built(built_once, tmp_path):
    return shutil.copytree(built_once, tmp_path / "course")


def notebook_paths(root):
    return sorted(root.rglob("*.ipynb"))


def sources(path):
    return {cell.id: cell.source for cell in read_notebook(path).cells}


def edit(path, change):
    notebook = read_notebook(path)
    change({cell.id: cell for cell in notebook.cells})
    path.write_text(nbformat.writes(notebook))


def refusal(root):
    with pytest.raises(authoring.AuthoringError) as caught:
        authoring.build(root)
    assert not notebook_paths(root), "a refused build wrote a notebook"
    return str(caught.value)


# --- what is built -------------------------------------------------------------------------------


def test_a_build_gives_notebooks_to_read_and_to_work_in(built_once):
    names = [path.relative_to(built_once).as_posix() for path in notebook_paths(built_once)]
    twins = ["labs/lab90_toy.ipynb", "solutions/lab90_toy.ipynb"]
    assert names == ["course/00_toy.ipynb", "course/blank/00_toy.ipynb", *twins]
    read, blank = (read_notebook(built_once / name).cells for name in names[:2])
    assert [cell.source for cell in blank] == [cell.source for cell in read]
    assert any(cell.get("outputs") for cell in read)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in blank)
    assert not list(built_once.rglob("*.part"))
    assert authoring.check(built_once) == []


def test_the_twins_differ_in_the_cut_lines_alone(built_once):
    solution = sources(built_once / "solutions/lab90_toy.ipynb")
    lab = sources(built_once / "labs/lab90_toy.ipynb")
    assert set(solution) - set(lab) == {"hidden-twice"}
    assert [key for key in solution if key in lab] == list(lab)
    differing = {key for key in lab if lab[key] != solution[key]}
    assert differing == {"setup", "twice"}
    assert lab["setup"].replace('"labs"', '"solutions"') == solution["setup"]
    assert lab["twice"] == (
        '# exercise 1.1\ndef twice(x: int) -> int:\n    """Double a number."""\n'
        '    raise NotImplementedError("exercise 1.1: write the body, then run the check below")'
    )
    assert solution["twice"].split("\n")[3:] == ["    secret_sum = x + x", "    return secret_sum"]
    assert "SOLUTION" not in json.dumps(solution)


def test_a_blank_of_a_chapter_has_our_lines_folded_behind_it(tmp_path):
    text = (
        BLANK.replace("def f", "# needs json\ndef f") + CHECK + VERDICT.replace('"a"', '"verdicts"')
    )
    root = write_course(tmp_path, chapter=TITLE + text)
    source, settings = root / "course/source/00_toy.py", Settings("someone/course", "v1")
    read, blank = (notebook.cells[3:] for notebook in notebooks_of(source, root, settings).values())
    ours = "# needs json\ndef f(x):\n    half = x / 2\n    return half"
    assert [cell.id for cell in read] == ["a", "check-a", "verdicts"]
    assert read[0].source == ours
    assert [cell.id for cell in blank] == ["a", "a-ours", "check-a", "verdicts"]
    stub = '    raise NotImplementedError("your turn: write this body")'
    assert blank[0].source == f"# needs json\ndef f(x):\n{stub}"
    needs, title, *rest = blank[1].source.split("\n")
    assert (needs, title[:8]) == ("# needs json", "# @title")
    assert "\n".join(rest).endswith("\n@unless_written(f)\n" + ours.removeprefix(f"{needs}\n"))
    hidden = [bool(cell.metadata.get("jupyter")) for cell in (*read, *blank)]
    assert hidden == [False, True, True, False, True, True, True]


def test_nbgrader_metadata_names_the_role_of_a_cell(built_once):
    cells = read_notebook(built_once / "solutions/lab90_toy.ipynb").cells
    roles = {c.id: c.metadata.nbgrader for c in cells if c.cell_type == "code"}
    common = {"task": False, "schema_version": 3}
    answer = {"grade": False, "solution": True, "locked": False, "grade_id": "twice"}
    check = {"grade": True, "solution": False, "locked": True, "grade_id": "check-twice"}
    other = {"grade": False, "solution": False, "locked": True, "grade_id": "imports"}
    assert roles["twice"] == answer | common
    assert roles["check-twice"] == check | common | {"points": 2}
    assert roles["hidden-twice"].points == 1
    assert roles["imports"] == other | common
    chapter = read_notebook(built_once / "course/00_toy.ipynb")
    assert not any("nbgrader" in cell.metadata for cell in chapter.cells)


def test_outputs_are_stored_merged_and_labs_are_blank(built_once):
    chapter = {c.id: c for c in read_notebook(built_once / "course/00_toy.ipynb").cells}
    streams = [output.text for output in chapter["speak"].outputs if output.output_type == "stream"]
    assert streams == ["one\ntwo\n"]
    assert "%precision 2" in chapter["speak"].source
    assert "# copy the boundary" in chapter["count-runs"].source
    assert chapter["fails"].outputs[0].ename == "KeyError"
    assert chapter["setup"].outputs == []
    for path in ("course/00_toy.ipynb", "solutions/lab90_toy.ipynb"):
        code = [c for c in read_notebook(built_once / path).cells if c.cell_type == "code"]
        assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
        assert not any("execution" in cell.metadata for cell in code)
    for cell in read_notebook(built_once / "labs/lab90_toy.ipynb").cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


# --- only what changed ---------------------------------------------------------------------------


def runs(root):
    return (root / "course/runs.log").read_text().count("run")


def test_a_second_build_writes_and_executes_nothing(built):
    before = runs(built)
    assert authoring.build(built) == []
    assert runs(built) == before


def test_changed_code_and_force_execute_again(built):
    source = built / "course/source/00_toy.py"
    before = runs(built)
    source.write_text(source.read_text().replace('"one"', '"eins"'))
    authoring.build(built, ["00_toy"])
    assert runs(built) == before + 1
    assert "eins" in (built / "course/00_toy.ipynb").read_text()
    assert authoring.build(built, ["course/00_toy.ipynb"], force=True) == []
    assert runs(built) == before + 2


def test_a_new_recording_makes_the_notebooks_stale_that_name_it(built):
    source, folder = built / "course/source/00_toy.py", built / "course/recorded"
    folder.mkdir()
    for name in ("rows.csv", "tesla-t4.json", "others.csv"):
        (folder / name).write_text("1\n")
    cell = '\n# %% id="rows"\nload = print\nload("Tesla T4")\nname = "rows.csv"\n'
    source.write_text(source.read_text() + cell)
    authoring.build(built, ["00"])
    before = runs(built)
    (folder / "others.csv").write_text("2\n")
    (folder / "rows.csv").write_bytes(b"1\r\n")  # as git leaves it on Windows
    assert (authoring.check(built), authoring.build(built)) == ([], [])
    for name, number in (("rows.csv", "2"), ("rows.csv", "1"), ("tesla-t4.json", "2")):
        (folder / name).write_text(f"{number}\n")
        told = "\n".join(authoring.check(built))
        assert ("course/00_toy.ipynb is not what its source gives (its metadata" in told) is (
            number == "2"
        )
    assert authoring.build(built) == [built / "course/00_toy.ipynb"]
    assert runs(built) == before + 1


def test_stamp_rewrites_the_address_everywhere_and_executes_nothing(built):
    before, log = {p: sources(p) for p in notebook_paths(built)}, runs(built)
    link = "https://x/github/COURSE-OWNER/COURSE-REPOSITORY/blob/v0.1.0/labs/a.ipynb"
    link += " COURSE-OWNER/COURSE-REPOSITORY-extra"
    pages = "[pages](https://course-owner.github.io/COURSE-REPOSITORY/)"
    waiting = f"\n<!-- once stamped\n{pages}\n```bash\ngit clone x\n```\n-->\n<!-- a remark -->\n"
    (built / "README.md").write_text(link + waiting)
    (built / "CITATION.cff").write_text(
        "a: b\n# once stamped: url: COURSE-OWNER/COURSE-REPOSITORY\n"
    )
    written = authoring.stamp(built, "someone/the.course", "v0.2.0")
    assert runs(built) == log
    assert set(notebook_paths(built)) | {built / "pyproject.toml"} < set(written)
    for path in notebook_paths(built):
        after = sources(path)
        changed = {key for key in after if after[key] != before[path].get(key)}
        assert changed == {"launch", "setup"}
        assert list(after)[:3] == ["title", "launch", "setup"]
        place = path.relative_to(built).as_posix().replace("course/00", "course/blank/00")
        row = read_notebook(path).cells[1]
        assert row.attachments["colab-badge.png"] == {"image/png": "PHN2Zy8+"}
        blob = f"/github{{}}/someone/the.course/blob/v0.2.0/{place})"
        assert f"(https://colab.research.google.com{blob.format('')}" in row.source
        kaggle = "(https://kaggle.com/kernels/welcome?src=https:/"
        assert kaggle + blob.format(".com") in row.source
        lab = f"?labpath={place.replace('/', '%2F')})"
        assert f"(https://mybinder.org/v2/gh/someone/the.course/v0.2.0{lab}" in row.source
        assert "(https://codespaces.new/someone/the.course)" in row.source
        assert "github.com/someone/the.course" in after["setup"]
        assert "COURSE-OWNER" not in path.read_text()
    text = (built / "pyproject.toml").read_text()
    assert 'Home = "https://github.com/someone/the.course"' in text
    assert 'tag = "v0.2.0"  # as in CHANGELOG' in text
    assert 'tag = "left alone"' in text
    assert (built / "README.md").read_text() == (
        "https://x/github/someone/the.course/blob/v0.2.0/labs/a.ipynb"
        " COURSE-OWNER/COURSE-REPOSITORY-extra\n[pages](https://someone.github.io/the.course/)\n"
        "```bash\ngit clone x\n```\n<!-- a remark -->\n"
    )
    assert (built / "CITATION.cff").read_text() == "a: b\nurl: someone/the.course\n"
    again = authoring.stamp(built, "other/place")
    assert "https://other.github.io/place/)" in (built / "README.md").read_text()
    assert built / "CITATION.cff" in again
    assert authoring.check(built) == []


@pytest.mark.parametrize(
    ("repository", "tag"),
    [("nobody", "v1"), ("a/b", "v 1"), ('a/"b', "v1"), ("COURSE-OWNER/COURSE-REPOSITORY", "v1")],
)
def test_stamp_refuses_what_is_no_address(built, repository, tag):
    before = (built / "pyproject.toml").read_bytes()
    with pytest.raises(authoring.AuthoringError, match="must"):
        authoring.stamp(built, repository, tag)
    assert (built / "pyproject.toml").read_bytes() == before


# --- sources that are refused --------------------------------------------------------------------

TITLE = '# %% [markdown] id="title"\n# # Title\n'
BLANK = (
    '# %% id="a"\ndef f(x):\n    ### BEGIN SOLUTION\n    half = x / 2\n    return half\n'
    "    ### END SOLUTION\n\n\n"
)
VERDICT = '# %% id="a"\nclaims.Verdicts()\n'
CHECK = '# %% id="check-a"\n# @title Check: run this cell\nassert f(2) == 1\n\n\n'


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", r"holds no cell"),
        (TITLE + "# %%\nx = 1\n", r"00_toy.py, cell 2 \('x = 1'\): has no id"),
        ("y = 2\n" + TITLE, r"cell 1 \('y = 2'\): has no id"),
        (TITLE + '# %% id="a b"\nx = 1\n', r"cell 2 \('x = 1'\): id 'a b' must be 1 to 64"),
        (TITLE + f'# %% id="{"a" * 65}"\nx = 1\n', r"must be 1 to 64"),
        (TITLE + "# %% id=5\nx = 1\n", r"id 5 must be"),
        (TITLE + '# %% id="title"\nx = 1\n', r"'x = 1'\): id 'title' is taken by .* cell 1"),
        (TITLE + '# %% id="setup"\nx = 1\n', r"'setup' is what build gives its own cell"),
        (TITLE + '# %% id="a" tag=["x"]\nx = 1\n', r"says tag=\['x'\]"),
        (TITLE + '# %% A name id="a"\nx = 1\n', r"says title='A name'"),
        (TITLE + '# %% id="a"\n# %% id="b"\nx = 1\n', r"cell 'a' is empty"),
        (TITLE + '# %% [raw] id="a"\n# x\n', r"a raw cell"),
        (TITLE + '# %% id="a"\ndef f(:\n', r"line 1 is not Python"),
        ('# %% id="a"\nx = 1\n', r"the first cell is the title"),
        ('# %% [markdown] id="a"\n# ## Small\n', r"exactly one `# heading`"),
        ('# %% [markdown] id="a"\n# # One\n# # Two\n', r"exactly one `# heading`"),
        (TITLE + '# %% [markdown] id="b"\n# # Again\n', r"level 1 follows level 1"),
        (TITLE + '# %% [markdown] id="b"\n# ### Deep\n', r"level 3 follows level 1"),
        (TITLE + '# %% id="a"\n# exercise 1.1\nx = 1\n', r"marks belong in a lab"),
        (TITLE + '# %% id="a"\n### BEGIN SOLUTION\nx = 1\n', r"must stand inside a function"),
        (TITLE + BLANK + "x = 1\n", r"one function or class and nothing else"),
    ],
)
def test_a_source_is_refused_with_one_clear_error(tmp_path, source, message):
    said = refusal(write_course(tmp_path, chapter=source))
    assert re.search(message, said), said
    assert len(said.splitlines()) == 1


BODY = (
    "    ### BEGIN SOLUTION\n    secret_sum = x + x\n    return secret_sum\n    ### END SOLUTION\n"
)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    ### END SOLUTION\n", "", r"the solution is not ended"),
        ("    ### BEGIN SOLUTION\n", "", r"'### END SOLUTION' is out of order"),
        ("    ### BEGIN SOLUTION\n", "    ### BEGIN SOLUTION\n" * 2, r"out of order"),
        ("    ### BEGIN SOLUTION\n", "    ## BEGIN SOLUTION\n", r"out of order"),
        (BODY, "    return x + x\n", r"the solution is missing"),
        (BODY, "    ### BEGIN SOLUTION\n    ### END SOLUTION\n    return 0\n", r"is empty"),
        ("# exercise 1.1\n", "# no mark\n", r"belong in an answer cell only"),
        ("# exercise 1.1\n", "# exercise 1.1 (2 points)\n", r"a mark reads"),
        ("# exercise 1.1\n", "# exercise 1.2\n", r"has no check"),
        ("# check 1.1 (2 points)", "# check 1.1", r"a mark reads"),
        ("# hidden check 1.1", "# hidden check 1.2", r"no cell `# exercise 1.2`"),
        (
            BODY,
            "    ### BEGIN SOLUTION\n    if x:\n    ### END SOLUTION\n        return x + x\n",
            r"with its solution cut: line \d+ is not Python",
        ),
        (
            '# %% id="check-twice"\n',
            '# %% id="more"\n# exercise 1.1\n'
            "def f():\n    ### BEGIN SOLUTION\n    return 0\n    ### END SOLUTION\n"
            '# %% id="check-twice"\n',
            r"exercise 1.1 has more than one cell",
        ),
        (
            "def twice",
            "### BEGIN SOLUTION\nlimit = 1\n### END SOLUTION\ndef twice",
            r"must stand inside a function",
        ),
    ],
)
def test_marks_that_are_wrong_are_refused(tmp_path, old, new, message):
    assert old in LAB
    said = refusal(write_course(tmp_path, lab=LAB.replace(old, new)))
    assert re.search(message, said), said


@pytest.mark.parametrize(
    "given",
    [
        "# secret_sum = x + x\n",
        'hint = "secret_sum = x + x"\n',
        "def draft(x):\n    secret_sum = x + x\n    return secret_sum\n",
        "# draft:\n# secret_sum = x + x\n# return secret_sum\n",
    ],
)
def test_a_lab_that_holds_solution_text_is_refused(tmp_path, given):
    leaking = LAB.replace("BITS = 8\n", f"BITS = 8\n{given}", 1)
    said = refusal(write_course(tmp_path, lab=leaking))
    assert "labs/lab90_toy.ipynb, cell 'imports' holds solution text of 'twice'" in said


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("1 / 0", r"cell 'speak' failed: nothing was written\.(?s:.*)ZeroDivisionError"),
        ("import os\n\nos._exit(3)", "cell 'speak' killed its kernel"),
        ('print("took 12.3 ms")', r"cell 'speak': the output holds a duration \('12\.3 ms'\)"),
    ],
)
def test_a_cell_that_fails_stops_the_build_and_nothing_is_written(tmp_path, line, sentence):
    broken = CHAPTER.replace('print("one")', line)
    said = refusal(write_course(tmp_path, chapter=broken, lab=LAB))
    assert re.match(f"course/00_toy.ipynb, {sentence}", said), said
    assert "\x1b" not in said
    assert len(said.splitlines()) <= run.TRACEBACK_LINES + 1


# --- somebody's work -----------------------------------------------------------------------------


def solve(cells):
    cells["twice"].source = "# exercise 1.1\ndef twice(x):\n    return 2 * x"


def run_cell(cells):
    cells["imports"].outputs = [nbformat.v4.new_output("stream", text="hello")]


@pytest.mark.parametrize("change", [solve, run_cell])
def test_a_lab_that_somebody_worked_in_is_kept_unless_forced(built, change):
    lab = built / "labs/lab90_toy.ipynb"
    blank = lab.read_bytes()
    edit(lab, change)
    worked = lab.read_bytes()
    assert holds_work(lab)
    with pytest.raises(authoring.AuthoringError, match=r"copy your work elsewhere .* --force"):
        authoring.build(built)
    assert lab.read_bytes() == worked
    authoring.build(built, ["lab90"], force=True)
    assert lab.read_bytes() == blank


def test_writing_is_all_or_nothing(tmp_path):
    kept = tmp_path / "kept.txt"
    kept.write_bytes(b"old")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError):
        write_files({kept: b"new", tmp_path / "file" / "below-a-file.txt": b"new"})
    assert kept.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "kept.txt"]


# --- check ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("speak.source += '# by hand'", r" is not what its source gives \('speak'\)"),
        ("title.source += ' edited'", r" is not what its source gives \('title'\)"),
        ("speak.metadata.tags = ['new']", r" is not what its source gives \('speak'\)"),
        ("speak.execution_count = None", r", cell 'speak' was never executed"),
        ("speak.outputs = fails.outputs", r", cell 'speak': the output is an error \(KeyError\)"),
    ],
)
def test_check_finds_an_edited_chapter(built, change, message):
    edit(built / "course/00_toy.ipynb", lambda cells: exec(change, {}, cells))
    problems = authoring.check(built)
    assert len(problems) == 1
    assert re.match(r"course/00_toy.ipynb" + message, problems[0])


def test_check_finds_missing_extra_broken_and_used_notebooks(built):
    (built / "course/00_toy.ipynb").unlink()
    (built / "course/01_stray.ipynb").write_text("{}")
    (built / "solutions/lab90_toy.ipynb").write_text("[1, 2")
    edit(built / "labs/lab90_toy.ipynb", run_cell)
    told = "\n".join(authoring.check(built))
    assert "course/00_toy.ipynb is missing" in told
    assert "course/01_stray.ipynb has no source" in told
    assert re.search(r"solutions/lab90_toy.ipynb is not a notebook \(.+\)", told)
    assert "labs/lab90_toy.ipynb, cell 'imports' has been run" in told
    assert len(told.splitlines()) == 4


# --- the set-up cell, off-line -------------------------------------------------------------------


def make_package(root):
    (root / "tutorial_lib").mkdir(parents=True)
    (root / "tutorial_lib/__init__.py").write_text("FROM = 'the course'\n")
    return root


@pytest.fixture
def colab(tmp_path):
    """Run the set-up cell where tutorial_lib is not installed, on a stub of Colab or not."""
    stub = tmp_path / "stub/google/colab"
    stub.mkdir(parents=True)
    (stub / "__init__.py").write_text("")
    away = tmp_path / "away"
    away.mkdir()

    def run_setup(*, settings=None, folder="labs", on="colab", **variables):
        settings = settings or Settings("COURSE-OWNER/COURSE-REPOSITORY", "v0.1.0")
        cell = setup_cell(settings, folder).source
        first = f"import sys; sys.path.insert(0, {str(tmp_path / 'stub')!r})\n"
        first += "import google.colab\n" if on == "colab" else ""
        last = "\nimport tutorial_lib; print(tutorial_lib.FROM, os.getcwd(), sep='|')"
        (tmp_path / "content").mkdir(exist_ok=True)
        environment = {"PATH": os.environ["PATH"], "HOME": str(away), "GIT_TERMINAL_PROMPT": "0"}
        environment |= {"KAGGLE_KERNEL_RUN_TYPE": "Interactive"} if on == "kaggle" else {}
        environment |= {"COURSE_HOME": str(tmp_path / "content"), **variables}
        return subprocess.run(
            [sys.executable, "-S", "-c", first + cell + last],
            cwd=away,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run_setup


def assert_set_up(done, tmp_path, folder):
    place = (tmp_path / "content/course" / folder).resolve()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"the course|{place}\n"


def no_course(tmp_path):
    place = tmp_path / "content/course"
    todo = f"wait until uploads end (or repeat it), delete or rename {place}, run this again"
    return f"FileNotFoundError: {place} is no whole copy of the course: {todo}."


def in_home(tmp_path):
    """Where Colab puts uploads."""
    (tmp_path / "content").mkdir(exist_ok=True)
    return tmp_path / "content"


def test_setup_unpacks_the_zip_and_a_second_run_needs_it_no_more(built, colab, tmp_path):
    packed = authoring.make_zip(make_package(built), in_home(tmp_path))
    for folder in ("labs", "course", "solutions"):
        assert_set_up(colab(folder=folder), tmp_path, folder)
    packed.unlink()
    assert_set_up(colab(), tmp_path, "labs")


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("on", ["colab", "kaggle"])
def test_setup_clones_the_tag(built, colab, tmp_path, on):
    make_package(built)
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"], ["tag", "v0.1.0"]):
        subprocess.run(["git", *author, *words], cwd=built, check=True, capture_output=True)
    (built / "tutorial_lib/__init__.py").write_text("FROM = 'after the tag'\n")
    subprocess.run(["git", *author, "commit", "-qam", "y"], cwd=built, check=True)
    done = colab(
        on=on, settings=Settings("a/b", "v0.1.0"), folder="course", COURSE_URL=built.as_uri()
    )
    assert_set_up(done, tmp_path, "course")


@pytest.mark.parametrize("place", ["ours", "datasets/somebody/ours"])
def test_setup_on_kaggle_copies_the_zip_that_kaggle_unpacked(built, colab, tmp_path, place):
    packed = authoring.make_zip(make_package(built), tmp_path)
    given = tmp_path / "input" / place
    shutil.unpack_archive(packed, given)
    given.chmod(0o555)
    assert_set_up(colab(on="kaggle", folder="course"), tmp_path, "course")
    assert_set_up(colab(on="kaggle", folder="solutions"), tmp_path, "solutions")


def test_setup_says_that_an_upload_is_not_whole_and_takes_the_second_one(built, colab, tmp_path):
    packed = authoring.make_zip(make_package(built), in_home(tmp_path))
    whole = packed.read_bytes()
    torn = whole[:80] + bytes(8) + whole[88:]
    for half in (b"", whole[: len(whole) // 2], torn):
        packed.write_bytes(half)
        done = colab()
        last = done.stderr.strip().splitlines()[-1]
        assert last == no_course(tmp_path)
        assert not (tmp_path / "content/course").exists()
        assert "BadZipFile" not in done.stderr
    second = packed.parent / "training-that-fits (1).zip"  # what Colab calls it
    second.write_bytes(whole)
    os.utime(packed, (1e9, 1e9))
    assert_set_up(colab(), tmp_path, "labs")


# --- the zip -------------------------------------------------------------------------------------


def test_the_zip_holds_the_course_and_no_solution(built, tmp_path):
    make_package(built)
    for name in (
        *("tests/test_x.py", "tutorial_lib/__pycache__/x.pyc", "course/figures/a.svg"),
        *("solutions/grader/lab.py", "solutions/answers/lab90/x.py"),
        "tutorial_lib/school/commands/lab.py",
    ):
        (built / name).parent.mkdir(parents=True, exist_ok=True)
        (built / name).write_text("x")
    (built / "notes.txt").write_text("private")
    first = authoring.make_zip(built, tmp_path / "one.zip").read_bytes()
    for path in built.rglob("*"):
        os.utime(path, (1e9, 1e9))
    again = authoring.make_zip(built, tmp_path)
    assert again == tmp_path / "training-that-fits.zip"
    assert again.read_bytes() == first
    with zipfile.ZipFile(again) as archive:
        assert sorted(archive.namelist()) == [
            "course/00_toy.ipynb",
            "course/blank/00_toy.ipynb",
            "course/figures/a.svg",
            "course/figures/colab-badge.png",
            "labs/lab90_toy.ipynb",
            "pyproject.toml",
            "tutorial_lib/__init__.py",
            "tutorial_lib/school/commands/lab.py",
        ]
        assert not any(b"secret_sum" in archive.read(name) for name in archive.namelist())
    whole = authoring.make_zip(built, tmp_path, solutions=True)
    assert whole == tmp_path / "training-that-fits-solutions.zip"
    with zipfile.ZipFile(whole) as archive, zipfile.ZipFile(again) as without:
        more = {*archive.namelist()} - {*without.namelist()}
        assert more == {"solutions/lab90_toy.ipynb"}
        assert b"secret_sum" in archive.read(*more)


@pytest.mark.parametrize("solutions", [False, True])
def test_the_readme_of_the_zip_promises_only_what_the_zip_holds(built, tmp_path, root, solutions):
    make_package(built)
    whole = (root / "README.md").read_text(encoding="utf-8")
    (built / "README.md").write_text(whole, encoding="utf-8")
    packed = authoring.make_zip(built, tmp_path, solutions=solutions)
    with zipfile.ZipFile(packed) as archive:
        text = archive.read("README.md").decode()
    real = {*handout._files(root, handout.CONTENT)}
    links = set(re.findall(r"\]\((?!https?:)([^)#]+)", text))
    assert len(links) > 20
    assert links <= real
    assert "tutorial_lib lab " in text
    assert "tutorial_lib test" not in text
    assert not re.findall(r"(?<!workbook/)\b(?:tests|solutions)/", text)
    assert ("`workbook/solutions/`" in text) == solutions
    assert ("This copy holds no solutions." in text) != solutions
    assert "COURSE-OWNER" not in text


def test_the_zip_is_refused_with_a_solved_lab_or_without_any(built, tmp_path):
    with pytest.raises(authoring.AuthoringError, match=r"has no tutorial_lib/__init__.py"):
        authoring.make_zip(built, tmp_path)
    make_package(built)
    edit(built / "labs/lab90_toy.ipynb", solve)
    with pytest.raises(authoring.AuthoringError, match="which a class should not get"):
        authoring.make_zip(built, tmp_path)
    (built / "labs/lab90_toy.ipynb").unlink()
    with pytest.raises(authoring.AuthoringError, match="has no lab in labs"):
        authoring.make_zip(built, tmp_path)
    assert not list(tmp_path.glob("*.zip"))


# --- definitions ---------------------------------------------------------------------------------


def test_definitions_are_loaded_without_running_the_rest(built_once):
    loaded = authoring.load_definitions(built_once / "solutions/lab90_toy.ipynb")
    assert loaded.twice(4) == 8
    assert loaded.Pair(1, 2).right == 2
    assert (loaded.BITS, loaded.WIDE_BITS) == (8, 16)
    assert not hasattr(loaded, "measured")
    assert inspect.getsource(loaded.twice).endswith("return secret_sum\n")
    assert inspect.getsource(loaded.Pair).startswith("@dataclass\nclass Pair:")
    blank = authoring.load_definitions(built_once / "labs/lab90_toy.ipynb")
    with pytest.raises(NotImplementedError, match=r"exercise 1.1: write the body"):
        blank.twice(4)
    assert loaded.twice(1) == 2, "the twin's definitions replaced these"
