"""Sphinx's settings for the course's site; `make` puts this file beside the pages."""

import json
from pathlib import Path
from typing import Any, NoReturn

from docutils import nodes
from latex2mathml.converter import convert

settings = json.loads((Path(__file__).parent / "settings.json").read_text(encoding="utf-8"))

project = "Training that fits"
author = "the authors of Training that fits"
version = release = settings["version"]
extensions = ["myst_nb"]
exclude_patterns = ["_build"]
nb_execution_mode = "off"  # the notebooks come executed
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
html_theme = "sphinx_book_theme"
html_title = project
html_theme_options = {
    "repository_url": f"https://github.com/{settings['repository']}",
    "use_repository_button": settings["published"],
    "use_download_button": False,
    "use_fullscreen_button": False,
    "show_toc_level": 2,
}
html_static_path = ["_static"]
html_css_files = ["course.css"]
html_js_files = ["player.js"]
html_math_renderer = "mathml"
html_copy_source = False
# Outputs with data for `build` alone, and links of the repository that are no pages.
suppress_warnings = ["mystnb.unknown_mime_type", "myst.xref_missing", "toc.not_included"]


def visit_math(self: Any, node: Any) -> NoReturn:
    """Write a formula as MathML, which browsers draw by themselves: nothing is fetched."""
    display = "block" if node.tagname == "math_block" else "inline"
    self.body.append(convert(node.astext(), display=display))
    raise nodes.SkipNode


def setup(app: Any) -> None:
    """Tell Sphinx of `visit_math`."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
