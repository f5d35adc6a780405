"""The frame of every notebook: metadata, Colab's badge, the set-up cell, the next link."""

import base64
import re
import tomllib
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from tutorial_lib.school.authoring.files import ZIP_NAME, AuthoringError

# Of a cell whose code is folded away in JupyterLab and on Colab: a learner runs it and goes on.
FOLDED: dict[str, object] = {"jupyter": {"source_hidden": True}, "cellView": "form"}
PLACEHOLDER = "COURSE-OWNER/COURSE-REPOSITORY"
_REPOSITORY = re.compile(r"[A-Za-z0-9-]+/[A-Za-z0-9._-]+")
_FIGURE = re.compile(r"(?<=\]\()figures/([\w.-]+)\.svg(?=\))")
_ROW_LINK = re.compile(r"\[([^\]]+)\]\(((?:course|labs)/\w+\.ipynb)\)")
_COMPANION = re.compile(r"\d\d[a-z]")
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

# Colab: pip must never see torch there, so the course is fetched and put on sys.path. The three
# variables let the same cell run where there is no network. A second upload of the zip is called
# "... (1).zip": the newest counts. One that is not whole leaves nothing that passes for the course.
_SETUP = """\
# @title Set-up: run this cell first
import contextlib, importlib.util, os, pathlib, shutil, subprocess, sys  # noqa: E401

if importlib.util.find_spec("tutorial_lib") is None:
    if "google.colab" not in sys.modules:
        raise ModuleNotFoundError("tutorial_lib is not installed: see 'Begin' in README.md.")
    course = pathlib.Path(os.environ.get("COURSE_DIR", "/content/course"))
    packed = pathlib.Path(os.environ.get("COURSE_ZIP", "/content/{zip_name}"))
    url = os.environ.get("COURSE_URL", "{url}")
    uploads = sorted(packed.parent.glob(f"{{packed.stem}}*.zip"), key=os.path.getmtime)
    todo = f"wait until uploads end (or repeat it), delete or rename {{course}}, run this again"
    if not (course / "tutorial_lib").exists() and uploads:
        with contextlib.suppress(Exception):
            shutil.unpack_archive(uploads[-1], course.with_name("course.part"))
            course.with_name("course.part").rename(course)
{unpublished}    elif not (course / "tutorial_lib").exists():
        git = ["git", "-c", "advice.detachedHead=false", "clone", "--quiet", "--depth=1"]
        if subprocess.run([*git, "--branch={tag}", url, course]).returncode:
            todo = f"git says above why (no tag {tag} at {{url}}?); or upload {{packed.name}}"
    if not (course / "tutorial_lib").exists():
        raise FileNotFoundError(f"{{course}} is no whole copy of the course: {{todo}}.")
    sys.path.insert(0, str(course))
    (course / "{folder}").mkdir(exist_ok=True)
    os.chdir(course / "{folder}")"""

_UNPUBLISHED = """\
    elif not (course / "tutorial_lib").exists() and "COURSE_URL" not in os.environ:
        todo = f"upload {packed.name} to {packed.parent} (or set COURSE_URL), run this again"
"""


@dataclass(frozen=True)
class Settings:
    """Where the course lives, as `[tool.tutorial]` in pyproject.toml says.

    Args:
        repository: `owner/name` on GitHub; the placeholder until it is stamped.
        tag: The tag that badges and set-up cells name.

    Raises:
        AuthoringError: When one of the two cannot stand in an address.
    """

    repository: str
    tag: str

    def __post_init__(self) -> None:
        if not _REPOSITORY.fullmatch(self.repository):
            raise AuthoringError(
                f"repository {self.repository!r} must read OWNER/NAME, as it does on GitHub."
            )
        if not _TAG.fullmatch(self.tag):
            raise AuthoringError(f"tag {self.tag!r} must be a git tag, such as v0.1.0.")

    @property
    def published(self) -> bool:
        """Whether the real address is known."""
        return self.repository != PLACEHOLDER


def read_settings(root: Path) -> Settings:
    """Read `[tool.tutorial]` of the course's pyproject.toml.

    Raises:
        AuthoringError: When the file or the table is not there.
    """
    path = root / "pyproject.toml"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))["tool"]["tutorial"]
        return Settings(table["repository"], table["tag"])
    except (OSError, KeyError, TypeError, tomllib.TOMLDecodeError) as error:
        raise AuthoringError(
            f"{path} needs a table [tool.tutorial] with repository and tag, "
            f"and has none that can be read ({error!r}): run in the course's folder."
        ) from error


def notebook_metadata() -> dict[str, object]:
    """Metadata of every notebook; on Colab it opens a GPU runtime."""
    return {
        "accelerator": "GPU",
        "colab": {"gpuType": "T4", "provenance": [], "toc_visible": True},
        "kernelspec": {
            "display_name": "Python 3 (ipykernel)",
            "language": "python",
            "name": "python3",
        },
        "language_info": {"name": "python"},
    }


def badge_cell(settings: Settings, path: str) -> NotebookNode:
    """Make the cell that opens this very notebook in Colab; for a course that has an address.

    Args:
        settings: Repository and tag of the link.
        path: The notebook inside the repository, as in `labs/lab01_ledger.ipynb`.
    """
    colab = "https://colab.research.google.com"
    link = f"{colab}/github/{settings.repository}/blob/{settings.tag}/{path}"
    # Our own picture of a badge: it shows without a network too.
    text = f"[![Open this notebook in Colab](figures/colab-badge.svg)]({link})"
    return nbformat.v4.new_markdown_cell(text, id="colab-badge")


def next_cell(root: Path, path: str) -> NotebookNode | None:
    """Make the cell that links to the next notebook, in the order of the README's table.

    A chapter leads to its lab, and a lab to the next chapter. Companions are optional: none is
    anybody's next, and each leads where its chapter does.

    Args:
        root: The course's folder.
        path: The notebook to learn in, as in `course/01_where_memory_goes.ipynb`.

    Returns:
        None after the last one, and where the table does not name the notebook.
    """
    readme = root / "README.md"
    lines = readme.read_text(encoding="utf-8").splitlines() if readme.is_file() else []
    links = [link for line in lines if line.startswith("| [") for link in _ROW_LINK.findall(line)]
    paths = [target for _, target in links]
    after = links[paths.index(path) + 1 :] if path in paths else []
    for name, target in after:
        if not _COMPANION.fullmatch(name):
            text = f"**Next:** [{name}](../{target})"
            return nbformat.v4.new_markdown_cell(text, id="next-notebook")
    return None


def attach_figures(cell: NotebookNode, folder: Path) -> None:
    """Put the pictures of `course/figures` that a text shows into its cell.

    A path would lead nowhere on Colab, in a working copy and in a notebook that travels alone.
    JupyterLab shows no attached SVG, so that the PNG beside the drawing is what travels.

    Args:
        cell: A Markdown cell with `![what it shows](figures/name.svg)`; changed in place.
        folder: Where the files are.

    Raises:
        AuthoringError: When there is no such file.
    """
    attached = {}
    for name in _FIGURE.findall(cell.source):
        path = folder / f"{name}.png"
        if not path.is_file():
            raise AuthoringError(
                f"cell {cell.id!r}: figure {path.name} is not in {folder}. It is made from "
                f"{name}.svg there by tests/browser/figures.py."
            )
        attached[path.name] = {"image/png": base64.b64encode(path.read_bytes()).decode()}
    if attached:
        cell.source = _FIGURE.sub(r"attachment:\1.png", cell.source)
        cell.attachments = attached


def setup_cell(settings: Settings, folder: str) -> NotebookNode:
    """Make the set-up cell: silent where the course is installed, fetches it on Colab.

    Args:
        settings: Repository and tag to fetch.
        folder: The notebook's folder, which becomes the working folder on Colab.
    """
    text = _SETUP.format(
        zip_name=ZIP_NAME,
        url=f"https://github.com/{settings.repository}",
        tag=settings.tag,
        folder=folder,
        unpublished="" if settings.published else _UNPUBLISHED,
    )
    return nbformat.v4.new_code_cell(text, id="setup", metadata=deepcopy(FOLDED))
