"""The table of commands: their names, their lines in `--help`, and what they need installed.

Standard library only, and no syntax newer than Python 3.8.
"""

from __future__ import annotations

import difflib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from tutorial_lib.school.bootstrap import NAME, SetupError

# What was typed: an installed package has a command of its own.
_MODULE = ("py" if os.name == "nt" else "python") + " -m tutorial_lib"
PROGRAM = NAME if Path(sys.argv[0]).stem == NAME else _MODULE


@dataclass(frozen=True)
class Command:
    """One row of the table."""

    name: str  # what is typed, and the module in this folder
    shown: str  # in `--help` of the whole: what it does, and the options used most
    # `this`: this Python runs it as it is. `found`: it is handed to `.venv` where this Python lacks
    # packages, and can do without. `course`: it needs the course's packages.
    python: str = "course"
    extra: str = ""  # the extra of pyproject.toml that it needs beside them


_TEST = """\
run the daily tests, or all
[--all] [--emulated] [arguments of pytest]"""
_PREDICT = """\
the same number without allocating anything
MODEL [--batch N] [--json] [--ranks 8 --shard fsdp]"""
_PLAN = """\
what fits a memory budget, and the best of it
MODEL --budget 16GiB --effective-batch N [--json]
[--lora r=8] [--emulated t4] [--ranks 8 --shard ddp]"""
_EMULATE = """\
run any script on a GPU that is not there
--card t4 -- python train.py"""
_RECORD = """\
measure or predict the tables that the course quotes
[--only ROWS] [--predict] [--emulated t4]"""
_GRADE = "LAB SUBMISSIONS --out REPORT"
_BUILD = "[NAMES] [--check] [--zip]"

GROUPS = {
    "To learn (.venv is made first, and the second time nothing is installed):": (
        Command("lab", "open the course in JupyterLab   [--no-browser] [--port N]", "this"),
        Command("progress", "show what you have done: cells, blanks, points of the labs", "this"),
        Command("test", _TEST, "this"),
    ),
    "To use:": (
        Command("doctor", "show Python, torch, GPU, versions and free disk   [--json]", "found"),
        Command("measure", "measure a training step   MODEL [--batch N] [--json] [--emulated t4]"),
        Command("predict", _PREDICT),
        Command("plan", _PLAN),
        Command("emulate", _EMULATE, "this"),  # in the environment with PyTorch's CUDA build
    ),
    "To teach and maintain:": (
        Command("record", _RECORD),
        Command("grade", f"grade a folder of submissions     {_GRADE}", extra="grade"),
        Command("build", f"make the notebooks from their sources   {_BUILD}", extra="author"),
        Command("site", "write the executed course as static pages   [--out FOLDER]", extra="site"),
    ),
}
COMMANDS = {command.name: command for group in GROUPS.values() for command in group}

_MODEL = """\
  MODEL is a published model (gpt2, sd15-unet), the path of a config.json, or a
  function of your own (train.py:make_loss), as `predict --help` shows.
"""


def help_text() -> str:
    """Write what `--help` of the whole prints."""
    text = f"usage: {PROGRAM} COMMAND [OPTIONS]\n"
    for title, group in GROUPS.items():
        text += f"\n{title}\n"
        for command in group:
            text += f"  {command.name:<10}" + command.shown.replace("\n", "\n" + " " * 16) + "\n"
        text += f"\n{_MODEL}" if title == "To use:" else ""
    return text + "\n  COMMAND --help shows a command's options; --version the version.\n"


def find(name: str) -> Command:
    """Find a command by its name; the error names the nearest."""
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        guess = f"did you mean `{near[0]}`?" if near else "--help lists the commands."
        raise SetupError(f"There is no command {name!r}: {guess}")
    return COMMANDS[name]
