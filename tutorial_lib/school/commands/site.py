"""Write the executed course as static pages, for any host of files."""

import argparse
from pathlib import Path

from tutorial_lib.school.bootstrap import ROOT


def options(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    add, folder = parser.add_argument, Path("site")
    add("--out", type=Path, default=folder, metavar="FOLDER", help="folder for the pages")
    add("--solutions", action="store_true", help="the labs' solutions too")


def run(options: argparse.Namespace) -> int:
    """Write the pages."""
    from tutorial_lib.school.site import make_site

    print(f"wrote {make_site(ROOT, options.out, solutions=options.solutions)}")
    return 0
