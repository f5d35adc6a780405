"""`python -m tutorial_lib record`: measure, emulate or predict every row; resumes where it stopped.

Needs torch, transformers, diffusers and matplotlib, and nothing of Jupyter.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from tutorial_lib import device as devices
from tutorial_lib.recorded import run, snapshots, store
from tutorial_lib.recorded.rows import Row, find_rows
from tutorial_lib.recorded.table import as_table
from tutorial_lib.school.emulate import on_cards
from tutorial_lib.units import human_bytes


def main(words: Sequence[str]) -> int:
    """Record rows, one line each.

    Returns:
        0 when all rows are there, 3 when time ran out before, 2 after an error.
    """
    options = _parser().parse_args(words)
    try:
        status = on_cards(["record", *words])
        return _record(options) if status is None else status
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tutorial_lib record", description=__doc__)
    parser.add_argument("--only", default="*", help="rows by key or claim, as in 'gpt2*' or E06")
    parser.add_argument("--max-minutes", type=float, default=9.0, help="begin no row after that")
    parser.add_argument("--predict", action="store_true", help="predict, which needs no GPU")
    parser.add_argument("--emulated", metavar="CARDS", help="on emulated cards, as in t4,a100")
    parser.add_argument("--again", action="store_true", help="record rows that are there anew")
    parser.add_argument("--list", action="store_true", help="only list the rows")
    parser.add_argument("--table", action="store_true", help="only print what is recorded")
    parser.add_argument("--snapshots", action="store_true", help="record small snapshots instead")
    parser.add_argument("--out", type=Path, help="another file than course/recorded/<gpu>.json")
    return parser


def _record(options: argparse.Namespace) -> int:
    rows = find_rows(options.only)
    if options.predict:
        rows = [row for row in rows if not row.largest]
    if options.list:
        print("\n".join(row.key for row in rows))
        return 0
    if options.table:
        print(as_table(rows, store.load(store.PREDICTED), store.measured()))
        return 0
    device = torch.device("cpu") if options.predict else devices.pick()
    if device.type != "cuda" and not options.predict:
        raise ValueError(
            "There is no GPU here to measure on: --predict predicts the same rows, and --emulated "
            "t4 runs them on an emulated card."
        )
    if options.snapshots:
        for name in snapshots.RECIPES:
            print(snapshots.take(name, device), flush=True)
        return 0
    recording = _begin(options.predict, device)
    path = options.out or store.path_of(store.PREDICTED if options.predict else recording.device)
    if not (options.again and options.only == "*"):
        recording.resume(path)
    start = time.monotonic()
    left = [row for row in rows if options.again or row.key not in recording.rows]
    for number, row in enumerate(left, 1):
        if time.monotonic() - start > 60 * options.max_minutes:
            print(f"{len(left) - number + 1} rows are left: run the same command again to go on.")
            return 3
        results = run.predicted(row) if options.predict else run.measured(row, device)
        recording.add(path, row.key, results | _about(row, device))
        print(f"{number}/{len(left)} {row.key}: {_in_words(results)}", flush=True)
    print(f"{len(rows)} rows are in {path}.")
    return 0


def _begin(predict: bool, device: torch.device) -> store.Recording:
    import diffusers  # noqa: F401  (named among the versions)
    import transformers  # noqa: F401

    words = "predicted, CUDA kernels" if predict else devices.describe(device)
    driver = (
        ""
        if predict
        else _said_by("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    )
    commit = _said_by("git", "-C", str(store.FOLDER.parent), "rev-parse", "HEAD")
    return store.Recording(words, driver, devices.versions(), commit)


def _about(row: Row, device: torch.device) -> dict[str, object]:
    recipe = {} if devices.is_emulated(device) else {"recipe": row.recipe.as_data()}
    return recipe | {
        "claims": list(row.claims),
        "card_gib": row.card_gib,
        "date": time.strftime("%Y-%m-%d"),
    }


def _in_words(results: dict[str, object]) -> str:
    report = results.get("report")
    if isinstance(report, dict):
        return f"{human_bytes(report['peak_bytes'])} in {report['peak_phase']}"
    if "micro_batch" in results:
        return f"largest micro-batch {results['micro_batch']}"
    return str(results["status"])


def _said_by(*command: str) -> str:
    """Give the first line that a program prints; nothing where it is missing or refuses."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.partition("\n")[0].strip()
