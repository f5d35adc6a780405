"""The commands of those who teach and maintain the course: `grade`, `build`, `site`, `new`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import pandas as pd

ROOT = Path(__file__).resolve().parent.parent.parent


_Folders = Annotated[list[Path] | None, typer.Argument(help="Folder of notebooks, or of folders.")]
_Out = Annotated[Path | None, typer.Option(help="Folder for the report: new, or an older report.")]
_Workers = Annotated[
    int | None, typer.Option(help="Submissions at once; by cores and free memory.")
]
_Dask = Annotated[str | None, typer.Option(help="Grade on a Dask cluster: its address.")]
_Seconds = Annotated[float, typer.Option(help="CPU time of a function in one check.")]
_Only = Annotated[
    list[str] | None,
    typer.Option(help="One submission; may be repeated. A report in --out keeps the others."),
]
_Seed = Annotated[
    int | None, typer.Option(help="As in an older run.json: draws the same cases again.")
]
_Roster = Annotated[Path | None, typer.Option(help="CSV: name or folder, id, email.")]
_Selftest = Annotated[
    bool, typer.Option("--selftest", help="Grade answers whose verdict is known.")
]
_Example = Annotated[
    bool, typer.Option("--example", help="Write a class of thirty into the folder.")
]


def grade(
    lab: Annotated[str, typer.Argument(help="The lab, as in lab01.")],
    folders: _Folders = None,
    out: _Out = None,
    workers: _Workers = None,
    dask: _Dask = None,
    seconds: _Seconds = 20.0,
    only: _Only = None,
    seed: _Seed = None,
    roster: _Roster = None,
    selftest: _Selftest = False,
    example: _Example = False,
) -> None:
    """Grade a folder of submissions: scores.csv, and a page of feedback for each.

    A run that was stopped goes on where it was when the same command is given again, and what has
    not changed since an older report is not graded again. See solutions/GRADING.md.

    `grade --selftest LAB` grades the solution, the blank and all known answers.
    `grade --example LAB FOLDER` writes a class to try it on.
    """
    from tutorial_lib.school import grading

    given = folders or []
    if selftest and not given:
        run = grading.load_selftest(ROOT).selftest
        _selftest(*run(lab, root=ROOT, workers=workers, seconds=seconds))
    elif example and len(given) == 1:
        number = grading.load_selftest(ROOT).write_example(lab, given[0], root=ROOT)
        print(f"{number} submissions: {given[0]}")
    elif selftest or example or len(given) != 1 or not out:
        raise ValueError(
            "grade takes a lab, one folder of submissions and --out FOLDER; "
            "`grade --help` shows what goes with --selftest and --example."
        )
    else:
        table = grading.grade(
            lab,
            given[0],
            out,
            root=ROOT,
            workers=workers,
            dask=dask,
            seconds=seconds,
            only=only or (),
            seed=seed,
            roster=roster,
        )
        _say(table, out)


def _say(table: pd.DataFrame, out: Path) -> None:
    for sentence in table.attrs["said"]:
        print(sentence)
    counts = table["status"].value_counts()
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
    if read := list(table["name"][table["review"] != ""]):
        print(f"Answers that a person should read (column review): {', '.join(read)}")
    print(f"Scores: {out / 'scores.csv'}. Feedback: {out / 'index.html'}.")


def _selftest(table: pd.DataFrame, faults: list[str]) -> None:
    print("Answers that got the points and the message that they should get:")
    print(table.to_string())
    print("\n".join(faults) or "No fault.")
    if faults:
        raise typer.Exit(1)


def build(
    names: Annotated[list[str] | None, typer.Argument(help="Stems, as in lab01; all.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit 1 if stale.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Execute all; overwrite labs.")] = False,
    make_zip: Annotated[bool, typer.Option("--zip", help="Also pack a zip for a class.")] = False,
    stamp: Annotated[str | None, typer.Option(help="Set the address, as OWNER/REPOSITORY.")] = None,
    tag: Annotated[str | None, typer.Option(help="The tag for badges, with --stamp.")] = None,
) -> None:
    """Build the notebooks from their sources, and execute those whose code changed."""
    from tutorial_lib.school import authoring

    if check and (force or make_zip or stamp or names):
        raise ValueError("--check looks at everything and changes nothing: give it alone.")
    if tag and not stamp:
        raise ValueError(f"--tag {tag} needs --stamp OWNER/REPOSITORY beside it.")
    if check:
        problems = authoring.check(ROOT)
        print("\n".join(problems) or "Every notebook is what its source gives.")
        raise typer.Exit(1 if problems else 0)
    written = authoring.stamp(ROOT, stamp, tag) if stamp else []
    written += authoring.build(ROOT, names or (), force=force)
    if make_zip:
        written.append(authoring.make_zip(ROOT, Path.cwd()))
    for path in written:
        print(f"wrote {path}")
    if not written:
        print("Nothing to do: every notebook is what its source gives.")


def site(
    out: Annotated[Path, typer.Option(help="Folder for the pages.")] = Path("site"),
    solutions: Annotated[
        bool, typer.Option("--solutions", help="The labs' solutions too.")
    ] = False,
) -> None:
    """Write the executed course as static pages, for any host of files."""
    from tutorial_lib.school.site import make_site

    print(f"wrote {make_site(ROOT, out, solutions=solutions)}")


def new(
    lab: Annotated[str, typer.Argument(help="A lab that is not there yet, as in lab04_plans.")],
    exercises: Annotated[list[str], typer.Argument(help="The functions that it asks for.")],
) -> None:
    """Write the first files of a lab: source, checks, and wrong answers."""
    from tutorial_lib.school import authoring

    for path in authoring.new_lab(ROOT, lab, exercises):
        print(f"wrote {path.relative_to(ROOT)}")
    number = lab.partition("_")[0]
    print(
        f"Write what stands under TODO, then `python -m tutorial_lib build {number}` and "
        f"`python -m tutorial_lib test tests/test_wrong_answers.py -k {number}`."
    )
