"""The course as one zip that holds no solution: for Colab, and for a class without hosting."""

import io
import re
import zipfile
from pathlib import Path

from tutorial_lib.school import pythons
from tutorial_lib.school.authoring.build import holds_work
from tutorial_lib.school.authoring.files import ZIP_NAME, AuthoringError, write_files

# Named one by one: what nobody thought of stays out, above all solutions and tests.
CONTENT = (
    "pyproject.toml",
    "constraints.txt",
    "environment.yml",
    "README.md",
    "LICENSE",
    "CITATION.cff",
    "CHANGELOG.md",
    "tutorial_lib/**/*",
    "labs/*.ipynb",
    "course/*.ipynb",
    "course/blank/*.ipynb",
    "course/claims/*",
    "course/figures/**/*",
    "course/recorded/**/*",
)
REQUIRED = ("pyproject.toml", "tutorial_lib/__init__.py")
_LEFT_OUT = ("__pycache__", ".pyc", ".pyo", ".part")
# In the zip, in place of the section of that name in README.md.
_BEGIN = f"""\
## Begin

```bash
python -m tutorial_lib lab     # make .venv, install, open your working copy in JupyterLab
```

Run it in this folder, with Python 3.{pythons.OLDEST[1]} to 3.{pythons.NEWEST[1]} (Windows:
`py -m tutorial_lib lab`). You work in `workbook/`: blank notebooks, and an update of the course
keeps your edits. `python -m tutorial_lib doctor` says what this machine has.

**Colab:** upload the zip and a notebook of `labs/` or `course/blank/`, and run its first cell.

Solutions and tests are not in this copy.

"""
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


def make_zip(root: Path, out: Path) -> Path:
    """Pack what a learner needs to run every lab, and nothing that solves one.

    Args:
        root: The course's folder.
        out: The file to write, or the folder to write `training-that-fits.zip` into.

    Returns:
        The file written; the same bytes for the same course.

    Raises:
        AuthoringError: When the course is incomplete, or a lab holds somebody's answers.
    """
    files = _files(root)
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
                content = _readme(content.decode()).encode()
            archive.writestr(entry, content, compress_type=zipfile.ZIP_DEFLATED)
    target = out / ZIP_NAME if out.is_dir() else out
    write_files({target: packed.getvalue()})
    return target


def _readme(text: str) -> str:
    """Leave in the README what holds in the zip: what the course is, and its table."""
    head, *sections = re.split(r"(?m)^(?=## )", text)
    kept = [section for section in sections if section.startswith("## What is in it")]
    return "".join([head, _BEGIN, *kept]).rstrip() + "\n"


def _files(root: Path) -> list[Path]:
    found = set()
    for pattern in CONTENT:
        for path in root.glob(pattern):
            parts = path.relative_to(root).parts
            hidden = any(part.startswith(".") for part in parts)
            waste = any(part.endswith(_LEFT_OUT) for part in parts)
            if path.is_file() and not path.is_symlink() and not hidden and not waste:
                found.add(path)
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())
