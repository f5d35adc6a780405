"""The site: executed notebooks, a first page and a player, of which Sphinx makes pages."""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from tutorial_lib import __version__
from tutorial_lib.instruments import widgets
from tutorial_lib.instruments.planning.chain.solve import solve
from tutorial_lib.instruments.planning.chain.stages import Stage
from tutorial_lib.plots.base import VEGA_LITE
from tutorial_lib.school.authoring.frame import Settings, read_settings

HERE = Path(__file__).parent
PARTS = {"Chapters": "course", "Labs": "labs", "Solutions": "solutions"}
_FONT = (HERE / "stix-two-math.woff2", HERE / "stix-two-math-license.txt")
_FOLDED = ("setup", "imports")
_FORM = "my-answers"
_ASKED = ("answer-text", _FORM)  # nobody writes on a page
_ASKS = ("guess = None", "# @title Check: ")
_WRITE = re.compile(r"\s*Write (?:a|your) number in\s+place\s+of\s+`None`\.")
_README = re.compile(r"^README: ?(.*)$", re.MULTILINE)
_UNSTAMPED = re.compile(r"<!-- once stamped.*?-->\n", re.DOTALL)
_ATTACHED = re.compile(r"\(attachment:([\w.-]+)\.png\)")
_PAGE = re.compile(r"(href=['\"][^'\"]*)\.ipynb")


def make_site(root: Path, out: Path, *, solutions: bool = False) -> Path:
    """Write the course as static pages; return the first one.

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
            raise ValueError("Sphinx refused: its own words are above.")
        shutil.rmtree(out, ignore_errors=True)
        leave = shutil.ignore_patterns(".doctrees")
        shutil.copytree(made, out, ignore=leave, dirs_exist_ok=True)
    # 1.5 MB that draw as pictures the icons for which the theme ships a font, too.
    (out / "_static/scripts/fontawesome.js").write_bytes(b"")
    (out / ".nojekyll").touch()  # GitHub's host would leave out folders like _static
    return out / "index.html"


def _write_pages(root: Path, pages: Path, parts: Sequence[str]) -> None:
    import vl_convert

    settings = read_settings(root)
    known = {**asdict(settings), "published": settings.published, "pages": settings.pages}
    known["version"] = __version__
    (pages / "settings.json").write_text(json.dumps(known), encoding="utf-8")
    shutil.copy(HERE / "conf.py", pages)
    pictures = shutil.ignore_patterns("drawn")
    shutil.copytree(root / "course/figures", pages / "figures", ignore=pictures)
    (pages / "_static").mkdir()
    social = root / "course/figures/social.png"
    for path in (HERE / "course.css", HERE / "player.js", HERE / "logo.svg", *_FONT, social):
        shutil.copy(path, pages / "_static")
    vega = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    (pages / "_static/vega.js").write_text(vega, encoding="utf-8")
    first = (HERE / "index.md").read_text(encoding="utf-8")
    first = _README.sub(lambda mark: _of_readme(root, mark[1]), first)
    index = [first.replace("ADDRESSES", "\n".join(_addresses(settings)))]
    for title in parts:
        folder = PARTS[title]
        (pages / folder).mkdir()
        paths = sorted(
            (root / folder).glob("*.ipynb"), key=lambda path: (path.stem != "tonight", path.name)
        )
        for path in paths:
            notebook = nbformat.read(path, as_version=4)
            nbformat.write(_as_page(notebook), pages / folder / path.name)
        names = "\n".join(f"{_title(path)} <{folder}/{path.stem}>" for path in paths)
        index.append(f"```{{toctree}}\n:caption: {title}\n:maxdepth: 1\n:hidden:\n\n{names}\n```")
    index.append("```{toctree}\n:caption: To play with\n:hidden:\n\nplayer\n```")
    (pages / "index.md").write_text("\n\n".join(index), encoding="utf-8")
    (pages / "player.md").write_text("".join(_player()), encoding="utf-8")


def _of_readme(root: Path, part: str) -> str:
    """Take from the README what the first page says, too: its beginning, a section, or a table."""
    text = _UNSTAMPED.sub("", (root / "README.md").read_text(encoding="utf-8"))
    if part.endswith("?"):
        return text.partition(f"\n{part}\n\n")[2].partition("\n\n")[0]
    before, _, after = text.partition(f"\n## {part}\n" if part else "\n\n")
    section = (after if before else "").partition("\n## ")[0].strip()
    heading = f"## {part}\n\n" if part else ""
    return heading + section.replace("](course/figures/", "](figures/")


def _addresses(settings: Settings) -> Iterator[str]:
    """Say where the course, its licence and help are."""
    if settings.published:
        home = f"https://github.com/{settings.repository}"
        blob = f"{home}/blob/{settings.tag}"
        yield f"- **Get it:** [{settings.repository}]({home}#begin)"
        yield f"- **Ask:** [I am stuck]({home}/issues/new?template=stuck.md)"
        yield f"- **Cite:** [CITATION.cff]({blob}/CITATION.cff)"
    else:
        yield "- **Ask, cite:** the course's folder has a `README.md` and a `CITATION.cff`."
    yield "- **Licence:** code Apache-2.0, text and figures CC-BY-4.0."


def _title(path: Path) -> str:
    """Name of a page in the list at the side: its number, and its heading."""
    heading = nbformat.read(path, as_version=4).cells[0].source.splitlines()[0].lstrip("# ")
    number = re.match(r"\d+[a-z]?", path.stem)
    return f"{number[0]} {heading}" if number else heading


def _as_page(notebook: NotebookNode) -> NotebookNode:
    """Fold what all begin with, leave out what asks to write; make figures and links the site's."""
    cells = notebook.cells
    asks = [c for c in cells if c.id in _ASKED or c.source.startswith(_ASKS)]
    notebook.cells = [_to_read(c) for c in cells if c not in asks or c.id == _FORM]
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _WRITE.sub("", cell.source)
        hidden = cell.metadata.get("jupyter", {}).get("source_hidden")
        if hidden or cell.id in _FOLDED:
            cell.metadata["tags"] = ["hide-input"]
        if cell.pop("attachments", None):  # MyST knows files only
            cell.source = _ATTACHED.sub(r"(../figures/\1.svg)", cell.source)
        for output in cell.get("outputs", []):
            shown = output.get("data", {})
            if moving := shown.pop(VEGA_LITE, None):
                alt, image = escape(shown["text/plain"]), shown.pop("image/png").strip()
                still = f'<img alt="{alt}" src="data:image/png;base64,{image}">'
                parts = json.dumps(moving).replace("</", "<\\/")
                data = f'<script type="application/json">{parts}</script>'
                shown["text/html"] = f'<div class="moving"><div>{still}</div>{data}</div>'
            if html := shown.get("text/html"):
                html = html.replace("<table>", "<table class='dataframe'>")  # dark pages know it
                shown["text/html"] = _PAGE.sub(r"\1.html", html)
    return notebook


def _to_read(cell: NotebookNode) -> NotebookNode:
    """Keep the questions of a form, and nothing to answer with."""
    if cell.id != _FORM:
        return cell
    shown = "".join(out.get("data", {}).get("text/html", "") for out in cell.get("outputs", []))
    return nbformat.v4.new_markdown_cell(shown.partition("<p>")[0], id=cell.id)


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
