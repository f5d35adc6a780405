"""`python -m tutorial_lib COMMAND`, from a bare Python (3.8 and up) on.

Standard library only. An error that the library foresees is one sentence on stderr and exit
status 2; `--debug` shows where it came from.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from tutorial_lib import __version__
from tutorial_lib.school import bootstrap, installer
from tutorial_lib.school.commands import parser, process, table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 when all went well, 1 when something was found wanting, 2 after a sentence that says
        what was wrong, else the status of the program that the command started.

    Raises:
        Exception: What the library did not foresee; with `--debug`, every error.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = words[0] if words else "--help"
    try:
        status: int | None = 0
        if name in ("-h", "--help", "help"):
            print(table.help_text(), end="")
        elif name == "--version":
            print(__version__)
        else:
            status = _elsewhere(table.find(name), words[1:])
        status = run(words) if status is None else status
        sys.stdout.flush()
        return status
    except bootstrap.SetupError as error:
        print(error, file=sys.stderr)
        return 2
    except BrokenPipeError:  # as in `doctor | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13  # the status of a program that SIGPIPE ends
    except OSError as error:
        if "--debug" in words:
            raise
        print(installer.explain(str(error), bootstrap.ROOT, "The system refused"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Stopped: run the same command again to go on.", file=sys.stderr)
        return 130


def run(words: Sequence[str]) -> int:
    """Run a command, and what follows it, in this Python, whatever it has; return what `main` does.

    Raises:
        SetupError: When there is no such command, or set-up cannot go on.
        Exception: What the library did not foresee; with `--debug`, every error.
    """
    command, *words = words
    module = _loaded(table.find(command).name)
    try:
        options = parser.parse(command, module, words)
        return int(module.run(options))
    except SystemExit as end:  # the parser's
        return end.code if isinstance(end.code, int) else 0
    except BrokenPipeError:
        raise
    except Exception as error:
        if command in ("lab", "test"):  # they raise SetupError where something is foreseen
            raise
        from tutorial_lib.school.commands import messages

        sentence = messages.foreseen(error)
        if sentence is None and any(":" in word for word in words):  # a function of the user's
            sentence = messages.of_own_code(error)
        if options.debug or sentence is None:
            raise
        print(sentence, file=sys.stderr)
        return 2


def _loaded(name: str) -> ModuleType:
    """Import a command's module; a quarter of the time would go into looking for garbage."""
    is_first = "torch" not in sys.modules
    if is_first:
        gc.disable()
    try:
        return importlib.import_module(f"tutorial_lib.school.commands.{name}")
    finally:
        if is_first:
            gc.freeze()
            gc.enable()


def _elsewhere(command: table.Command, words: list[str]) -> int | None:
    """Run a command in an environment that has what it needs; None where this Python has it."""
    if command.python == "this":
        return None
    venv, python = bootstrap.ROOT / ".venv", bootstrap.venv_python(bootstrap.ROOT / ".venv")
    again = ["-m", "tutorial_lib", command.name, *words]
    is_bare = bool(bootstrap.missing_packages(bootstrap.ROOT, ""))
    if not bootstrap.is_running(venv) and python.exists() and is_bare:
        return process.become([str(python), *again], move=False)
    if command.python == "found":
        return None
    bootstrap.check_version(sys.version_info[:2], f"This ({sys.executable})")
    if not {"-h", "--help"}.isdisjoint(words):
        return None
    # Installed as a package, or on Colab, it runs with the packages that are there.
    lacks = is_bare and importlib.util.find_spec("torch") is None
    if lacks or (command.extra and bootstrap.missing_packages(bootstrap.ROOT, command.extra)):
        if bootstrap.is_running(venv) and bootstrap.is_ready(bootstrap.ROOT, command.extra):
            raise bootstrap.SetupError(f"{venv} lost a package: delete it, then run this again.")
        made = bootstrap.python_with_course(bootstrap.ROOT, command.extra)
        return process.become([str(made), *again], move=False)
    return None
