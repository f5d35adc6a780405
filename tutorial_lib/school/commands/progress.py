"""Show what you have done: cells run, blanks filled, points of the labs."""

from __future__ import annotations

import argparse

from tutorial_lib.school import bootstrap, progress


def options(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes: nothing."""


def run(options: argparse.Namespace) -> int:
    """Show the page."""
    print(progress.text(bootstrap.ROOT))
    return 0
