"""The static site: pages from executed notebooks, drawn without a network."""

import re
import shutil

import nbformat
import pytest

from tutorial_lib.plots.base import VEGA_LITE
from tutorial_lib.school.authoring.frame import Settings, attach_figures, launch_cell
from tutorial_lib.school.site import make_site

pytestmark = pytest.mark.weekly  # a site is built before the first one

PYPROJECT = '[tool.tutorial]\nrepository = "someone/course"\ntag = "v1"\n'
BODY = (
    "A root of $\\sqrt{n}$, and [the lab](../labs/lab01_toy.ipynb).\n\n![a bar](attachment:bar.png)"
)
ROW = "<table><tr><td><a href='../course/00_toy.ipynb'>here</a></td></tr></table>"


README = """# A course

<!-- once stamped
[![tests](badge)](https://nowhere)

-->
It teaches.

![The ramp.](course/figures/ramp.png)

## Three ways in

- **Tonight**: [My model](course/tonight.ipynb)
- **The course**

## Begin

How good are they?

| held against | `predict` |
|---|---|
| 49 peaks ([all](course/00_toy.ipynb)) | off by 0.47% |

The rest.
"""
FORM = "<ol><li>How large?<br>a: small</li></ol><p>No answers: write in place of None.</p>"


def course(tmp_path_factory, root_of_course):
    root = tmp_path_factory.mktemp("course")
    for folder in ("course/figures", "course/claims", "labs", "solutions"):
        (root / folder).mkdir(parents=True)
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "course/figures/bar.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    for name in (
        "ramp.png",
        "social.png",
        "screen-chapter.png",
        "colab-badge.png",
        "colab-badge.svg",
    ):
        shutil.copy(root_of_course / "course/figures" / name, root / "course/figures")
    row = launch_cell(Settings("someone/course", "v1"), "course/blank/00_toy.ipynb")
    attach_figures(row, root / "course/figures")
    (root / "README.md").write_text(README)
    form = nbformat.v4.new_output("execute_result", {"text/html": FORM}, execution_count=1)
    body = nbformat.v4.new_markdown_cell(BODY, attachments={"bar.png": {"image/png": "PHN2Zy8+"}})
    output = nbformat.v4.new_output("execute_result", {"text/html": ROW}, execution_count=1)
    folded = {"jupyter": {"source_hidden": True}}
    moving = {"image/png": "PHN2Zy8+", "text/plain": "still", VEGA_LITE: {"title": "</script>"}}
    slider = nbformat.v4.new_output("execute_result", moving, execution_count=1)
    cells = [
        nbformat.v4.new_markdown_cell("# A chapter"),
        nbformat.v4.new_code_cell("figure", outputs=[slider], execution_count=1),
        row,
        nbformat.v4.new_code_cell("import os", id="setup", execution_count=1),
        nbformat.v4.new_markdown_cell("**Predict.** How many? Write a number in place of\n`None`."),
        nbformat.v4.new_code_cell("guess = None  # MiB", execution_count=1),
        nbformat.v4.new_code_cell("# @title Check: run this cell\nassert chk", execution_count=1),
        nbformat.v4.new_code_cell(
            "guesses.keep('x', {})", id="my-answers", execution_count=1, outputs=[form]
        ),
        body,
        nbformat.v4.new_code_cell("table", outputs=[output], execution_count=1, metadata=folded),
    ]
    for name in ("course/00_toy", "course/tonight", "labs/lab01_toy", "solutions/lab01_toy"):
        nbformat.write(nbformat.v4.new_notebook(cells=cells), root / f"{name}.ipynb")
    return root


@pytest.fixture(scope="module")
def pages(tmp_path_factory, request):
    root = course(tmp_path_factory, request.config.rootpath)
    return make_site(root, root / "site").parent


def test_a_chapter_is_a_page_with_folded_set_up_and_formulas_without_a_network(pages):
    page = (pages / "course/00_toy.html").read_text()
    assert "<math" in page
    assert "msqrt" in page
    assert page.count("tag_hide-input") == 2  # the set-up, and what JupyterLab folds
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


def test_a_figure_with_sliders_has_its_image_and_its_data(pages):
    page = (pages / "course/00_toy.html").read_text()
    inside = page.partition('<div class="moving">')[2]
    assert inside.startswith('<div><img alt="still" src="data:image/png;base64,PHN2Zy8+"></div>')
    assert '{"title": "<\\/script>"}</script>' in inside
    assert "vegaEmbed" in (pages / "_static/vega.js").read_text()


def test_a_folder_with_something_else_is_left_alone(pages, tmp_path):
    assert {path.name for path in pages.parent.iterdir()} == {
        *("course", "labs", "solutions", "pyproject.toml", "README.md"),
        pages.name,
    }
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ValueError, match="holds files that are no site: give a new folder"):
        make_site(pages.parent, tmp_path)


def test_the_first_page_begins_as_the_readme_does_and_says_where_to_ask(pages):
    page = (pages / "index.html").read_text()
    article = page.partition("<article")[2].partition("</article>")[0]
    places = [
        article.index(words)
        for words in (
            'class="begin" href="course/tonight.html"',
            'class="begin" href="course/00_start_here.html"',
            "It teaches.",
            'href="course/tonight.html"><span',  # of the three ways in
            "off by 0.47%",
        )
    ]
    assert places == sorted(places)
    assert "The rest." not in article
    assert "How good are they?" not in article
    assert "badge" not in article
    assert "https://github.com/someone/course/issues/new?template=stuck.md" in article
    assert "blob/v1/CITATION.cff" in article
    assert "CC-BY-4.0" in page.partition("</article>")[2]
    listed = re.findall(r'class="reference internal" href="course/(\w+).html"', page)
    assert listed[:2] == ["tonight", "00_toy"]
    assert list(pages.glob("_images/ramp*.png"))
    assert 'class="right-next"' not in page
    assert '<meta name="description"' in page
    assert 'content="https://someone.github.io/course/_static/social.png"' in page
    assert (pages / "_static/social.png").is_file()
    assert 'rel="icon"' in page
    chapter = (pages / "course/00_toy.html").read_text()
    blob = "colab.research.google.com/github/someone/course/blob/v1/course"
    assert f"{blob}/blank/00_toy.ipynb" in chapter  # the row in the notebook itself
    assert f"{blob}/00_toy.ipynb" not in chapter  # the theme's button would show all results
    assert list(pages.glob("_images/colab-badge*.svg"))
    assert ">Home<" in (pages / "course/tonight.html").read_text()


def test_nobody_is_asked_to_write_on_a_page(pages):
    page = (pages / "course/00_toy.html").read_text()
    assert "How many?" in page
    assert "How large?" in page
    for words in ("in place of", "guess", "keep", "chk"):
        assert words not in page.partition("<article")[2].partition("</article>")[0]


def test_solutions_and_the_address_are_there_only_when_asked_for_and_known(
    pages, tmp_path_factory, request
):
    assert not (pages / "solutions").exists()
    root = course(tmp_path_factory, request.config.rootpath)
    unknown = PYPROJECT.replace("someone/course", "COURSE-OWNER/COURSE-REPOSITORY")
    (root / "pyproject.toml").write_text(unknown)
    out = make_site(root, root / "site", solutions=True).parent
    assert (out / "solutions/lab01_toy.html").is_file()
    for name in ("index", "course/00_toy"):
        assert "COURSE-OWNER" not in (out / f"{name}.html").read_text()
        assert "og:image" not in (out / f"{name}.html").read_text()
