"""The site: executed notebooks, a first page and a player, of which Sphinx makes pages."""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from tutorial_lib import __version__, claims
from tutorial_lib.instruments import widgets
from tutorial_lib.instruments.planning.chain.solve import solve
from tutorial_lib.instruments.planning.chain.stages import Stage
from tutorial_lib.school.authoring.frame import read_settings

HERE = Path(__file__).parent
PARTS = {"Chapters": "course", "Labs": "labs", "Solutions": "solutions"}
_FONT = (HERE / "stix-two-math.woff2", HERE / "stix-two-math-license.txt")
_FOLDED = ("setup", "imports")
_ASKED = ("answer-text", "my-answers")  # nobody writes on a page
_ASKS = ("guess = None", "# @title Check: ")
_WRITE = re.compile(r"\s*Write (?:a|your) number in\s+place\s+of\s+`None`\.")
# Three verdicts for the first page, one of each kind of surprise.
_FIRST = ("A06", "D03", "D13")
_ATTACHED = re.compile(r"\(attachment:([\w.-]+)\.png\)")
_PAGE = re.compile(r"(href=['\"][^'\"]*)\.ipynb")


def make_site(root: Path, out: Path, *, solutions: bool = False) -> Path:
    """Write the course as static pages; gives the first one.

    Args:
        root: The course's folder; its notebooks must be built.
        out: A folder for the pages: new, or an older site, which is replaced.
        solutions: Whether the labs' solutions are among the pages.
    """
    from sphinx.cmd.build import build_main

    if out.exists() and any(out.iterdir()) and not (out / ".buildinfo").exists():
        raise ValueError(f"{out} holds files that are no site: give a new folder.")
    with tempfile.TemporaryDirectory() as folder:
        pages = Path(folder)
        _write_pages(root, pages, [*PARTS][: None if solutions else -1])
        made = pages / "_build/html"  # myst-nb leaves a folder of its own beside it
        if build_main(["-q", "-b", "html", folder, str(made)]):
            raise ValueError("Sphinx refused: its own words stand above.")
        shutil.rmtree(out, ignore_errors=True)
        leave = shutil.ignore_patterns(".doctrees")
        shutil.copytree(made, out, ignore=leave, dirs_exist_ok=True)
    # 1.5 MB that draw as pictures the icons for which the theme ships a font, too.
    (out / "_static/scripts/fontawesome.js").write_bytes(b"")
    (out / ".nojekyll").touch()  # GitHub's host would leave out folders like _static
    return out / "index.html"


def _write_pages(root: Path, pages: Path, parts: Sequence[str]) -> None:
    settings = read_settings(root)
    known = {**asdict(settings), "published": settings.published, "pages": settings.pages}
    known["version"] = __version__
    (pages / "settings.json").write_text(json.dumps(known), encoding="utf-8")
    shutil.copy(HERE / "conf.py", pages)
    shutil.copytree(root / "course/figures", pages / "figures")
    (pages / "_static").mkdir()
    social = root / "course/figures/social.png"
    for path in (HERE / "course.css", HERE / "player.js", HERE / "logo.svg", *_FONT, social):
        shutil.copy(path, pages / "_static")
    first = (HERE / "index.md").read_text(encoding="utf-8")
    index = [first.replace("VERDICTS", "\n".join(_verdicts(root)))]
    for title in parts:
        folder = PARTS[title]
        (pages / folder).mkdir()
        paths = sorted((root / folder).glob("*.ipynb"))
        for path in paths:
            notebook = nbformat.read(path, as_version=4)
            nbformat.write(_as_page(notebook), pages / folder / path.name)
        names = "\n".join(f"{_title(path)} <{folder}/{path.stem}>" for path in paths)
        index.append(f"```{{toctree}}\n:caption: {title}\n:maxdepth: 1\n:hidden:\n\n{names}\n```")
    index.append("```{toctree}\n:caption: To play with\n:hidden:\n\nplayer\n```")
    (pages / "index.md").write_text("\n\n".join(index), encoding="utf-8")
    (pages / "player.md").write_text("".join(_player()), encoding="utf-8")


def _verdicts(root: Path) -> Iterator[str]:
    """Write what became of three claims, as the notebooks found it."""
    rows = json.loads((root / "course/claims/verdicts.json").read_text(encoding="utf-8"))
    for name in _FIRST:
        row = next((row for row in rows if row["claim"] == name), None)
        if row:
            where = f"[{row['notebook'].rpartition('/')[2]}]({row['notebook']}.ipynb)"
            yield f'- "{claims.claims()[name]}" **{row["verdict"].capitalize()}.**'
            yield f"  {row['sentence']} {row['how'].capitalize()} in {where}: {row['number']}."


def _title(path: Path) -> str:
    """Name of a page in the list at the side: its number, and its heading."""
    heading = nbformat.read(path, as_version=4).cells[0].source.splitlines()[0].lstrip("# ")
    number = re.match(r"\d+[a-z]?", path.stem)
    return f"{number[0]} {heading}" if number else heading


def _as_page(notebook: NotebookNode) -> NotebookNode:
    """Fold what all begin with, leave out what asks to write; make figures and links the site's."""
    cells = notebook.cells
    notebook.cells = [c for c in cells if c.id not in _ASKED and not c.source.startswith(_ASKS)]
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _WRITE.sub("", cell.source)
        hidden = cell.metadata.get("jupyter", {}).get("source_hidden")
        if hidden or cell.id in _FOLDED:
            cell.metadata["tags"] = ["hide-input"]
        if cell.pop("attachments", None):  # MyST knows files only
            cell.source = _ATTACHED.sub(r"(../figures/\1.svg)", cell.source)
        for output in cell.get("outputs", []):
            html = output.get("data", {}).get("text/html")
            if html:
                html = html.replace("<table>", "<table class='dataframe'>")  # dark pages know it
                output["data"]["text/html"] = _PAGE.sub(r"\1.html", html)
    return notebook


def _player() -> Iterator[str]:
    """Write the page on which a schedule plays without a kernel: one picture a step."""
    stage = Stage(forward_seconds=1, backward_seconds=1, input_bytes=1, saved_bytes=4)
    revolve = solve([stage] * 10, budget_bytes=9)
    events = revolve.simulation.events
    stepper = widgets.schedule_stepper({"ten layers, nine units of memory": events}, unit=1)
    yield "# Play a schedule\n\nMove the slider, or press the arrow keys on it. Each step runs one "
    yield "layer, forward or backward: watch what is stored, recomputed and freed.\n\n"
    yield f'<div class="player"><label>step <input type="range" min="1" max="{len(events)}" '
    yield 'value="1"></label>\n'
    for step in range(1, len(events) + 1):
        stepper.set(step=step)
        yield f'<div class="frame" hidden>{stepper.html}</div>\n'
    yield "</div>\n"
