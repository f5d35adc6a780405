"""The base of all figures: one that says in words what it shows, colours, legends."""

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tutorial_lib.memory.timeline import StepMemory
from tutorial_lib.units import human_bytes

# One colour and one hatch per memory category (Okabe and Ito, 2008).
_LOOKS = {
    "parameters": ("#0072B2", ""),
    "buffers": ("#56B4E9", "oo"),
    "gradients": ("#E69F00", "//"),
    "optimizer_state": ("#009E73", ".."),
    "activations": ("#D55E00", ""),
    "recomputed": ("#CC79A7", "xx"),
    "temporary": ("#F0E442", "--"),
    "inputs": ("#999999", "\\\\"),
    "other": ("#DDDDDD", "++"),
}
COLORS = {category: color for category, (color, _) in _LOOKS.items()}
HATCHES = {category: hatch for category, (_, hatch) in _LOOKS.items()}
# Lines and marks have no edge: each colour stands out from white by 3:1 or more.
LINES = (
    *("#0072B2", "#D55E00", "#009E73", "#A14B80", "#8A6D00"),
    *("#222222", "#3A87B7", "#B22222", "#767676"),
)
CARDS_GIB = (16, 24, 80)
BESIDE: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}  # a legend's place
# Figures are drawn on white, which reads anywhere. On the dark pages of JupyterLab, the site, Colab
# and VS Code the browser swaps light and dark: 0.93 makes JupyterLab's ground of white.
DARK_PAGES = (
    *('body[data-jp-theme-light="false"]', 'html[data-theme="dark"]'),
    *('html[theme="dark"]', "body.vscode-dark"),
)
DARK_FILTER = "invert(0.93) hue-rotate(180deg)"
_DRAWN = ".drawn, .jp-MarkdownOutput img[src^='data:']"  # a figure; one attached to a text
# JupyterLab 4.6 draws this kind by itself, and not kind v6, which Altair 6 writes.
VEGA_LITE = "application/vnd.vegalite.v5+json"
_LOOK_OF_MOVING: dict[str, Any] = {
    "width": 560,
    "background": "white",
    "config": {"legend": {"orient": "bottom"}},
    "usermeta": {"embedOptions": {"renderer": "svg", "actions": False}},
}
_SHEET = f"<style>:is({', '.join(DARK_PAGES)}) :is({_DRAWN}) {{ filter: {DARK_FILTER} }}</style>"


class CourseFigure(Figure):
    """A figure with its sentence: shown as an image with alt text, compared as the sentence."""

    alt = ""
    is_photo = False  # of images: dark pages show it as it is
    bytes_along = ("x", 1.0)  # the axis to mark, and how many bytes its unit has
    # The same in Vega-Lite, with sliders: shown where that can be drawn, and the image elsewhere.
    moving: Mapping[str, Any] | None = None

    def mark(self, answer: float, guess: float | None = None) -> "CourseFigure":
        """Mark an answer, in bytes where an axis has them, and the guess if one was written."""
        axes, (along, unit) = self.axes[0], self.bytes_along
        line, place = (axes.axvline, "xaxis") if along == "x" else (axes.axhline, "yaxis")
        look: dict[str, Any] = {"transform": getattr(axes, f"get_{place}_transform")(), "size": 8}
        look |= {"bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0}}
        for words, value, end in ((" answer ", answer, 1.0), (" your guess ", guess, 0.0)):
            if value is not None:
                at = value / unit
                line(at, color="black", linewidth=1, linestyle="-" if end else ":")
                look["ha"] = "right" if end else "left"
                look["va"] = "top" if end and along == "x" else "bottom"
                axes.text(*((at, end) if along == "x" else (end, at)), words, **look)
        return self

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        if not self.moving:
            return {"text/html": as_html(self), "text/plain": self.alt}
        # JupyterLab would show HTML rather than what moves, and what moves rather than an image.
        moving = {**_LOOK_OF_MOVING, "description": self.alt, **self.moving}
        bundle = {VEGA_LITE: moving, "image/png": _as_png(self), "text/plain": self.alt}
        return bundle, {"image/png": {"alt": self.alt}}


def _as_png(figure: CourseFigure) -> str:
    buffer = io.BytesIO()
    figure.set_dpi(110)
    # One drawing, where `savefig` takes two. No software name or date in the file: the same figure
    # is the same bytes.
    FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def as_html(figure: CourseFigure) -> str:
    """Write a figure as one HTML image with its alt text."""
    data = _as_png(figure)
    image = f'<img alt="{escape(figure.alt)}" style="max-width:100%" '
    if figure.is_photo:
        return f'{image}src="data:image/png;base64,{data}">'
    return f'{image}class="drawn" src="data:image/png;base64,{data}">{_SHEET}'


def new_figure(title: str, *, height: float) -> tuple[CourseFigure, Axes]:
    """Open a figure of the course's width with one set of axes; height in inches."""
    figure, ((axes,),) = new_panels(1, height=height)
    axes.set_title(title, fontsize=10, loc="left")
    return figure, axes


def new_panels(
    rows: int, columns: int = 1, *, height: float, **how: Any
) -> tuple[CourseFigure, Any]:
    """Open a figure of the course's width and a grid `(rows, columns)` of axes, as `subplots`."""
    figure = CourseFigure(figsize=(8, height), layout="constrained", facecolor="white")
    grid = figure.subplots(rows, columns, squeeze=False, **how)
    for axes in grid.flat:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, grid


def fill(category: str) -> dict[str, Any]:
    """Colour and hatch of a memory category, as a patch takes them."""
    color, hatch = COLORS[category], HATCHES[category]
    return {"facecolor": color, "hatch": hatch, "edgecolor": "#222222", "linewidth": 0.5}


def category_legend(axes: Axes, categories: Sequence[str]) -> None:
    """Name the categories to the right of the axes."""
    handles = [Patch(label=name.replace("_", " "), **fill(name)) for name in categories]
    axes.legend(handles=handles, frameon=False, fontsize=8, **BESIDE)


def how_measured(report: StepMemory) -> str:
    """Say how a report came about and on which device."""
    return f"{'measured' if report.method == 'allocator' else report.method}, {report.device}"


def in_words(ledger: Mapping[str, int]) -> str:
    """Name the categories in words; what is under half a percent cannot be seen either."""
    visible = {k: v for k, v in ledger.items() if v > sum(ledger.values()) / 200}
    return ", ".join(f"{k.replace('_', ' ')} {human_bytes(v)}" for k, v in visible.items())
