"""The frame of every notebook: metadata, where to open it, the set-up cell, the next link."""

import base64
import hashlib
import re
import tomllib
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

import nbformat
from nbformat import NotebookNode

from tutorial_lib.school.authoring.files import ZIP_NAME, AuthoringError, filled

# Of a cell whose code is folded away in JupyterLab and on Colab: a learner runs it and goes on.
FOLDED: dict[str, object] = {"jupyter": {"source_hidden": True}, "cellView": "form"}
TITLED = "# @title "  # begins a cell of a source that is folded: Colab shows the title
PLACEHOLDER = "COURSE-OWNER/COURSE-REPOSITORY"
_REPOSITORY = re.compile(r"[A-Za-z0-9-]+/[A-Za-z0-9._-]+")
_FIGURE = re.compile(r"(?<=\]\()figures/([\w.-]+)\.svg(?=\))")
_ROW_LINK = re.compile(r"\[([^\]]+)\]\(((?:course|labs)/\w+\.ipynb)\)")
_RECORDING = re.compile(r'\bload\("([^"]+)"\)|"(\w+\.csv)"')
_COMPANION = re.compile(r"\d\d[a-z]")
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Settings:
    """Where the course lives, as `[tool.tutorial]` in pyproject.toml says."""

    repository: str  # `owner/name` on GitHub; the placeholder until it is stamped
    tag: str  # what badges and set-up cells name

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

    @property
    def pages(self) -> str:
        """Address of the site on GitHub Pages."""
        owner, _, name = self.repository.partition("/")
        return f"https://{owner.lower()}.github.io/{name}/"


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
            f"but has none that can be read ({error!r}): run in the course's folder."
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


def note_recordings(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Write a digest of each recording that the code names into the metadata, for it may change.

    Named is `load("its device")`, or the name of a CSV file. Blind to what a function reads itself.
    """
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    digests = {}
    for device, name in sorted(_RECORDING.findall(code)):
        path = folder / (name or re.sub(r"[^a-z0-9]+", "-", device.lower()) + ".json")
        if path.is_file():
            text = path.read_text(encoding="utf-8")  # with the same ends of lines everywhere
            digests[path.name] = hashlib.sha256(text.encode()).hexdigest()[:16]
    if digests:
        notebook.metadata["recorded"] = digests
    return notebook


def launch_cell(settings: Settings, path: str) -> NotebookNode:
    """Make the row of places that open a notebook, as in `labs/lab01_ledger.ipynb`."""
    repository, tag = settings.repository, settings.tag
    blob = f"github.com/{repository}/blob/{tag}/{path}"
    colab = blob.replace("github.com", "https://colab.research.google.com/github", 1)
    kaggle = f"https://kaggle.com/kernels/welcome?src=https://{blob}"
    binder = f"https://mybinder.org/v2/gh/{repository}/{tag}?labpath={quote(path, safe='')}"
    # Our own picture of a badge: it shows without a network too.
    text = (
        f"[![Open this notebook in Colab](figures/colab-badge.svg)]({colab}) "
        f"or on [Kaggle]({kaggle}) or [Binder]({binder}) (no GPU); "
        f"all of the course in [a codespace](https://codespaces.new/{repository}) (no GPU)."
    )
    return nbformat.v4.new_markdown_cell(text, id="launch")


def next_cell(root: Path, path: str, settings: Settings) -> NotebookNode | None:
    """Make the cell that says where to ask, and links to the next notebook.

    The order is that of the README's table. A chapter leads to its lab, and a lab to the next
    chapter. Companions are optional: nothing leads to them, and each leads where its chapter does.
    There is no cell if the table does not name `path` (`course/01_where_memory_goes.ipynb`).
    """
    readme = root / "README.md"
    lines = readme.read_text(encoding="utf-8").splitlines() if readme.is_file() else []
    links = [link for line in lines if line.startswith("| [") for link in _ROW_LINK.findall(line)]
    paths = [target for _, target in links]
    if path not in paths:
        return None
    after = [link for link in links[paths.index(path) + 1 :] if not _COMPANION.fullmatch(link[0])]
    text = [f"**Next:** [{name}](../{target})" for name, target in after[:1]]
    form = f"https://github.com/{settings.repository}/issues/new?template=stuck.md"
    asked = f"[ask]({form})" if settings.published else "see *Where to ask* in the README"
    text += [f"**Stuck?** Your question is welcome: {asked}."]
    return nbformat.v4.new_markdown_cell("\n\n".join(text), id="next-notebook")


def attach_figures(cell: NotebookNode, folder: Path) -> None:
    """Put the pictures of `course/figures` that a text shows into its cell.

    A path would lead nowhere on Colab, in a working copy and in a notebook that travels alone.
    JupyterLab shows no attached SVG, so that the PNG beside the drawing is what travels.

    Args:
        cell: A Markdown cell with `![what it shows](figures/name.svg)`; changed in place.
        folder: Where the files are; one that is missing is refused.
    """
    attached = {}
    for name in _FIGURE.findall(cell.source):
        path = folder / f"{name}.png"
        if not path.is_file():
            raise AuthoringError(
                f"cell {cell.id!r}: figure {path.name} is not in {folder}. It is made from "
                f"{name}.svg there by course/recorded/make/figures.py."
            )
        attached[path.name] = {"image/png": base64.b64encode(path.read_bytes()).decode()}
    if attached:
        cell.source = _FIGURE.sub(r"attachment:\1.png", cell.source)
        cell.attachments = attached


def setup_cell(settings: Settings, folder: str) -> NotebookNode:
    """Make the set-up cell: silent where the course is installed, fetches it on Colab and Kaggle.

    There, the notebook's folder becomes the working folder. Pip must never see torch there, so the
    course is fetched and put on sys.path. COURSE_HOME and COURSE_URL let the same cell run
    elsewhere, without a network too. A second upload of the zip is called "... (1).zip": the newest
    counts. One that is not whole leaves nothing that passes for the course. Kaggle itself unpacks a
    zip that becomes an input, and protects it.
    """
    where, also = ("clone", "subprocess, ") if settings.published else ("upload", "")
    names = {"zip_stem": Path(ZIP_NAME).stem, "folder": folder, **asdict(settings)}
    fetch = filled(f"fetch-{where}", **names).rstrip()
    text = filled("setup", fetch=fetch, also=also, **names).rstrip()
    return nbformat.v4.new_code_cell(text, id="setup", metadata=deepcopy(FOLDED))
