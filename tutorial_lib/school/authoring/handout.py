"""The course as one zip: for a class and for Colab without solutions, or with them, for oneself."""

import io
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tutorial_lib.school import pythons
from tutorial_lib.school.authoring.build import holds_work
from tutorial_lib.school.authoring.files import ZIP_NAME, AuthoringError, write_files

# Named one by one: what nobody thought of stays out, above all solutions and tests.
CONTENT = (
    "pyproject.toml",
    "constraints.txt",
    "README.md",
    "LICENSE",
    "CITATION.cff",
    "tutorial_lib/**/*",
    "labs/*.ipynb",
    "course/*.ipynb",
    "course/blank/*.ipynb",
    "course/claims/*",
    "course/figures/**/*",
    "course/recorded/**/*",
)
# Who learns neither builds nor grades; `table` lists the commands that are there.
_OF_SCHOOL = re.compile(
    r"tutorial_lib/school/((authoring|grading|site)/|emulated_tests|commands/(build|grade|new|site)\.)"
)
REQUIRED = ("pyproject.toml", "tutorial_lib/__init__.py")
_LEFT_OUT = ("__pycache__", ".pyc", ".pyo", ".part")
# In the zip, in place of the section of that name in README.md.
_BEGIN = f"""\
## Begin

```bash
python3 -m tutorial_lib lab     # make .venv, install, open your working copy in JupyterLab
```

Run it in this folder, with Python 3.{pythons.OLDEST[1]} to 3.{pythons.NEWEST[1]} (Windows:
`py -m tutorial_lib lab`). You work in `workbook/`: blank notebooks, and an update of the course
keeps your edits. `python3 -m tutorial_lib doctor` says what this machine has.

**Colab and Kaggle:** upload a notebook of `labs/` or `course/blank/`, and the zip (Kaggle: as an
input), and run the notebook's first cell.

"""
_WITHOUT = "This copy holds no solutions.\n\n"
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


def make_zip(root: Path, out: Path, *, solutions: bool = False) -> Path:
    """Pack what a learner needs to run every notebook; nothing that builds, tests or grades.

    Args:
        root: The course's folder.
        out: The file to write, or the folder to write `training-that-fits.zip` into; with
            solutions, `training-that-fits-solutions.zip`.
        solutions: Whether the labs' solutions are in it: for who learns alone.

    Returns:
        The file written; the same bytes for the same course.

    Raises:
        AuthoringError: When the course is incomplete, or a lab holds somebody's answers.
    """
    files = _files(root, (*CONTENT, "solutions/*.ipynb") if solutions else CONTENT)
    names = {path.relative_to(root).as_posix() for path in files}
    missing = [name for name in REQUIRED if name not in names]
    labs = [path for path in files if path.parent == root / "labs"]
    if missing or not labs:
        what = ", ".join(missing) or "lab in labs/"
        raise AuthoringError(f"{root} has no {what}: run build first, in the course's folder.")
    for lab in labs:
        if holds_work(lab):
            raise AuthoringError(
                f"labs/{lab.name} holds somebody's work, which a class should not get: "
                "copy it elsewhere and build again with --force."
            )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path in files:
            entry = zipfile.ZipInfo(path.relative_to(root).as_posix(), _LONG_AGO)
            entry.create_system = 3  # Unix, on every system: else the bytes differ
            entry.external_attr = 0o100644 << 16
            content = path.read_bytes()
            if path == root / "README.md":
                content = _readme(content.decode(), "" if solutions else _WITHOUT).encode()
            archive.writestr(entry, content, compress_type=zipfile.ZIP_DEFLATED)
    name = ZIP_NAME.replace(".zip", "-solutions.zip") if solutions else ZIP_NAME
    target = out / name if out.is_dir() else out
    write_files({target: packed.getvalue()})
    return target


def _readme(text: str, note: str) -> str:
    """Leave in the README what holds in the zip: what the course is, ways into it, its table."""
    head, *sections = re.split(r"(?m)^(?=## )", re.sub(r"(?s)<!--.*?-->\n", "", text))
    kept = [part for part in sections if part.startswith(("## Three ways in", "## What is in it"))]
    return "".join([head, _BEGIN, note, *kept]).rstrip() + "\n"


def _files(root: Path, patterns: Sequence[str]) -> list[Path]:
    found = set()
    for pattern in patterns:
        for path in root.glob(pattern):
            parts = path.relative_to(root).parts
            hidden = any(part.startswith(".") for part in parts)
            waste = any(part.endswith(_LEFT_OUT) for part in parts)
            needed = not (hidden or waste or _OF_SCHOOL.match("/".join(parts)))
            if needed and path.is_file() and not path.is_symlink():
                found.add(path)
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())
