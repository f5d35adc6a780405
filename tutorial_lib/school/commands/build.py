"""Build the notebooks from their sources, and execute those whose code changed."""

import argparse
from pathlib import Path

from tutorial_lib.school.bootstrap import ROOT


def options(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    add = parser.add_argument
    add("names", metavar="NAME", nargs="*", help="stems, as in lab01; all if left out")
    add("--check", action="store_true", help="change nothing; exit 1 if stale")
    add("--force", action="store_true", help="execute all; overwrite labs")
    add("--zip", action="store_true", help="also pack a zip for a class, without solutions")
    add("--solutions", action="store_true", help="with --zip: with them, for learning alone")
    add("--stamp", metavar="OWNER/REPOSITORY", help="set the address")
    add("--tag", help="the tag for badges, with --stamp")


def run(options: argparse.Namespace) -> int:
    """Build, or check; a check that finds something ends with status 1."""
    from tutorial_lib.school import authoring

    stamp, tag = options.stamp, options.tag
    if options.check and (options.force or options.zip or stamp or options.names):
        raise ValueError("--check looks at everything and changes nothing: give it alone.")
    if tag and not stamp:
        raise ValueError(f"--tag {tag} needs --stamp OWNER/REPOSITORY beside it.")
    if options.solutions and not options.zip:
        raise ValueError("--solutions says what a zip holds: give --zip beside it.")
    if options.check:
        problems = authoring.check(ROOT)
        print("\n".join(problems) or "Every notebook is what its source gives.")
        return 1 if problems else 0
    written = authoring.stamp(ROOT, stamp, tag) if stamp else []
    written += authoring.build(ROOT, options.names, force=options.force)
    if options.zip:
        written.append(authoring.make_zip(ROOT, Path.cwd(), solutions=options.solutions))
    for path in written:
        print(f"wrote {path}")
    if not written:
        print("Nothing to do: every notebook is what its source gives.")
    return 0
