"""Measure, emulate or predict every row that the course quotes; goes on where it stopped.

Needs torch, transformers, diffusers and matplotlib, and nothing of Jupyter. Status 3 when time ran
out before all rows were there.
"""

import argparse
from pathlib import Path


def options(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument("--only", default="*", help="rows by key or claim, as in 'gpt2*' or E06")
    parser.add_argument("--max-minutes", type=float, default=9.0, help="start no row after that")
    parser.add_argument("--predict", action="store_true", help="predict, which needs no GPU")
    parser.add_argument("--emulated", metavar="CARDS", help="on emulated cards, as in t4,a100")
    parser.add_argument("--again", action="store_true", help="record existing rows again")
    parser.add_argument("--snapshots", action="store_true", help="record snapshots instead")
    parser.add_argument("--out", type=Path, help="a file other than course/recorded/<gpu>.json")


def run(options: argparse.Namespace) -> int:
    """Record rows, one line each."""
    if options.emulated:
        from tutorial_lib.school.commands.emulate import on_cards

        return on_cards("record", options)
    from tutorial_lib import device as devices
    from tutorial_lib.instruments import recorded

    rows = recorded.find_rows(options.only)
    if options.predict:
        rows = [row for row in rows if not row.largest]
    device = None if options.predict else devices.pick()
    if device is not None and device.type != "cuda":
        raise ValueError(
            "There is no GPU here to measure on: --predict predicts the same rows, and --emulated "
            "t4 runs them on an emulated card."
        )
    if options.snapshots and device is not None:
        from tutorial_lib.instruments.recorded import fragmentation, snapshots

        for name in snapshots.RECIPES:
            print(snapshots.take(name, device), flush=True)
        snapshots.take_failures()
        fragmentation.record(device)
        return 0
    again = {"again": options.again, "anew": options.again and options.only == "*"}
    left = recorded.record_rows(rows, options.out, device, max_minutes=options.max_minutes, **again)
    if left:
        print(f"{left} rows are left: run the same command again to go on.")
    return 3 if left else 0
