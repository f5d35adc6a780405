"""The files of a new lab: they build, and their tests say what is still to be written."""

import keyword
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tutorial_lib.school.authoring.files import AuthoringError, filled, write_files

_LAB = re.compile(r"(lab(\d\d))_[a-z0-9_]+")


def new_lab(root: Path, stem: str, exercises: Sequence[str]) -> list[Path]:
    """Write source, checks and first wrong answers of a lab that is not there yet.

    Args:
        root: The course's folder.
        stem: As in `lab04_schedules`.
        exercises: The name of the function that each exercise asks for.

    Returns:
        The files that were written. The source builds as it stands; `test_wrong_answers` fails
        until each exercise has four wrong answers and two right ones.

    Raises:
        AuthoringError: For a stem or a name of another form, or a lab that is there.
    """
    found = _LAB.fullmatch(stem)
    if not found:
        raise AuthoringError(f"{stem!r} is no lab: write a number and a topic, as in lab04_plans.")
    names_right = all(n.isidentifier() and not keyword.iskeyword(n) for n in exercises)
    if not exercises or not names_right or len(set(exercises)) < len(exercises):
        raise AuthoringError(
            f"exercises (={list(exercises)}) must be different names of functions, at least one."
        )
    lab, digits = found[1], found[2]
    files = {root / path: text.encode() for path, text in _files(stem, lab, digits, exercises)}
    for folder in (root / "labs/checks" / lab, root / "solutions/answers" / lab):
        if folder.exists():
            raise AuthoringError(f"{folder.relative_to(root)} is there already: choose a number.")
    write_files(files)
    return list(files)


def _files(stem: str, lab: str, digits: str, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    exercises = []
    for place, name in enumerate(names, start=1):
        words = {"name": name, "number": f"{int(digits)}.{place}", "lab": lab}
        exercises.append({**words, "dashed": words["number"].replace(".", "-")})
    rows = "".join("# | {number} | `{name}` | 2 |\n".format(**words) for words in exercises)
    texts = [filled("lab-exercise", **words) for words in exercises]
    yield (
        f"solutions/source/{stem}.py",
        "".join([filled("lab-title", digits=digits, rows=rows), *texts]),
    )
    checks = f"labs/checks/{lab}"
    yield f"{checks}/__init__.py", filled("lab-checks", digits=digits)
    halves = "".join(filled("lab-half", **words) for words in exercises)
    yield f"{checks}/given.py", filled("lab-given", digits=digits, halves=halves)
    yield f"solutions/answers/{lab}/__init__.py", ""
    for words in exercises:
        module = f"ex{words['number'].replace('.', '_')}"
        yield f"{checks}/{module}.py", filled("lab-check", **words)
        yield f"solutions/answers/{lab}/{module}.py", filled("lab-answers", **words)
