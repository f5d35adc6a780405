"""Chapters, labs, widgets and the site in a real browser; skipped where there is none.

Every notebook, light and dark, is looked at in the weekly run; with the environment variable
`SCREENSHOTS` set to a folder, its pictures are kept there.
"""

import functools
import http.server
import os
import shutil
import threading
from importlib.metadata import version
from pathlib import Path

import nbformat
import pytest
from browser import ROOT, Notebook, chromium, find_browser, jupyterlab

from tutorial_lib.school.site import make_site

EXECUTABLE, WHY_NOT = find_browser()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not EXECUTABLE, reason=WHY_NOT)]
CHAPTER, LAB = "10b_published_measurements", "lab01_ledger"
WIDE = "06c_planned_schedules"  # long formulas, and code of 88 columns
MOVING = {  # figures with sliders that need no kernel: cell; words, where a slider goes, words
    "06_where_to_checkpoint": ("slider", "peak 22, FLOPs +32 %", "64", "peak 32, FLOPs +33 %"),
    "07_selective_checkpointing": ("roofline", "4 of 10 operations", "64", "10 of 10 operations"),
    WIDE: ("puzzle", "48 forwards. Get below 45.", "1", "68 forwards. Get below 45."),
}

# Each widget's own cell of its chapter, with the cells that it needs.
WIDGETS = {
    "01b_more_levers": ["calculator-activations", "calculator-ledger", "calculator"],
    "06c_planned_schedules": [
        *("chain", "best", "rules", "revolve", "stepper", "half", "in-halves", "profile"),
        *("plan-within", "cost", "by-rule", "plan-explorer"),
    ],
    "14c_rules_of_thumb": ["report-of", "calculator"],
    "14b_gallery": ["triage"],
}
MOVES = [  # a cell, a slider in it, a key, and words of the sentence after it
    ("widgets.memory_calculator", "sequence length", "ArrowLeft", "x 2048 tokens"),
    ("schedule_stepper", "step", "ArrowRight", "2 of "),
    ("plan_explorer", "budget", "ArrowLeft", "Budget 7.83"),
    ("published_calculator", "micro-batch", "ArrowRight", "Not recorded: gpt2-xl, micro-batch 15"),
    ("published_calculator", "card, GiB", "ArrowRight", "A card of 40 GiB has"),
    ("snapshot_triage", "moment, %", "ArrowLeft", "event 1566 of 1582"),
]


def widgets_notebook():
    """One notebook of the cells in which the chapters show a widget, imports first."""
    cells = []
    for stem, names in WIDGETS.items():
        chapter = nbformat.read(ROOT / f"course/{stem}.ipynb", 4)
        there = {cell.id: cell for cell in chapter.cells}
        cells += [nbformat.v4.new_code_cell(there[name].source) for name in ("imports", *names)]
    return nbformat.v4.new_notebook(cells=cells, metadata=chapter.metadata)


@pytest.fixture(scope="module")
def browser():
    with chromium(EXECUTABLE) as started:
        yield started


@pytest.fixture(scope="module")
def open_notebook(browser, tmp_path_factory):
    folder, home = tmp_path_factory.mktemp("course"), tmp_path_factory.mktemp("home")
    shutil.copy(ROOT / f"course/blank/{CHAPTER}.ipynb", folder)
    shutil.copy(ROOT / f"labs/{LAB}.ipynb", folder)
    for stem, (moving, *_) in MOVING.items():
        opened = nbformat.read(ROOT / f"course/{stem}.ipynb", 4)
        opened.cells = [cell for cell in opened.cells if cell.id == moving]
        nbformat.write(opened, folder / f"{stem}.ipynb")
    nbformat.write(widgets_notebook(), folder / "widgets.ipynb")
    context = browser.new_context(viewport={"width": 800, "height": 900})
    with jupyterlab(folder, home) as url_of:
        yield lambda stem: Notebook(context, url_of(f"{stem}.ipynb"))


@pytest.mark.weekly
def test_a_chapter_runs_and_shows_its_figures(open_notebook):
    chapter = open_notebook(CHAPTER)
    assert chapter.run() == []
    assert chapter.page.locator(".jp-OutputArea-output img").count() > 0
    assert chapter.faults() == chapter.complaints == []
    chapter.close()


@pytest.mark.weekly
def test_a_lab_says_which_answer_is_blank(open_notebook):
    lab = open_notebook(LAB)
    (error,) = lab.run()
    assert "exercise 1.1" in error
    assert lab.faults() == lab.complaints == []
    lab.close()


@pytest.mark.skipif(version("ipywidgets") < "8", reason="JupyterLab 4 shows no ipywidgets 7")
def test_every_widget_moves_by_keyboard(open_notebook):
    notebook = open_notebook("widgets")
    assert notebook.run() == []
    for call, label, key, words in MOVES:
        cell = notebook.page.locator(".jp-Cell", has_text=call)
        row = cell.locator(".widget-inline-hbox", has_text=label).first
        before = cell.locator(".widget-html img").get_attribute("src")
        slider = row.get_by_role("slider")
        slider.focus()
        notebook.page.keyboard.press(key)
        cell.locator(".widget-html p", has_text=words).wait_for()
        after = cell.locator(".widget-html img")
        for _ in range(100):  # the figure comes in a message of its own, after the sentence's
            if not after.count() or after.get_attribute("src") != before:
                break
            notebook.page.wait_for_timeout(100)
        assert not after.count() or after.get_attribute("src") != before
        if not after.count():  # said to have no figure: and back
            notebook.page.keyboard.press("ArrowLeft")
            after.wait_for()
    assert notebook.faults() == notebook.complaints == []
    notebook.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Two pages of the site and its first one, behind an address."""
    root = tmp_path_factory.mktemp("root")
    for folder in ("course", "labs", "solutions"):
        (root / folder).mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, root)
    for folder in ("figures", "claims"):
        shutil.copytree(ROOT / "course" / folder, root / "course" / folder)
    for stem in (CHAPTER, *MOVING):
        shutil.copy(ROOT / f"course/{stem}.ipynb", root / "course")
    shutil.copy(ROOT / f"labs/{LAB}.ipynb", root / "labs")
    folder = make_site(root, root / "site").parent
    handler = functools.partial(QuietHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.weekly
@pytest.mark.parametrize("stem", MOVING)
def test_a_figure_moves_on_the_site_and_in_a_notebook_that_was_only_opened(
    browser, site, open_notebook, stem
):
    _, before, moved, after = MOVING[stem]
    page, opened = browser.new_page(), open_notebook(stem)
    page.goto(f"{site}/course/{stem}.html")
    for place in (page, opened.page):
        chart = place.locator(".vega-embed", has_text=before)
        chart.locator("text", has_text=before).wait_for()
        chart.get_by_role("slider").first.fill(moved)
        place.locator(".vega-embed text", has_text=after).wait_for()
    assert opened.complaints == []
    opened.close()
    page.close()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


@pytest.mark.weekly
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", [f"course/{CHAPTER}", f"labs/{LAB}", "index", "player"])
def test_axe_finds_nothing_on_a_page_of_the_site(browser, site, page, scheme):
    from axe_playwright_python.sync_playwright import Axe

    context = browser.new_context(viewport={"width": 1100, "height": 900}, color_scheme=scheme)
    shown = context.new_page()
    shown.goto(f"{site}/{page}.html")
    # A colour half way between light and dark is no fault of the page.
    shown.add_style_tag(content="* { transition: none !important; animation: none !important; }")
    faults = [
        (one["id"], [node["html"][:120] for node in one["nodes"]])
        for one in Axe().run(shown).response["violations"]
        # The guidelines, and the order of headings. Advice on the theme's frame is not ours.
        if one["id"] == "heading-order" or any(tag.startswith("wcag") for tag in one["tags"])
    ]
    assert faults == []
    context.close()


@pytest.mark.weekly
@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("page", [f"course/{WIDE}", "index", "search"])
def test_a_page_of_the_site_needs_no_scrolling_sideways(browser, site, page, width):
    context = browser.new_context(viewport={"width": width, "height": 900})
    shown = context.new_page()
    shown.goto(f"{site}/{page}.html")
    size = "document.documentElement"
    assert shown.evaluate(f"() => {size}.scrollWidth <= {size}.clientWidth")
    if width == 1280:
        blocks = shown.locator(".bd-article .cell_input pre:visible").all()
        cut = "(one) => one.scrollWidth > one.clientWidth + 1"
        assert [one.inner_text() for one in blocks if one.evaluate(cut)] == []
        assert shown.locator(".search-button-field:visible").count() == 1
    context.close()


@pytest.mark.weekly
def test_a_search_loads_less_than_a_megabyte(browser, site):
    context = browser.new_context()
    shown, loaded = context.new_page(), []
    shown.on("response", lambda response: loaded.append(len(response.body())))
    shown.goto(f"{site}/search.html?q=checkpoint")
    shown.locator("#search-results li a").first.wait_for()
    shown.wait_for_load_state("networkidle")
    assert sum(loaded) < 1_000_000
    context.close()


NOTEBOOKS = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("course", "labs", "solutions")
    for path in ROOT.glob(f"{folder}/*.ipynb")
)


@pytest.mark.weekly
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_notebook_can_be_read_in_a_narrow_window(browser, tmp_path, theme):
    pictures = Path(os.environ.get("SCREENSHOTS") or tmp_path)
    context = browser.new_context(viewport={"width": 800, "height": 900}, color_scheme=theme)
    found = {}
    with jupyterlab(ROOT, tmp_path, theme) as url_of:
        for name in NOTEBOOKS:
            notebook = Notebook(context, url_of(name))
            found[name] = notebook.faults() + notebook.complaints
            folder, file = name.split("/")
            notebook.picture(pictures / f"{folder}-{file.removesuffix('.ipynb')}-{theme}.png")
            notebook.close()
    assert {name: faults for name, faults in found.items() if faults} == {}
