"""Run any training script, unchanged, on a card that is not there."""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tutorial_lib.instruments.emulated import environment
from tutorial_lib.instruments.emulated import run as emulated
from tutorial_lib.instruments.emulated.build import TRIED, CudaTorch, check_system
from tutorial_lib.instruments.emulated.cards import CARDS, find_card
from tutorial_lib.school import bootstrap, installer

NEEDED_GB = 9  # for .venv-cuda: 6 GB unpacked, and the downloads beside them
_NOTICE = (
    "On an emulated card no kernel runs: losses are zeros, and times mean nothing. Masks and other "
    "small integers that come from the host are real. "
    "A loss of zero is expected, and NaN where the script divides by it. A loop that waits for a "
    "loss never ends: --steps N stops it."
)
_EPILOG = (
    "Shown are the bytes of PyTorch's own allocator for this card: requested, allocated and "
    "reserved. With --cudnn they include the workspaces that cuDNN says its convolutions would "
    "take there if memory is free; a step that is short of memory can do without. The CUDA "
    "context is subtracted from the card's memory (not with --context 0), and is in no peak. "
    "Not included: what a recurrent layer and cuBLASLt need. Cannot run: CUDA graphs, "
    "NCCL. Lines that read a value which is not known are named.\n\n"
    "Exit status: 0; 3 when the card's memory ran out; 2 after a sentence that says what is wrong; "
    "else the program's own."
)


def options(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes: words behind `--` are the program's."""
    parser.usage = "%(prog)s --card CARD [options] -- python train.py\n       %(prog)s --setup"
    parser.epilog = _EPILOG
    context = "what a CUDA context takes of it, as in 300MiB or 0; default: the card's own"
    add = parser.add_argument
    add("--card", metavar="CARD", help=f"one of {', '.join(CARDS)}")
    add("--memory", metavar="SIZE", help="a different memory size, as in 16GiB or in bytes")
    add("--context", metavar="SIZE", help=context)
    add("--cudnn", action="store_true", help="count the workspaces of convolutions, too")
    add("--steps", type=int, metavar="N", help="stop after N optimizer steps")
    add("--snapshot", type=Path, metavar="FILE", help="for PyTorch's memory viewer")
    add("--json", type=Path, metavar="FILE", help="the result, for a program")
    add("--setup", action="store_true", help="make .venv-cuda (about 6 GB), once")


def run(options: argparse.Namespace) -> int:
    """Make the environment, or run the program; the status is as the help describes it."""
    if options.setup:
        make()
        return 0
    program = options.rest
    if not options.card or not program:
        missing = "a program behind `--`" if options.card else "--card"
        raise ValueError(f"emulate needs {missing}, as in: emulate --card t4 -- python train.py")
    if options.steps is not None and options.steps < 1:
        raise ValueError(f"--steps {options.steps} would stop before the first: give 1 or more.")
    card = find_card(options.card, options.memory, options.context)
    torch = environment.find_cuda_torch(bootstrap.ROOT)
    if not torch.version.startswith(TRIED):
        tried = ", ".join(f"{one}x" for one in TRIED)
        print(f"Not tried with PyTorch {torch.version}, only with {tried}.", file=sys.stderr)
    print(_NOTICE, file=sys.stderr, flush=True)
    wishes = {"steps": options.steps, "snapshot": options.snapshot, "cudnn": options.cudnn}
    result = emulated.emulate(program, card, torch, **wishes)
    if options.json:
        options.json.write_text(json.dumps(result.as_data(), indent=1) + "\n", encoding="utf-8")
    print(emulated.as_text(result), flush=True)
    return result.exit_status


def on_cards(command: str, options: argparse.Namespace) -> int:
    """Run a command on each card that its `--emulated` names; return the highest status."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--emulated")
    _, others = parser.parse_known_args(options.words)
    return _on_each(options.emulated, ["-m", "tutorial_lib", command, *others])


def run_gpu_cells(notebooks: Sequence[str]) -> int:
    """Run a sample of rows, and all GPU cells of the notebooks, on an emulated T4 and A100.

    Args:
        notebooks: Beginnings of their names; none means all.
    """
    try:
        program = str(bootstrap.ROOT / "tests" / "emulated_cells.py")
        return _on_each("t4,a100", [program, *notebooks])
    except ValueError as error:
        raise bootstrap.SetupError(str(error)) from error


def _on_each(keys: str, words: list[str]) -> int:
    """Run Python on each of some cards; give the highest exit status."""
    cards = [find_card(key) for key in keys.split(",")]
    torch = environment.find_cuda_torch(bootstrap.ROOT)
    statuses = []
    for card in cards:
        command = ["python", *words]
        result = emulated.emulate(command, card, torch, watch=False)
        crashed = result.refused or result.status < 0
        if crashed:
            print(result.reason, file=sys.stderr)
        statuses.append(2 if crashed else result.status)
    return max(statuses)


def make() -> CudaTorch:
    """Make `.venv-cuda` with PyTorch's CUDA build and the course, unless one is there already.

    Says first what it takes. Interrupted, it goes on when it is called again: pip keeps what it
    has downloaded.

    Raises:
        ValueError: When there is no room for it, or pip fails.
    """
    root = bootstrap.ROOT
    check_system()
    try:
        found = environment.find_cuda_torch(bootstrap.ROOT)
    except ValueError:
        pass
    else:
        print(f"PyTorch {found.version} in {found.packages} was built for CUDA: nothing to do.")
        return found
    venv = root / environment.FOLDER
    free_gb = shutil.disk_usage(root).free / 1e9
    if free_gb < NEEDED_GB:
        raise ValueError(
            f"{root} has {free_gb:.1f} GB free, but PyTorch's CUDA build needs about {NEEDED_GB} "
            "GB while it is installed: free some space, then run this again."
        )
    bootstrap.check_version(sys.version_info[:2], f"This ({sys.executable})")
    print(
        f"Making {venv}: about 6 GB, once. Stopped by Ctrl-C, it goes on the next time.", flush=True
    )
    python = str(bootstrap.venv_python(venv))
    if installer.run([python, "-m", "pip", "--version"], root)[0]:  # none, or half made
        _run([sys.executable, "-m", "venv", "--clear", str(venv)])
    options = ["--no-input", "--disable-pip-version-check", "-c", "constraints.txt"]
    _run([python, "-m", "pip", "install", *options, environment.TORCH, "-e", ".[test]"])
    (venv / environment.STAMP).write_text(environment.fingerprint(root), encoding="utf-8")
    return environment.find_cuda_torch(bootstrap.ROOT)


def _run(command: list[str]) -> None:
    """Run a program that shows its own progress."""
    status = subprocess.call(command, cwd=bootstrap.ROOT, env={**os.environ, "PIP_USER": "0"})
    if status:
        raise ValueError(
            f"`{' '.join(command[1:4])}` ended with status {status}: fix what it says above, then "
            "run `emulate --setup` again, which goes on where it stopped."
        )
