"""Write the first files of a lab: source, checks, and wrong answers."""

import argparse

from tutorial_lib.school.bootstrap import ROOT


def options(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument("lab", help="a lab that is not there yet, as in lab04_plans")
    parser.add_argument(
        "exercises", metavar="FUNCTION", nargs="+", help="a function that it asks for"
    )


def run(options: argparse.Namespace) -> int:
    """Write the files, and say what comes next."""
    from tutorial_lib.school import authoring

    for path in authoring.new_lab(ROOT, options.lab, options.exercises):
        print(f"wrote {path.relative_to(ROOT)}")
    number = options.lab.partition("_")[0]
    print(
        f"Write what stands under TODO, then `python -m tutorial_lib build {number}` and "
        f"`python -m tutorial_lib test tests/test_wrong_answers.py -k {number}`."
    )
    return 0
