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
    "logo": {"text": project},
    "navbar_persistent": [],  # the search field at the side is enough
    "use_download_button": False,
    "use_fullscreen_button": False,
    "show_toc_level": 2,
    "extra_footer": "Code: Apache-2.0. Text and figures: CC-BY-4.0.",
}
if settings["published"]:
    html_theme_options |= {
        "repository_url": f"https://github.com/{settings['repository']}",
        "repository_branch": settings["tag"],
        "use_repository_button": True,
    }
    html_baseurl = settings["pages"]
html_logo = html_favicon = "_static/logo.svg"
html_show_search_summary = False  # which would fetch every page that is found
html_static_path = ["_static"]
html_css_files = ["course.css"]
html_js_files = ["player.js"]
html_math_renderer = "mathml"
html_copy_source = False
# Outputs with data for `build` alone, and links of the repository that are no pages.
suppress_warnings = ["mystnb.unknown_mime_type", "myst.xref_missing", "toc.not_included"]


DESCRIPTION = (
    "A hands-on course on gradient checkpointing and gradient accumulation: build both from "
    "scratch, measure what they save, and check the folklore against the numbers."
)


def describe(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Say in a page's head what the course is; name no neighbour by the page's own title."""
    tags = f'<meta name="description" content="{DESCRIPTION}">\n'
    tags += f'<meta property="og:description" content="{DESCRIPTION}">\n'
    tags += f'<meta property="og:title" content="{project}">\n'
    if settings["published"]:  # an address has to be whole
        tags += f'<meta property="og:image" content="{html_baseurl}_static/social.png">\n'
    context["metatags"] = context.get("metatags", "") + tags
    if page == "index":
        context["next"] = None  # the page has its own way to begin
    elif (context.get("prev") or {}).get("title") == project:
        context["prev"]["title"] = "Home"


def visit_math(self: Any, node: Any) -> NoReturn:
    """Write a formula as MathML, which browsers draw with the font of `course.css`."""
    block = node.tagname == "math_block"
    formula = convert(node.astext(), display="block" if block else "inline")
    self.body.append(f'<div class="formula">{formula}</div>' if block else formula)
    raise nodes.SkipNode


def setup(app: Any) -> None:
    """Tell Sphinx of `visit_math` and `describe`."""
    app.connect("html-page-context", describe)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
