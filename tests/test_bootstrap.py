"""Making `.venv`: from nothing, not twice, and what goes wrong in between."""

import ast
import json
import shutil
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from tutorial_lib.school import bootstrap, installer, pythons

# What the oldest Python 3 in use can read, 3.6
OLDEST = ("__init__.py", "__main__.py", "school/__init__.py", "school/pythons.py")
COMMANDS = (
    "school/workbook.py",
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
    monkeypatch.setattr(installer, "CPU_BUILDS", "http://127.0.0.1:9/cpu")  # nobody answers there
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
    tree = ast.parse((root / "tutorial_lib" / name).read_text(), feature_version=(3, 6))
    for node in ast.walk(
        tree
    ):  # annotations are evaluated there, and an import of the future fails
        for hint in (getattr(node, "returns", None), getattr(node, "annotation", None)):
            assert not isinstance(hint, ast.Subscript | ast.BinOp)
        assert not (isinstance(node, ast.ImportFrom) and node.module == "__future__")


@pytest.mark.parametrize(
    ("first", "second", "installed"),
    [
        *(("course", "course", 1), ("course", "test", 2), ("test", "course", 1)),
        *(("course", "grade", 2), ("", "", 1), ("course", "", 1), ("", "course", 2)),
    ],
)
def test_each_command_installs_what_it_needs_and_more_only_when_asked(
    clone, tools, first, second, installed
):
    bootstrap.python_with_course(clone, first)
    assert tools.wanted == [f".[{first}]" if first else "."]
    bootstrap.python_with_course(clone, second)
    assert tools.commands.count("pip install") == installed
    assert bootstrap.is_ready(clone, first)
    assert bootstrap.is_ready(clone, second)
    assert bootstrap.is_ready(clone, "author") == ("test" in (first, second))


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


@pytest.fixture
def cpu_builds(tmp_path, monkeypatch):
    """An index that answers for torch, as PyTorch's own of builds without CUDA."""
    (tmp_path / "served/cpu/torch").mkdir(parents=True)
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path / "served")
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(installer, "CPU_BUILDS", f"http://127.0.0.1:{server.server_port}/cpu")
        yield installer.CPU_BUILDS
        server.shutdown()


@pytest.fixture
def on_linux_without_a_gpu(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(Path, "exists", lambda path: False)


def test_without_a_gpu_the_build_without_cuda_is_taken_where_it_answers(
    cpu_builds, on_linux_without_a_gpu, monkeypatch, capsys
):
    assert installer._options_without_cuda() == ["--extra-index-url", cpu_builds]
    assert "comes without CUDA, from 127.0.0.1:" in capsys.readouterr().out
    monkeypatch.setattr(installer, "CPU_BUILDS", "http://127.0.0.1:9/cpu")
    assert installer._options_without_cuda() == []
    assert "127.0.0.1:9 does not answer: PyTorch may bring CUDA" in capsys.readouterr().out


def test_a_folder_with_something_else_in_it_is_left_alone(clone, tools):
    (clone / ".venv").mkdir()
    (clone / ".venv" / "thesis.txt").touch()
    with pytest.raises(bootstrap.SetupError, match="a Python environment: move it away"):
        bootstrap.python_with_course(clone)
    assert (clone / ".venv" / "thesis.txt").exists()


def test_a_small_disk_is_refused_before_anything_is_made(clone, tools, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0.4e9))
    with pytest.raises(bootstrap.SetupError, match=r"0\.4 GB free"):
        bootstrap.python_with_course(clone)
    assert tools.commands == []


@pytest.mark.parametrize("version", [(3, 6), (3, 10), (3, 15)])
def test_a_python_outside_the_range_is_refused(monkeypatch, version):
    for minor in (11, 12, 13, 14):
        bootstrap.check_version((3, minor), "This")
    monkeypatch.setattr(pythons, "suitable", lambda: "python3.12")
    with pytest.raises(bootstrap.SetupError, match=r"needs 3\.11 to 3\.14: try `python3\.12 -m"):
        bootstrap.check_version(version, "This")


def test_what_an_environment_made_by_hand_lacks_is_named(clone, monkeypatch):
    about = clone / "site/training_that_fits-1.dist-info"
    about.mkdir(parents=True)
    needs = ["torch", "no-such; extra == 'course'", "nor-such; extra == 'author'"]
    lines = ["Metadata-Version: 2.1", f"Name: {bootstrap.NAME}", "Version: 1"]
    lines += [f"Requires-Dist: {one}" for one in needs]
    (about / "METADATA").write_text("\n".join(lines))
    origin = {"url": clone.as_uri(), "dir_info": {"editable": True}}
    (about / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(clone / "site")
    assert bootstrap.missing_packages(clone, "") == []
    assert bootstrap.missing_packages(clone, "course") == ["no-such"]
