"""Take the README's pictures of JupyterLab; run after one of their cells has changed.

    python course/recorded/make/screenshots.py

`course/figures/` then holds a chapter's cell with its figure, and a lab's check that refuses a
wrong answer. Each picture notes the cells that it was made of.
"""

import hashlib
import io
import sys
import tempfile
from pathlib import Path

import nbformat
from PIL import Image
from browser import Notebook, chromium, find_browser, jupyterlab
from PIL.PngImagePlugin import PngInfo

ROOT = Path(__file__).resolve().parents[3]
FIGURES = ROOT / "course" / "figures"
MADE_OF = "SHA-256 of its cells"
CALM = ".jp-cell-toolbar, .jp-Collapser { visibility: hidden !important }"  # of the selected cell
PICTURES = {  # a notebook, and of its cells those that are run; the last one is shown
    "screen-chapter.png": ("course/06_where_to_checkpoint", "imports", "first-schedule"),
    "screen-check.png": ("solutions/lab03_my_checkpoint", "imports", "answer-3-1", "check-3-1"),
}


def cells_of(picture):
    """The code behind a picture, cell by cell; a lab's answer has a slip that its check knows."""
    from solutions.answers.known import changed

    from solutions.answers.lab03.ex3_1 import SetsTheInputsOnCtx

    notebook, *names = PICTURES[picture]
    cells = {cell.id: cell.source for cell in nbformat.read(ROOT / f"{notebook}.ipynb", 4).cells}
    if "answer-3-1" in names:
        cells["answer-3-1"] = changed(cells["answer-3-1"], *SetsTheInputsOnCtx.parts)
    return [cells[name] for name in names]


def digest(cells):
    return hashlib.sha256("\n".join(cells).encode()).hexdigest()


def is_current(picture):
    """Whether a picture was made of today's cells."""
    return Image.open(FIGURES / picture).info.get(MADE_OF) == digest(cells_of(picture))


def main():
    """Run the cells in JupyterLab, and keep what the last one looks like."""
    sys.path.insert(0, str(ROOT))

    executable, why_not = find_browser()
    if why_not:
        sys.exit(why_not)
    folder = Path(tempfile.mkdtemp())
    with chromium(executable) as started, jupyterlab(folder, folder) as url_of:
        view = started.new_context(viewport={"width": 920, "height": 900}, device_scale_factor=1.5)
        for picture in PICTURES:
            cells = cells_of(picture)
            codes = [nbformat.v4.new_code_cell(code) for code in cells]
            name = Path(picture).with_suffix(".ipynb").name
            kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)"}}
            nbformat.write(nbformat.v4.new_notebook(cells=codes, metadata=kernel), folder / name)
            notebook = Notebook(view, url_of(name))
            notebook.run()
            notebook.page.add_style_tag(content=CALM)
            shot = notebook.page.locator(".jp-Notebook-cell").last.screenshot()
            notebook.close()
            note = PngInfo()
            note.add_text(MADE_OF, digest(cells))
            whole = Image.open(io.BytesIO(shot)).convert("RGB")
            inside = (4, 4, whole.width - 4, whole.height - 4)  # without the selection's frame
            few = whole.crop(inside).quantize(64)
            few.save(FIGURES / picture, optimize=True, pnginfo=note)
            print(f"wrote {picture}")


if __name__ == "__main__":
    main()
