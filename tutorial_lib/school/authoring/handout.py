"""The course as one zip: for a class and for Colab without solutions, or with them, for oneself."""

import io
import re
import zipfile
from pathlib import Path

from tutorial_lib.school import pythons
from tutorial_lib.school.authoring.build import holds_work
from tutorial_lib.school.authoring.files import ZIP_NAME, AuthoringError, filled, write_files

# Named one by one: what nobody thought of stays out, above all solutions and tests.
CONTENT = (
    "pyproject.toml",
    "constraints.txt",
    "README.md",
    "LICENSE",
    "CITATION.cff",
    "tutorial_lib/**/*",
    "labs/*.ipynb",
    "labs/AGENTS.md",
    "labs/checks/**/*",
    "course/*.ipynb",
    "course/blank/*.ipynb",
    "course/claims/*",
    "course/figures/**/*",
    "course/frameworks/*",
    "course/levers/*",
    "course/ranks/*",
    "course/recorded/**/*",
    "course/train/*",
)
REQUIRED = ("pyproject.toml", "tutorial_lib/__init__.py")
_LEFT_OUT = re.compile(r"(^|/)\.|(__pycache__|\.pyc|\.pyo|\.part)(/|$)")  # hidden files, waste
_WITHOUT = "This copy holds no solutions.\n\n"
_WITH = "The labs' solutions are in `workbook/solutions/`, beside `workbook/labs/`.\n\n"
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


def make_zip(root: Path, out: Path, *, solutions: bool = False) -> Path:
    """Pack what a learner needs to run every notebook: no solutions, no tests, no grader.

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
    missing = [name for name in REQUIRED if name not in files]
    labs = [path for name, path in files.items() if re.match(r"labs/[^/]+\.ipynb$", name)]
    if missing or not labs:
        what = ", ".join(missing) or "lab in labs/"
        raise AuthoringError(f"{root} has no {what}: run build first, in the course's folder.")
    for lab in filter(holds_work, labs):
        raise AuthoringError(
            f"labs/{lab.name} holds somebody's work, which a class should not get: "
            "copy it elsewhere and build again with --force."
        )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, path in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _LONG_AGO)
            entry.create_system = 3  # Unix, on every system: else the bytes differ
            entry.external_attr = 0o100644 << 16
            content = path.read_bytes()
            if name == "README.md":
                content = _readme(content.decode(), _WITH if solutions else _WITHOUT).encode()
            archive.writestr(entry, content, compress_type=zipfile.ZIP_DEFLATED)
    name = ZIP_NAME.replace(".zip", "-solutions.zip") if solutions else ZIP_NAME
    target = out / name if out.is_dir() else out
    write_files({target: packed.getvalue()})
    return target


def _readme(text: str, note: str) -> str:
    """Leave in the README what holds in the zip: what the course is, ways into it, its table."""
    head, *sections = re.split(r"(?m)^(?=## )", re.sub(r"(?s)<!--.*?-->\n", "", text))
    kept = [part for part in sections if part.startswith(("## Three ways in", "## What is in it"))]
    versions = {"oldest": str(pythons.OLDEST[1]), "newest": str(pythons.NEWEST[1])}
    begin = filled("begin", **versions)  # in place of the section of that name
    return "".join([head, begin, "\n", note, *kept]).rstrip() + "\n"


def _files(root: Path, patterns: tuple[str, ...]) -> dict[str, Path]:
    """Find what to pack, by its name in the zip."""
    found = {}
    for path in (path for pattern in patterns for path in root.glob(pattern)):
        name = path.relative_to(root).as_posix()
        if path.is_file() and not path.is_symlink() and not _LEFT_OUT.search(name):
            found[name] = path
    return found
