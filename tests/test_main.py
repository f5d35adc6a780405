"""`python -m tutorial_lib`: what works from a bare Python, and what each command starts."""

import importlib
import importlib.util
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tutorial_lib import __main__ as entrance
from tutorial_lib import __version__
from tutorial_lib.school import bootstrap, pythons, workbook
from tutorial_lib.school.commands import doctor, process, table
from tutorial_lib.school.commands.main import main


@pytest.fixture
def started(monkeypatch):
    """Collects what would be started, with Python's own path cut off."""
    calls = []

    def become(command, changes=None, **_):
        calls.append((command[1:], changes))
        return 0

    monkeypatch.setattr(process, "become", become)
    monkeypatch.setattr(bootstrap, "python_with_course", lambda *_: Path("python"))
    return calls


@pytest.fixture
def bare_clone(root, tmp_path):
    """A fresh clone, as far as its commands go."""
    shutil.copytree(root / "tutorial_lib", tmp_path / "tutorial_lib")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(root / name, tmp_path)
    return tmp_path


def test_help_needs_nothing_installed_and_lists_every_command(run_python):
    done = run_python("-m", "tutorial_lib", "--help", bare=True)
    listed = re.findall(r"^  (\w+) {2,}", done.stdout, flags=re.M)
    assert done.returncode == 0, done.stderr
    assert listed == list(table.COMMANDS)
    modules = {path.stem for path in Path(process.__file__).parent.glob("*.py")}
    assert {*listed} <= modules
    assert not any("\x1b" in text for text in (done.stdout, done.stderr))
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_importing_the_package_loads_nothing_else(run_python):
    code = "import sys, tutorial_lib as t; t.units; print({'torch', 'numpy'} & {*sys.modules})"
    assert run_python("-c", code, bare=True).stdout == "set()\n"


def test_submodules_load_on_use_and_unknown_names_stay_unknown(run_python):
    import tutorial_lib

    assert tutorial_lib.units.human_bytes(1024) == "1.00 KiB"
    assert "units" in dir(tutorial_lib)
    with pytest.raises(AttributeError, match="no attribute 'unitz'"):
        tutorial_lib.unitz  # noqa: B018
    done = run_python("-c", "import tutorial_lib; tutorial_lib.checks", bare=True)
    assert "No module named 'torch'" in done.stderr


def test_an_unknown_command_names_the_nearest(run_python):
    done = run_python("-m", "tutorial_lib", "mesure", bare=True)
    assert done.returncode == 2
    assert done.stderr == "There is no command 'mesure': did you mean `measure`?\n"


def test_doctor_needs_nothing_installed(run_python, bare_clone):
    done = run_python("-m", "tutorial_lib", "doctor", cwd=bare_clone, bare=True)
    assert (done.returncode, done.stderr) == (0, "")
    facts = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if line[0] != "f")
    assert facts["course"] == __version__
    assert facts["Python"].startswith(platform.python_version())
    assert facts["next"] == "run `python -m tutorial_lib lab`: it sets everything up."
    done = run_python("-m", "tutorial_lib", "doctor", "--json", cwd=bare_clone, bare=True)
    assert {*json.loads(done.stdout)} == {"course", "Python", "system", "free disk", "next"}


def test_doctor_says_that_a_python_does_not_suit(monkeypatch, capsys):
    def no_package():
        raise ImportError

    monkeypatch.setattr(sys, "version_info", (3, 8, 18))
    monkeypatch.setattr(pythons, "suitable", lambda: None)
    monkeypatch.setattr(doctor, "_of_packages", no_package)
    assert main(["doctor"]) == 2
    assert "is Python 3.8, but the course needs 3.11 to 3.14" in capsys.readouterr().out


@pytest.mark.parametrize("version", [(3, 6, 15), (3, 7, 16)])
def test_a_python_that_cannot_read_the_course_gets_one_sentence(monkeypatch, capsys, version):
    monkeypatch.setattr(sys, "version_info", version)
    monkeypatch.setattr(pythons, "suitable", lambda: "python3.12")
    assert entrance.main() == 2
    said = capsys.readouterr().err
    assert said.endswith("needs 3.11 to 3.14: try `python3.12 -m tutorial_lib ...`.\n")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("bare", "command", "extra"),
    [
        *((False, "grade", "grade"), (False, "build", "author")),
        *((True, "predict", ""), (True, "plan", ""), (True, "grade", "grade")),
    ],
)
def test_a_command_has_what_it_needs_set_up_and_no_more(started, monkeypatch, bare, command, extra):
    """Beside the lab's packages, or where there are none at all."""
    asked = []
    missing = (lambda *_: ["torch"]) if bare else (lambda _, wanted: [wanted] * bool(wanted))
    monkeypatch.setattr(bootstrap, "missing_packages", missing)
    monkeypatch.setattr(bootstrap, "is_running", lambda _: False)
    monkeypatch.setattr(bootstrap, "python_with_course", lambda _, e: asked.append(e) or "python")
    if bare:
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
        monkeypatch.setattr(bootstrap, "venv_python", lambda _: Path("no such file"))
    assert main([command, "words"]) == 0
    assert (asked, started) == ([extra], [(["-m", "tutorial_lib", command, "words"], None)])


def test_an_environment_that_lost_a_package_is_said_to_and_not_tried_for_ever(
    started, monkeypatch, capsys
):
    monkeypatch.setattr(bootstrap, "missing_packages", lambda *_: ["nbval"])
    monkeypatch.setattr(bootstrap, "is_running", lambda _: True)
    monkeypatch.setattr(bootstrap, "is_ready", lambda *_: True)
    assert main(["grade"]) == 2
    assert "lost a package: delete it, then run this again." in capsys.readouterr().err
    assert started == []


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for Python is a shell script")
def test_a_bare_python_hands_over_to_the_environment(run_python, bare_clone):
    python = bare_clone / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho handed over: "$@"\nexit 7\n')
    python.chmod(0o755)
    done = run_python("-m", "tutorial_lib", "doctor", "--json", cwd=bare_clone, bare=True)
    assert done.stdout == "handed over: -m tutorial_lib doctor --json\n"
    assert done.returncode == 7


def test_lab_opens_the_first_page_of_the_working_copy(started, root, monkeypatch):
    monkeypatch.setattr(workbook, "update", lambda root: ["labs/x.ipynb: cell 'a' changed."])
    assert main(["lab", "--no-browser"]) == 0
    (command, changes), *more = started
    assert command[:2] == ["-m", "jupyterlab"]
    assert Path(changes["JUPYTER_PATH"].split(os.pathsep)[0]).name == "jupyterlab"
    assert f"--ServerApp.root_dir={root / 'workbook'}" in command
    assert "--LabApp.default_url=/lab/tree/course/00_start_here.ipynb" in command
    assert "--no-browser" in command
    settings = next(word for word in command if "app_settings_dir" in word).partition("=")[2]
    overrides = json.loads((Path(settings) / "overrides.json").read_text())
    schemas = Path(sys.prefix) / "share/jupyter/lab/schemas"
    for plugin, values in overrides.items():
        schema = json.loads((schemas / f"{plugin.replace(':', '/')}.json").read_text())
        assert schema["properties"].keys() >= values.keys(), plugin
    assert overrides["@jupyterlab/apputils-extension:notification"] == {"fetchNews": "false"}
    assert more == []


@pytest.mark.skipif(os.name == "nt", reason="a closed pipe is another error there")
@pytest.mark.parametrize("words", [["doctor"], ["--help"]])
def test_a_closed_pipe_ends_a_command_quietly(root, words):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "tutorial_lib", *words]
    done = subprocess.run(command, cwd=root, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_taken_port_is_refused_before_the_set_up(started, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert main(["lab", "--port", str(port)]) == 2
    assert f"Port {port} is taken: choose another" in capsys.readouterr().err
    assert started == []
    assert main(["lab", "--port", str(port)]) == 0
    assert f"--port={port}" in started[0][0]


def test_test_runs_notebooks_and_tests_without_a_network(started, root):
    main(["test", "-x"])
    command, changes = started[0]
    assert command[:3] == ["-m", "pytest", "--nbval"]
    assert command[-2:] == ["tests", "-x"]
    assert {"course/04_checkpoint_from_scratch.ipynb", "solutions/lab01_ledger.ipynb"} < {*command}
    assert changes["PYTHONPATH"].split(os.pathsep)[0] == str(root / "tests" / "offline")
    assert (root / "tests" / "offline" / "sitecustomize.py").is_file()


def test_test_runs_all_or_only_what_is_named(started):
    for words in (["test", "--all", "-x"], ["test", "tests/test_units.py::test_x", "-q"]):
        assert main(words) == 0
    (every, _), (named, _) = started
    assert every[-6:] == ["course", "solutions", "tests", "-m", "", "-x"]
    assert "--all" not in every
    assert named[-3:] == ["loadfile", "tests/test_units.py::test_x", "-q"]


@pytest.mark.parametrize(
    ("command", "error", "sentence"),
    [
        ("test", bootstrap.SetupError("No package index answered."), "No package index answered."),
        ("lab", OSError(28, "No space left on device"), "The disk is full"),
    ],
)
def test_what_the_set_up_meets_is_one_sentence(monkeypatch, capsys, command, error, sentence):
    def refuse(*_):
        raise error

    monkeypatch.setattr(bootstrap, "python_with_course", refuse)
    assert main([command]) == 2
    said = capsys.readouterr().err
    assert said.startswith(sentence)
    assert said.count("\n") == 1
