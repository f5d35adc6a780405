"""Sources (percent format): found, read into cells, and refused where they cannot be built."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import jupytext
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

from tutorial_lib.school import marks
from tutorial_lib.school.authoring import prose
from tutorial_lib.school.authoring.files import AuthoringError

_STEM = {
    "course": re.compile(r"(\d\d[a-z]?|extra)_[a-z0-9_]+|tonight"),
    "solutions": re.compile(r"lab\d\d_[a-z0-9_]+"),
}
RESERVED_IDS = ("launch", "setup", "next-notebook")
KEPT_METADATA = ("tags", "cellView")

# jupytext would also uncomment words such as `# copy the boundary`: magics are read below instead.
_PERCENT = {"extension": ".py", "format_name": "percent", "comment_magics": False}
_LAYOUT_METADATA = {"id", "cell_marker", "lines_to_next_cell", "lines_to_end_of_cell_marker"}
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAGIC = re.compile(r"^# (%{1,2}[A-Za-z_])", re.MULTILINE)


@dataclass(frozen=True)
class Cell:
    """One cell of a source."""

    kind: str  # `code` or `markdown`
    id: str  # the cell id of the built notebook
    text: str  # its source, magics uncommented
    metadata: dict[str, object]  # what the notebook keeps of the header, such as tags
    where: str  # file, cell number and first line, for error messages

    @property
    def mark(self) -> marks.Mark | None:
        """The mark of a code cell."""
        return marks.cell_mark(self.text) if self.kind == "code" else None


def find_sources(root: Path) -> list[Path]:
    """Find every source, chapters first.

    Raises:
        AuthoringError: When there is none, or a name breaks `NN_topic` or `labNN_topic`.
    """
    found = []
    for folder, stem in _STEM.items():
        for path in sorted((root / folder / "source").glob("*.py")):
            if not stem.fullmatch(path.stem):
                wanted = "NN_topic.py" if folder == "course" else "labNN_topic.py"
                raise AuthoringError(f"{folder}/source/{path.name} must be named {wanted}.")
            found.append(path)
    if not found:
        raise AuthoringError(f"{root} holds no source: run in the course's folder.")
    return found


def read_source(path: Path) -> list[Cell]:
    """Read a source in percent format, `NN_topic.py`, whose first cell is the title.

    Raises:
        AuthoringError: When a header, an id, a mark, the Python or the prose is wrong.
    """
    name = f"{path.parent.parent.name}/source/{path.name}"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise AuthoringError(f"{name} cannot be read as UTF-8 text: {error}.") from error
    notebook = jupytext.reads(text, fmt=_PERCENT)
    if not notebook.cells or not text.strip():
        raise AuthoringError(f'{name} holds no cell: begin with `# %% [markdown] id="title"`.')
    cells = []
    for number, raw in enumerate(notebook.cells, start=1):
        first_line = raw.source.strip().split("\n", 1)[0]
        cells.append(_cell(raw, f"{name}, cell {number} ({first_line[:60]!r})"))
    _refuse(cells)
    return cells


def python_of(text: str) -> str:
    """Turn a code cell into plain Python: magics become calls, everything else stays."""
    return str(TransformerManager().transform_cell(text))


def _cell(raw: NotebookNode, where: str) -> Cell:
    if raw.cell_type not in ("code", "markdown"):
        raise AuthoringError(f"{where}: a {raw.cell_type} cell is not shown; use markdown.")
    cell_id = raw.metadata.get("id")
    if cell_id is None:
        raise AuthoringError(f'{where}: has no id; write it in the header: `# %% id="some-word"`.')
    if not isinstance(cell_id, str) or not _ID.fullmatch(cell_id):
        raise AuthoringError(
            f"{where}: id {cell_id!r} must be 1 to 64 of the characters A-Z a-z 0-9 - _."
        )
    if cell_id in RESERVED_IDS:
        raise AuthoringError(f"{where}: id {cell_id!r} is what build gives its own cell.")
    unknown = set(raw.metadata) - _LAYOUT_METADATA - set(KEPT_METADATA)
    if unknown:
        shown = ", ".join(f"{key}={raw.metadata[key]!r}" for key in sorted(unknown))
        raise AuthoringError(
            f"{where}: the header says {shown}, which build does not know; "
            f"it knows id, {', '.join(KEPT_METADATA)}."
        )
    if not raw.source.strip():
        raise AuthoringError(f"{where}: the cell {cell_id!r} is empty; delete its header.")
    kept = {key: raw.metadata[key] for key in KEPT_METADATA if key in raw.metadata}
    text = _MAGIC.sub(r"\1", raw.source) if raw.cell_type == "code" else raw.source
    cell = Cell(raw.cell_type, cell_id, text, kept, where)
    if cell.kind == "code":
        refuse_broken_python(text, where)
        if marks.is_misspelt(text):
            raise AuthoringError(
                f"{where}: a mark reads `# exercise 3.2`, `# check 3.2 (2 points)` "
                "or `# hidden check 3.2 (1 point)`."
            )
    return cell


def refuse_broken_python(text: str, where: str) -> None:
    """Refuse a code cell that Python cannot parse, with the line and what Python says of it."""
    try:
        ast.parse(python_of(text))
    except SyntaxError as error:
        raise AuthoringError(f"{where}: line {error.lineno} is not Python: {error.msg}.") from error


def _refuse(cells: list[Cell]) -> None:
    first: dict[str, Cell] = {}
    for cell in cells:
        if cell.id in first:
            raise AuthoringError(
                f"{cell.where}: id {cell.id!r} is taken by {first[cell.id].where}; choose another."
            )
        first[cell.id] = cell
    texts = [(cell.where, cell.text) for cell in cells if cell.kind == "markdown"]
    if cells[0].kind != "markdown" or prose.heading_levels(cells[0].text).count(1) != 1:
        raise AuthoringError(
            f"{cells[0].where}: the first cell is the title: markdown with exactly one `# heading`."
        )
    found = prose.problems(texts)
    if found:
        raise AuthoringError("\n".join(found))
