"""The README's commands, and the calls on the page of the learner's wing, as they stand."""

import doctest
import importlib
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from tutorial_lib import claims, data, guesses, memory, plots, units
from tutorial_lib.instruments.training.user_function import SAMPLE
from tutorial_lib.models import gpt
from tutorial_lib.school.authoring.frame import read_settings
from tutorial_lib.school.commands import parser, table


@pytest.fixture(scope="module")
def program(root):
    text = (root / "tutorial_lib" / "README.md").read_text(encoding="utf-8")
    return "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.S))


def test_every_call_prints_what_the_page_says(program):
    test = doctest.DocTestParser().get_doctest(program, {}, "README.md", None, 0)
    said = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert not said, "".join(said)
    assert all(len(one.want.splitlines()) <= 2 for one in test.examples)


CALLS = (
    *(gpt.GPTConfig, gpt.GPT, gpt.Block, data.text_batches, data.digits, units.Bytes),
    *(memory.saved, memory.measure, memory.predict, memory.watch, memory.predicting),
    *(plots.ledger_bars, guesses.beside, claims.Verdict, claims.Verdicts),
)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_every_call_has_an_example_that_prints_what_it_says(program, call):
    (test,) = doctest.DocTestFinder(recurse=False).find(call)
    said = []
    doctest.DocTestRunner().run(test, out=said.append)
    assert not said, "".join(said)
    assert test.examples
    assert f"{call.__name__}(" in program


REPOSITORY = read_settings(Path(__file__).resolve().parents[1]).repository
# The course's own door, and how to get through it without our command.
DOOR = ["python3", "-m", "tutorial_lib"]
OTHERS = {
    "python3": ["python3 -m venv .venv"],
    ".venv/bin/python": ['.venv/bin/python -m pip install -c constraints.txt -e ".[test]"'],
    "uv": ["uv sync --extra test"],
    "conda": ["conda env create -f environment.yml", "conda activate training-that-fits"],
    "git": [f"git clone https://github.com/{REPOSITORY} training"],
    "cd": ["cd training"],
}
# These open a server, take minutes, need PyTorch's CUDA build, or a class: their options are read.
NOT_RUN = {"lab", "test", "emulate", "grade", "build"}


def commands_of(root):
    """Yield the words of commands that a reader may paste, from blocks and within a sentence."""
    text = (root / "README.md").read_text(encoding="utf-8")
    blocks = "".join(re.findall(r"```bash\n(.*?)```", text, flags=re.S)).splitlines()
    spans = re.findall(r"`(python3? [^`]+|uvx [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.S))
    for line in [*blocks, *spans]:
        for command in re.split(r" && ", line):
            yield shlex.split(command, comments=True)


def problem(words):
    """Say what is wrong with a command; None when a reader may paste it."""
    if words[0] == "uvx":
        words = [*DOOR, *words[2:]] if words[1] == "training-that-fits" else words
    if words[:3] == DOOR:
        name, *rest = words[3:]
        module = importlib.import_module(f"tutorial_lib.school.commands.{table.find(name).name}")
        try:
            parser.parse(name, module, rest)
        except SystemExit:
            return f"{name} does not take {rest}"
        return None
    known = [shlex.split(line) for line in OTHERS.get(words[0], [])]
    return (
        None if words in known or words[1:2] == ["course/recorded/make/foreign.py"] else "unknown"
    )


def test_every_command_of_the_readme_is_one_that_there_is(root):
    commands = list(commands_of(root))
    assert [(words, found) for words in commands if (found := problem(words))] == []
    assert {words[3] for words in commands if words[:3] == DOOR} >= {"lab", "test", "predict"}
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert {"test", "course"} <= set(extras)


def test_the_lines_of_ones_own_function_are_those_of_the_help(root):
    assert SAMPLE in (root / "README.md").read_text(encoding="utf-8")
    tonight = (root / "course/source/tonight.py").read_text(encoding="utf-8")
    assert textwrap.indent(SAMPLE, "# ") in tonight


@pytest.mark.weekly
def test_the_readmes_commands_run(root):
    cold = [*DOOR, "plan", "lstm", "--budget", "16GiB", "--effective-batch", "1"]
    for words in [cold, *(words for words in commands_of(root) if words[:3] == DOOR)]:
        asked = [words[3], *(["--help"] * (words[3] in NOT_RUN)), *words[4:]]
        command = [sys.executable, "-m", "tutorial_lib", *asked]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, (asked, done.stderr)
