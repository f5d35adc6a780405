"""Making `.venv`: from nothing, not twice, and what goes wrong in between."""

import ast
import re
import shutil
import sys
import textwrap
import time
from types import SimpleNamespace

import pytest

from tutorial_lib.school import bootstrap, installer, pythons

# Python 2.7 can read these
OLDEST = ("__init__.py", "__main__.py", "school/__init__.py", "school/pythons.py")
COMMANDS = (
    *("school/workbook.py", "school/changed.py"),
    *(
        f"school/commands/{name}.py"
        for name in ["__init__", "main", "table", "parser", "process", "lab", "test", "doctor"]
    ),
)
BARE = (*OLDEST, "school/bootstrap.py", "school/installer.py", *COMMANDS)
SUCCESS = (0, "")


@pytest.fixture
def clone(tmp_path):
    """A folder that looks like a clone."""
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\n")
    return tmp_path


class Tools:
    """Stands for the programs that set-up runs: remembers them, answers as told."""

    def __init__(self, clone):
        self.venv = clone / ".venv"
        self.commands = []
        self.wanted = []
        self.answers = {}
        self.configured = ""

    def __call__(self, command, root, report=None, settings=None):
        words = [str(word) for word in command]
        if words[0] == "uv" or words[3:] == ["config", "list"]:
            self.commands += [" ".join(words[:3])] * (words[0] == "uv")
            self.settings = settings
            return self.answers.get(words[0], (0, self.configured))
        if words[1] == "-c":  # is there a working Python?
            there = (self.venv / "pyvenv.cfg").exists()
            return (0, "3 12 1") if there and "import sys; print" in words[2] else (1, "")
        tool = words[2] if words[2] != "pip" else f"pip {words[3]}"
        self.commands.append(tool)
        self.wanted += [words[-1]] * (tool == "pip install")
        if tool == "venv":
            python = bootstrap.venv_python(self.venv)
            python.parent.mkdir(parents=True, exist_ok=True)
            python.touch()
            (self.venv / "pyvenv.cfg").write_text("version = 3.12.1")
        return self.answers.get(tool, SUCCESS)


@pytest.fixture
def tools(clone, monkeypatch):
    tools = Tools(clone)
    monkeypatch.setattr(installer, "run", tools)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=50e9))
    return tools


@pytest.mark.parametrize("name", BARE)
def test_an_old_python_can_read_it_and_needs_no_package(root, name):
    tree = ast.parse((root / "tutorial_lib" / name).read_text(), feature_version=(3, 8))
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        outside = {one.split(".")[0] for one in names} - set(sys.stdlib_module_names)
        assert outside <= {"tutorial_lib"}


@pytest.mark.parametrize("name", OLDEST)
def test_the_oldest_python_can_read_it(root, name):
    text = (root / "tutorial_lib" / name).read_text()
    assert text.isascii()  # Python 2 wants an encoding named otherwise
    new = (ast.JoinedStr, ast.AnnAssign, ast.Starred, ast.NamedExpr, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(text)):
        assert not isinstance(node, new)
        assert not getattr(node, "returns", None)
        assert not getattr(node, "annotation", None)
        assert not (isinstance(node, ast.ImportFrom) and node.module == "__future__")


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-ins are shell scripts")
def test_advice_about_another_python_is_tried_before_it_is_given(tmp_path, monkeypatch):
    def put(name, script):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path))
    put("python3.13", "exit 127")  # a version manager's stand-in without a Python behind it
    assert pythons.suitable() is None
    put("python3.12", f'exec {sys.executable} "$@"')
    assert pythons.suitable() == "python3.12"
    sentence = pythons.refusal((3, 8), "This")
    assert sentence.endswith("needs 3.11 to 3.13: try `python3.12 -m tutorial_lib ...`.")
    newer = pythons.refusal((3, 14), "This")
    assert newer.startswith("This is Python 3.14, for which there is no TensorFlow (chapter 15),")


@pytest.mark.parametrize(
    ("first", "second", "installed"),
    [("lab", "lab", 1), ("lab", "test", 2), ("test", "lab", 1), ("lab", "grade", 2)],
)
def test_lab_installs_what_labs_need_and_more_only_when_asked(
    clone, tools, first, second, installed
):
    bootstrap.python_with_course(clone, first)
    assert tools.wanted == [f".[{first}]"]
    bootstrap.python_with_course(clone, second)
    assert tools.commands.count("pip install") == installed
    assert bootstrap.is_ready(clone, first)
    assert bootstrap.is_ready(clone, second)
    assert bootstrap.is_ready(clone, "author") == ("test" in (first, second))


def test_the_first_time_installs_and_the_second_does_not(clone, tools, capsys):
    python = bootstrap.python_with_course(clone)
    assert tools.commands == ["venv", "pip --version", "pip install"]
    assert python == bootstrap.venv_python(clone / ".venv")
    assert "Making .venv" in capsys.readouterr().out
    assert bootstrap.python_with_course(clone) == python
    assert tools.commands == ["venv", "pip --version", "pip install"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt", ".venv/pyvenv.cfg"])
def test_a_change_installs_again(clone, tools, changed):
    bootstrap.python_with_course(clone)
    (clone / changed).write_text("something else")
    bootstrap.python_with_course(clone)
    assert tools.commands.count("pip install") == 2
    assert tools.commands.count("venv") == 1


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("WARNING: Retrying after connection broken by 'x'\nERROR: No match", "No package index"),
        ("ERROR: Could not install: [Errno 28] No space left on device", "The disk is full"),
        ("ERROR: [Errno 13] Permission denied: '/x'", "cannot be written"),
        ("ok\nERROR: Cannot install a and b\nmore", "said last: ERROR: Cannot install a and b"),
    ],
)
def test_a_failed_install_says_why_and_is_not_taken_for_done(clone, tools, said, sentence):
    tools.answers["pip install"] = (1, said)
    with pytest.raises(bootstrap.SetupError, match=sentence) as caught:
        bootstrap.python_with_course(clone)
    assert str(clone / ".venv" / installer.LOG) in str(caught.value)
    assert not bootstrap.is_ready(clone)
    del tools.answers["pip install"]
    bootstrap.python_with_course(clone)
    assert bootstrap.is_ready(clone)


def test_a_python_without_venv_is_told_what_to_install(clone, tools):
    tools.answers["venv"] = (1, "because ensurepip is not available. apt install python3-venv")
    with pytest.raises(bootstrap.SetupError, match="apt install python3-venv"):
        bootstrap.python_with_course(clone)
    assert not (clone / ".venv").exists()


def test_an_environment_without_pip_gets_one(clone, tools):
    tools.answers["pip --version"] = (1, "No module named pip")
    bootstrap.python_with_course(clone)
    assert tools.commands == ["venv", "pip --version", "ensurepip", "pip install"]


def test_uv_installs_where_it_is_there_with_the_indexes_that_pip_knows(clone, tools, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.delenv("UV_INDEX", raising=False)
    tools.configured = "global.extra-index-url='one\\ntwo'\nglobal.timeout='9'\n"
    bootstrap.python_with_course(clone)
    assert tools.commands == ["venv", "uv pip install"]
    assert tools.settings["UV_INDEX"] == "one two"
    assert bootstrap.is_ready(clone)


def test_pip_installs_where_uv_fails(clone, tools, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda name: name)
    tools.answers["uv"] = (2, "error: no solution")
    bootstrap.python_with_course(clone)
    assert tools.commands == ["venv", "uv pip install", "pip --version", "pip install"]
    assert "said last: error: no solution Trying pip." in capsys.readouterr().out
    assert bootstrap.is_ready(clone)


def test_a_long_silence_is_broken_with_how_far_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(installer, "QUIET_SECONDS", 0.0)
    with installer.Step("Installing") as step:
        step.packages = tmp_path
        step.hear("Installing collected packages: a, b, c")
        (tmp_path / "a.dist-info").touch()
        time.sleep(1.2)
    assert re.search(r"1 of 3 packages unpacked, \d s so far", capsys.readouterr().out)


def test_a_folder_with_something_else_in_it_is_left_alone(clone, tools):
    (clone / ".venv").mkdir()
    (clone / ".venv" / "thesis.txt").touch()
    with pytest.raises(bootstrap.SetupError, match="no Python environment: move it away"):
        bootstrap.python_with_course(clone)
    assert (clone / ".venv" / "thesis.txt").exists()


def test_a_small_disk_is_refused_before_anything_is_made(clone, tools, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0.4e9))
    with pytest.raises(bootstrap.SetupError, match=r"0\.4 GB free"):
        bootstrap.python_with_course(clone)
    assert tools.commands == []


def test_a_folder_that_is_no_clone_is_refused(tmp_path, tools):
    (tmp_path / "constraints.txt").unlink()
    with pytest.raises(bootstrap.SetupError, match="no clone of the course"):
        bootstrap.python_with_course(tmp_path)


@pytest.mark.parametrize("version", [(2, 7), (3, 10), (3, 14)])
def test_a_python_outside_the_range_is_refused(monkeypatch, version):
    monkeypatch.setattr(pythons, "suitable", lambda: "python3.12")
    with pytest.raises(bootstrap.SetupError, match=r"needs 3\.11 to 3\.13: try `python3\.12 -m"):
        bootstrap.check_version(version, "This")


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13)])
def test_a_python_inside_the_range_passes(version):
    bootstrap.check_version(version, "This")


@pytest.mark.network
def test_a_real_environment_is_made_and_found_complete(run_online, root, tmp_path):
    """The real venv and pip, on a course that needs nothing; names are then compared for real."""
    package = tmp_path / "tutorial_lib"
    (package / "school" / "commands").mkdir(parents=True)
    for name in BARE:
        shutil.copy(root / "tutorial_lib" / name, package / name)
    (tmp_path / "constraints.txt").touch()
    (tmp_path / "pyproject.toml").write_text(
        textwrap.dedent("""
        [build-system]
        requires = ["setuptools>=77"]
        build-backend = "setuptools.build_meta"
        [project]
        name = "tutorial-lib"
        version = "1"
        [project.optional-dependencies]
        test = []
        lab = ["colorama"]
        """)
    )
    ask = "from pathlib import Path; from tutorial_lib.school import bootstrap as b; "
    make = f"{ask} print(b.python_with_course(Path.cwd()))"
    done = run_online(sys.executable, "-c", make, cwd=tmp_path)
    python = bootstrap.venv_python(tmp_path / ".venv")
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == str(python)
    again = run_online(sys.executable, "-S", "-c", make, cwd=tmp_path)
    assert again.stdout == f"{python}\n"
    (tmp_path / ".venv" / bootstrap.STAMP).unlink()  # as if made by hand
    names = f"{ask} print(b.missing_packages(Path.cwd(), 'lab'), b.is_ready(Path.cwd(), 'lab'))"
    assert run_online(python, "-c", names, cwd=tmp_path).stdout == "['colorama'] False\n"
