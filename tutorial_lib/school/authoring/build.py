"""The build of all notebooks, the check that they are what it would give, and their address."""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from nbformat import NotebookNode

from tutorial_lib.school import marks
from tutorial_lib.school.authoring import outputs, verdicts
from tutorial_lib.school.authoring.files import AuthoringError, read_notebook, render, write_files
from tutorial_lib.school.authoring.frame import Settings, read_settings
from tutorial_lib.school.authoring.run import fill
from tutorial_lib.school.authoring.source import find_sources
from tutorial_lib.school.authoring.twins import notebooks_of

_FOLDERS = ("course", "course/blank", "labs", "solutions")
_TO_WORK_IN = ("blank", "labs")  # never executed
_PARTS = ("cell_type", "source", "metadata", "attachments")  # what a source says of a cell
_NAMES_ADDRESS = ("README.md", "CITATION.cff", "CHANGELOG.md")
# What waits in these files, and in pyproject.toml, until there is an address.
_WAITS = re.compile(r"^<!-- once stamped\n(.*?)-->\n|^# once stamped: ", re.DOTALL | re.MULTILINE)


def build(root: Path, names: Sequence[str] = (), *, force: bool = False) -> list[Path]:
    """Build notebooks from their sources, and execute those whose code changed.

    Args:
        root: The course's folder, with pyproject.toml.
        names: Stems, or beginnings of stems, such as `lab01`; none means all.
        force: Execute everything, and overwrite labs that hold somebody's work.

    Returns:
        The notebooks that were written, sorted; those that are as they should be are left alone,
        and so are those that need a package which is not here.

    Raises:
        AuthoringError: When anything is refused or a cell fails; then nothing is written.
    """
    settings = read_settings(root)
    ready: dict[Path, NotebookNode] = {}
    for source in _chosen(root, names):
        ready |= notebooks_of(source, root, settings)
    if not force:
        for path in ready:
            if path.parent.name in _TO_WORK_IN and holds_work(path):
                raise AuthoringError(
                    f"{path.parent.name}/{path.name} holds somebody's work, and building would "
                    "lose it: copy your work elsewhere and delete the file, or use --force."
                )
    ready = {
        path: notebook
        for path, notebook in ready.items()
        if path.parent.name in _TO_WORK_IN or fill(notebook, path, force=force)
    }
    contents = {path: render(notebook).encode() for path, notebook in ready.items()}
    changed = {
        path: content
        for path, content in contents.items()
        if not path.is_file() or path.read_bytes() != content
    }
    write_files(changed)
    written = set(changed)
    if verdicts.update(root):  # the claims court shows them all
        readers = [path.stem for path in _chosen(root, ()) if "claims.court(" in path.read_text()]
        written |= set(build(root, readers, force=True)) if readers else set()
    return sorted(written)


def check(root: Path) -> list[str]:
    """List everything in which the notebooks differ from what a build would give.

    Nothing is executed or written: outputs are read, cells are compared. One sentence a problem.
    """
    try:
        settings = read_settings(root)
        sources = find_sources(root)
    except AuthoringError as error:
        return [str(error)]
    found: list[str] = []
    expected: dict[Path, NotebookNode | None] = {}
    for source in sources:
        try:
            expected |= notebooks_of(source, root, settings)
        except AuthoringError as error:
            found.append(str(error))
            expected |= dict.fromkeys(root / folder / f"{source.stem}.ipynb" for folder in _FOLDERS)
    for folder in _FOLDERS:
        for path in sorted((root / folder).glob("*.ipynb")):
            if path not in expected:
                found.append(f"{folder}/{path.name} has no source: delete it, or add its source.")
    for path, notebook in expected.items():
        if notebook is not None:
            found += _differences(notebook, path)
    return found or verdicts.stale(root)


def stamp(root: Path, repository: str, tag: str | None = None) -> list[Path]:
    """Write the course's public address into pyproject.toml, and rebuild launch and set-up cells.

    Outputs are kept, since no other code cell changes.

    Args:
        root: The course's folder.
        repository: `owner/name` on GitHub.
        tag: The tag that links name; None keeps it.

    Raises:
        AuthoringError: When address or tag are malformed, or the build is refused; then
            pyproject.toml is as it was.
    """
    old = read_settings(root)
    new = Settings(repository, tag or old.tag)
    if not new.published:
        raise AuthoringError(
            f"repository must not be {repository}, which stands for an unknown address: to undo a "
            "stamp, take back its commit."
        )
    pyproject = root / "pyproject.toml"
    before = pyproject.read_bytes()
    try:
        text = _moved(before.decode(), old, new)
        text = text.replace(f'\ntag = "{old.tag}"', f'\ntag = "{new.tag}"')
        write_files({pyproject: text.encode()})
        written = build(root)
    except BaseException:
        write_files({pyproject: before})
        raise
    texts = {}
    for path in (root / name for name in _NAMES_ADDRESS):
        text = path.read_bytes().decode() if path.is_file() else ""
        moved = _moved(text, old, new)
        if moved != text:
            texts[path] = moved.encode()
    write_files(texts)
    return sorted([*written, *texts, *([pyproject] if pyproject.read_bytes() != before else [])])


def holds_work(lab: Path) -> bool:
    """Tell whether somebody worked in a lab: it has outputs, or an answer that is not blank.

    A file that cannot be read counts as work too, since it may be all that is left of some.
    """
    if not lab.exists():
        return False
    try:
        notebook = read_notebook(lab)
    except AuthoringError:
        return True
    for cell in notebook.cells:
        if cell.cell_type == "code":
            mark = marks.cell_mark(cell.source)
            answered = mark is not None and mark.kind == "exercise"
            if cell.outputs or (answered and "raise NotImplementedError" not in cell.source):
                return True
    return False


def _chosen(root: Path, names: Sequence[str]) -> list[Path]:
    sources = find_sources(root)
    if not names:
        return sources
    chosen = set()
    for name in names:
        stem = Path(name).stem
        matching = [path for path in sources if path.stem == stem]
        matching = matching or [path for path in sources if path.stem.startswith(stem)]
        if len(matching) != 1:
            known = [path.stem for path in matching or sources]
            near = difflib.get_close_matches(stem, known, n=1, cutoff=0.5)
            problem = "begins several names" if matching else "is no source"
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}."
            raise AuthoringError(f"{name!r} {problem}: {hint}")
        chosen.add(matching[0])
    return [path for path in sources if path in chosen]


def _differences(expected: NotebookNode, path: Path) -> list[str]:
    name = f"{path.parent.name}/{path.name}"
    if not path.is_file():
        return [f"{name} is missing: build it."]
    try:
        seen = read_notebook(path)
    except AuthoringError as error:
        return [str(error)]
    old, new = (
        {cell.id: [cell.get(part) for part in _PARTS] for cell in notebook.cells}
        for notebook in (seen, expected)
    )
    other = [cell_id for cell_id in {**new, **old} if old.get(cell_id) != new.get(cell_id)]
    if other or [*old] != [*new] or seen.metadata != expected.metadata:
        which = ", ".join(map(repr, other)) or "its metadata, or its order"
        return [f"{name} is not what its source gives ({which}): edit the source and build it."]
    code = [cell for cell in seen.cells if cell.cell_type == "code"]
    if path.parent.name in _TO_WORK_IN:
        ran = [cell.id for cell in code if cell.outputs or cell.execution_count is not None]
        return [f"{name}, cell {cell_id!r} has been run: it is stored blank." for cell_id in ran]
    never = [cell.id for cell in code if cell.execution_count is None]
    found = [f"{name}, cell {cell_id!r} was never executed: build it." for cell_id in never]
    return found + outputs.problems(seen, name)


def _moved(text: str, old: Settings, new: Settings) -> str:
    """Put the new address in place of the old one, and show what waited for one."""
    text = _WAITS.sub(r"\1", text) if new.published else text
    text = text.replace(old.pages, new.pages)
    text = text.replace(f"{old.repository}/blob/{old.tag}/", f"{new.repository}/blob/{new.tag}/")
    # the ends matter: OWNER/NAME must not be found in OWNER/NAME-extra
    return re.sub(rf"(?<![\w.-]){re.escape(old.repository)}(?![\w-])", new.repository, text)
