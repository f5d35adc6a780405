"""The commands of `python -m tutorial_lib`, from a bare Python (3.8 and up) on.

Standard library only. `lab` and `test` make the environment they need, `grade` and `build` add to
it; every other command is handed to `tutorial_lib.school.cli` in that environment.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tutorial_lib import __version__
from tutorial_lib.school import bootstrap, changed, installer, pythons, workbook

ROOT = Path(__file__).resolve().parent.parent.parent

HELP = """\
usage: python -m tutorial_lib COMMAND [OPTIONS]      (Windows: py -m ...)

To learn (both make .venv first, and install nothing the second time):
  lab       open the course in JupyterLab   [--no-browser] [--port N]
  test      run the daily tests, those of what changed, or all
                [--changed] [--all] [--emulated] [arguments of pytest]

To use:
  doctor    show Python, torch, GPU, versions and free disk   [--json]
  measure   measure a training step   MODEL [--batch N] [--json] [--emulated t4]
  predict   the same number without allocating anything
                MODEL [--batch N] [--json] [--ranks 8 --shard fsdp]
  plan      what fits a memory budget, and the fastest of it
                MODEL --budget 16GiB --effective-batch N [--json]
                [--lora r=8] [--emulated t4] [--ranks 8 --shard ddp]
  emulate   run any script on a GPU that is not there
                --card t4 -- python train.py

  MODEL is a published model (gpt2, sd15-unet), the path of a config.json, or a
  function of your own (train.py:make_step); it may stand after --model, too.

To teach and maintain:
  record    measure or predict the tables that the course quotes
                [--only ROWS] [--predict] [--emulated t4]
  grade     grade a folder of submissions     LAB SUBMISSIONS --out REPORT
  build     make the notebooks from their sources   [NAMES] [--check] [--zip]
  site      write the executed course as static pages   [--out FOLDER]
  new       write the first files of a lab   LAB FUNCTIONS

  COMMAND --help shows a command's options; --version the version.
"""

TEST_HELP = """\
usage: python -m tutorial_lib test [--changed] [--all] [--emulated]
                                   [pytest's arguments]

Set up .venv, then run the daily tests, without a network: all rules, a handful
of notebooks, and those that differ from the commit before the last.

  tests/test_units.py   only these tests; or options of pytest: -k WORD, -x
  --changed             name stale notebooks, and run the tests of what changed
  --all                 every notebook and test, the weekly ones too: hours
  --emulated [NAMES]    run the notebooks' GPU cells on emulated cards
  -h, --help            this text; `pytest --help` lists pytest's own options
"""

COMMANDS = (
    "lab", "test", "doctor", "measure", "predict", "plan", "emulate", "record", "grade", "build",
    "site", "new",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 when all went well, 2 after a sentence that says what was wrong, else the status of
        the program that the command started.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = words[0] if words else "--help"
    if command in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if command == "--version":
        print(__version__)
        return 0
    try:
        if command not in COMMANDS:
            near = difflib.get_close_matches(command, COMMANDS, n=1)
            guess = f"did you mean `{near[0]}`?" if near else "--help lists the commands."
            raise bootstrap.SetupError(f"There is no command {command!r}: {guess}")
        if command == "lab":
            return _lab(words[1:])
        if command == "test":
            return _test(words[1:])
        if command == "emulate":  # in the environment that holds PyTorch's CUDA build
            from tutorial_lib.school.emulate import main as emulate

            return emulate(words[1:])
        return _other(words)
    except bootstrap.SetupError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(installer.explain(str(error), ROOT, "The system refused"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Stopped: run the same command again to go on.", file=sys.stderr)
        return 130


def _lab(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tutorial_lib lab",
        description="Open the course in JupyterLab; sets up .venv first. Ctrl-C stops it.",
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    parser.add_argument("--port", type=int, metavar="N", help="a port of your choice")
    options = parser.parse_args(words)
    if options.port is not None:
        _check_port(options.port)
    python = bootstrap.python_with_course(ROOT, "lab")
    command = [
        str(python),
        *("-m", "jupyterlab"),
        f"--ServerApp.root_dir={ROOT / workbook.FOLDER}",
        f"--LabApp.default_url=/lab/tree/{workbook.START_PAGE}",
        f"--LabApp.app_settings_dir={Path(__file__).parent / 'jupyterlab'}",
        "--Application.log_level=ERROR",  # 20 lines would bury the address
        "--ServerApp.answer_yes=True",  # one Ctrl-C stops it, without a question
    ]
    if options.no_browser:
        command.append("--no-browser")
    if options.port is not None:
        command += [f"--port={options.port}", "--ServerApp.port_retries=0"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # containers; the server listens on localhost only
    for note in workbook.update(ROOT):
        print(f"{workbook.FOLDER}/{note}")
    print(
        f"Your copy is {workbook.FOLDER}/. Starting JupyterLab; Ctrl-C here stops it.", flush=True
    )
    return _replace_process(command, {})


def _check_port(port: int) -> None:
    """Refuse a port before minutes of set-up are spent.

    Raises:
        SetupError: For a number that is no port, or a port that is taken or reserved.
    """
    if not 1 <= port <= 65535:
        raise bootstrap.SetupError(f"--port {port} is no port: choose from 1024 to 65535.")
    with socket.socket() as probe:
        if os.name != "nt":  # there the option would let two servers share a port
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            why = "taken" if error.errno == errno.EADDRINUSE else f"refused ({error.strerror})"
            raise bootstrap.SetupError(
                f"Port {port} is {why}: choose another, or leave --port out to get a free one."
            ) from error


def _test(words: list[str]) -> int:
    """Run pytest on notebooks and tests, network refused, so that its last line stays last."""
    if {"-h", "--help"} & {*words}:
        print(TEST_HELP, end="")
        return 0
    if not (ROOT / "tests").is_dir():
        raise bootstrap.SetupError(
            f"{ROOT} has no tests, as the zip for a class: clone the course, or open it with `lab`."
        )
    if "--emulated" in words:
        from tutorial_lib.school.emulate import run_gpu_cells

        return run_gpu_cells([word for word in words if word != "--emulated"])
    python = bootstrap.python_with_course(ROOT, "test")
    guard = os.pathsep.join(
        path for path in (str(ROOT / "tests" / "offline"), os.environ.get("PYTHONPATH")) if path
    )
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    # Hundreds of processes import the course: compiled once, whatever is set elsewhere.
    changes = {"PYTHONPATH": guard, "OMP_NUM_THREADS": threads, "PYTHONDONTWRITEBYTECODE": ""}
    if "--changed" in words:
        words = [word for word in words if word != "--changed"]
        return _test_changed([str(python)], words, {**os.environ, **changes})
    chosen = any((ROOT / word.split("::")[0]).exists() for word in words if word[:1] != "-")
    # Notebooks take longest, so they start first; what belongs together stays with one worker.
    paths = [] if chosen else [*changed.daily_notebooks(ROOT), "tests"]
    if "--all" in words:
        paths = ["course", "solutions", "tests", "-m", ""]
        words = [word for word in words if word != "--all"]
    workers = str(min(4, (os.cpu_count() or 1) + 1))  # one more, since some tests wait
    command = [str(python), "-m", "pytest", "--nbval", "-n", workers, "--dist", "loadfile"]
    return _replace_process([*command, *paths, *words], changes)


def _test_changed(python: list[str], words: list[str], environment: dict[str, str]) -> int:
    """Say which notebooks are stale, and run the tests of what differs from the last commit."""
    files = changed.changed_files(ROOT)
    print(f"{len(files)} files differ from the last commit.", flush=True)
    check = [*python, "-m", "tutorial_lib", "build", "--check"]
    runs = [[*python, "-m", "pytest", *run, *words] for run in changed.pytest_runs(ROOT, files)]
    return max(subprocess.call(run, cwd=ROOT, env=environment) for run in [check, *runs])


def _other(words: list[str]) -> int:
    """Hand a command to the library, in `.venv` when this Python has no course installed."""
    venv = ROOT / ".venv"
    python = bootstrap.venv_python(venv)
    is_bare = bool(bootstrap.missing_packages(ROOT, "lab"))
    if not bootstrap.is_running(venv) and python.exists() and is_bare:
        return _replace_process([str(python), "-m", "tutorial_lib", *words], {}, move=False)
    if words[0] != "doctor":
        bootstrap.check_version(sys.version_info[:2], f"This ({sys.executable})")
    try:
        if words[0] == "record":  # works where only torch and the models' libraries are
            from tutorial_lib.school.record import main as record

            return record(words[1:])
        from tutorial_lib.school.cli import run
    except ImportError as error:
        if words[0] == "doctor":
            return _doctor_without_packages(words[1:])
        raise bootstrap.SetupError(
            f"{words[0]} needs {error.name}, which {sys.executable} does not have: run "
            "`python -m tutorial_lib lab` once (it sets everything up), or pip as in the README."
        ) from error
    extra = {"grade": "grade", "build": "author", "new": "author", "site": "site"}.get(words[0])
    if extra and "--help" not in words and bootstrap.missing_packages(ROOT, extra):
        python = bootstrap.python_with_course(ROOT, extra)
        return _replace_process([str(python), "-m", "tutorial_lib", *words], {}, move=False)
    return run(words)


def _doctor_without_packages(words: list[str]) -> int:
    """Show what can be said before anything is installed, and what to do next."""
    facts = bootstrap.facts(ROOT)
    refusal = pythons.refusal(sys.version_info[:2], f"This ({sys.executable})")
    facts["next"] = refusal or "run `python -m tutorial_lib lab`: it sets everything up."
    if "--json" in words:
        print(json.dumps(facts, indent=1))
    else:
        for name, value in facts.items():
            print(f"{name:<10} {value}")
    return 2 if refusal else 0


def _replace_process(command: list[str], changes: Mapping[str, str], *, move: bool = True) -> int:
    """Replace this program by another; on Windows, which cannot, wait for it."""
    environment = {**os.environ, **changes}
    sys.stdout.flush()
    if move:
        os.chdir(ROOT)
    if os.name != "nt":
        os.execve(command[0], command, environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the other program's to answer
    return subprocess.call(command, env=environment)
