"""The static site: pages from executed notebooks, drawn without a network."""

import nbformat
import pytest

from tutorial_lib.school.site import make_site

PYPROJECT = '[tool.tutorial]\nrepository = "someone/course"\ntag = "v1"\n'
BODY = (
    "A root of $\\sqrt{n}$, and [the lab](../labs/lab01_toy.ipynb).\n\n![a bar](attachment:bar.png)"
)
ROW = "<table><tr><td><a href='../course/00_toy.ipynb'>here</a></td></tr></table>"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    root = tmp_path_factory.mktemp("course")
    for folder in ("course/figures", "labs", "solutions"):
        (root / folder).mkdir(parents=True)
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "course/figures/bar.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    body = nbformat.v4.new_markdown_cell(BODY, attachments={"bar.png": {"image/png": "PHN2Zy8+"}})
    output = nbformat.v4.new_output("execute_result", {"text/html": ROW}, execution_count=1)
    cells = [
        nbformat.v4.new_markdown_cell("# A chapter"),
        nbformat.v4.new_code_cell("import os", id="setup", execution_count=1),
        body,
        nbformat.v4.new_code_cell("table", outputs=[output], execution_count=1),
    ]
    for name in ("course/00_toy", "labs/lab01_toy"):
        nbformat.write(nbformat.v4.new_notebook(cells=cells), root / f"{name}.ipynb")
    return make_site(root, root / "site").parent


def test_a_chapter_is_a_page_with_folded_set_up_and_formulas_without_a_network(pages):
    page = (pages / "course/00_toy.html").read_text()
    assert "<math" in page
    assert "msqrt" in page
    assert "hide-input" in page
    assert 'href="../labs/lab01_toy.html"' in page
    assert "href='../course/00_toy.html'" in page
    assert "MathJax.js" not in page
    assert "cdn" not in page
    assert list(pages.glob("_images/bar*.svg"))


def test_the_first_page_lists_chapters_by_number_and_a_player_has_its_frames(pages):
    assert "00 A chapter" in (pages / "index.html").read_text()
    player = (pages / "player.html").read_text()
    frames = player.count('class="frame"')
    assert f'max="{frames}"' in player
    assert frames > 20
    assert 'img alt="' in player


def test_a_folder_with_something_else_is_left_alone(pages, tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ValueError, match="holds files that are no site: give a new folder"):
        make_site(pages.parent, tmp_path)
