import math
import re

import numpy as np
import pytest
import screenshots
import torch
from figures import FIGURES, is_current
from matplotlib.colors import to_rgb
from test_meter import gpt_step

from tutorial_lib import memory, plots
from tutorial_lib.instruments import figures as drawn
from tutorial_lib.plots import base
from tutorial_lib.units import GIB, MIB


@pytest.fixture(scope="module")
def report():
    return memory.measure(gpt_step(checkpointed=True)[0], label="GPT")


@pytest.fixture(scope="module")
def figures(report):
    seven = {"parameters": 14 * GIB, "optimizer_state": 28 * GIB}
    return [
        plots.step_timeline(report),
        plots.ledger_bars({"GPT": report.at_peak, "7B": seven}, cards_gib=(16, 80), predicted="7B"),
        plots.growth({"saved": {1: 10, 2: 20}}, xlabel="layers"),
        plots.growth({"saved": {1: 10, 2: 20}}, xlabel="layers", log=False, predicted=["saved"]),
        drawn.models_and_cards([(2018, "A", 1e8), (2020, "B", 1e11)], [(2017, "V", 32)] * 2),
        drawn.batch_grid(8, 4, 2),
        drawn.agreement({"ours": [(1.0, 0.9), (2.0, 1.1)]}, title="against theirs"),
        drawn.who_holds_what("ZeRO", {"parameters": [[0], [1]], "inputs": [[0, 1]] * 2}, 2),
        drawn.timetable([(0, 0, 1, "F", 0, 0), (1, 1, 2, "B", 0, 1)], title="Two stages"),
        plots.training_curves({"a run": {0: 2.0, 8: 1.0}}, xlabel="samples", ylabel="loss"),
        plots.training_curves({"x": {1: 2.0}}, xlabel="n", ylabel="error", log="xy", dashed=["x"]),
        plots.influence({"one": [[1.0, 0.0], [0.0, 1e-9]], "all": torch.ones(2, 2)}),
        plots.tradeoff({"plans": {2 * MIB: 0.1, MIB: 0.3}, "per-block": {MIB: 0.33}}),
        drawn.lifetimes({"GPT": report}),
        plots.opposite_bars({"down": {"parameters": MIB, "activations": 2 * MIB}}),
        drawn.holders([MIB, 2 * MIB, MIB], 2, {"a.py:3": (MIB, 1), "(backward)": (MIB, 2)}),
    ]


def test_an_answer_and_a_guess_stand_where_their_bytes_are():
    bars = plots.ledger_bars({"a": {"parameters": 4 * MIB}}).mark(2 * MIB, 3 * MIB)
    assert [line.get_xdata()[0] for line in bars.axes[0].lines] == [2, 3]
    lines = plots.growth({"a": {1: MIB, 2: 4 * MIB}}, xlabel="n").mark(2 * MIB)
    _, answer = lines.axes[0].lines  # no guess was written
    assert list(answer.get_ydata()) == [2, 2]


def contrast(color, other="white"):
    """Of two colours, as the Web Content Accessibility Guidelines 2.2 reckon it: 1 to 21."""
    lights = []
    for name in (color, other):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(name)]
        lights.append(sum(map(float.__mul__, linear, (0.2126, 0.7152, 0.0722))) + 0.05)
    return max(lights) / min(lights)


def pale_parts(figure):
    """Patches and lines that hardly stand out from the white ground: by less than 3:1."""
    for axes in figure.axes:
        for patch in [*axes.patches, *axes.collections]:
            faces, edges = (
                [to_rgb(color) for color in colors] if getattr(colors, "ndim", 1) == 2 else [colors]
                for colors in (patch.get_facecolor(), patch.get_edgecolor())
            )
            if max(map(contrast, [*faces[:1], *edges[:1]])) < 3:
                yield patch
        for line in axes.get_lines():
            if contrast(line.get_color()) < 3:
                yield line


def test_every_part_of_a_figure_stands_out_from_the_page(figures):
    for figure in figures:
        assert not list(pale_parts(figure)), figure.alt


def test_every_figure_is_an_image_with_a_sentence(figures):
    for figure in figures:
        bundle = figure._repr_mimebundle_()
        assert set(bundle) == {"text/html", "text/plain"}
        assert len(bundle["text/plain"]) > 30
        image = r'<img alt="[^"<]{30,}" style="[^"]*" class="drawn" '
        image += r'src="data:image/png;base64,[\w+/=]+"><style>[^<]+</style>'
        assert re.fullmatch(image, bundle["text/html"])


def on_a_dark_page(color):
    """What the browser makes of a colour: the two filters of CSS, as Filter Effects 1 says."""
    amount, degrees = map(float, re.findall(r"[\d.]+", base.DARK_FILTER))
    inverted = [c * (1 - amount) + (1 - c) * amount for c in to_rgb(color)]
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    luma = np.array([0.213, 0.715, 0.072])
    turned = np.array([[-0.213, -0.715, 0.928], [0.143, 0.140, -0.283], [-0.787, 0.715, 0.072]])
    matrix = luma + cos * (np.eye(3) - luma) + sin * turned
    return np.clip(matrix @ inverted, 0, 1)


@pytest.mark.parametrize("color", [*base.LINES, "black", "#222222"])
def test_lines_edges_and_words_stand_out_from_a_dark_page_too(color):
    ground = on_a_dark_page("white")
    assert contrast(tuple(ground), "#111111") < 1.1, "JupyterLab's own dark"
    assert contrast(tuple(on_a_dark_page(color)), tuple(ground)) >= 3


def test_the_same_figure_is_the_same_bytes(report):
    assert plots.as_html(plots.step_timeline(report)) == plots.as_html(plots.step_timeline(report))


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda: plots.influence({}), "grids is empty"),
        (lambda: plots.influence({"a": [1.0, 2.0]}), r"'a' has shape \(2,\)"),
        (lambda: plots.step_timeline(memory.MemoryReport()), "no timeline"),
        (
            lambda: plots.training_curves({"a run": {}}, xlabel="samples", ylabel="loss"),
            "curve 'a run' has no point",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, words):
    with pytest.raises(ValueError, match=words):
        draw()


def test_tradeoff_has_a_line_for_many_points_and_a_mark_for_one():
    figure = plots.tradeoff({"plans": {2 * MIB: 0.1, MIB: 0.3}, "per-block": {MIB: 0.33}})
    lines = figure.axes[0].get_lines()
    assert [line.get_linestyle() for line in lines] == ["-", "None"]
    assert list(lines[0].get_xdata()) == [1.0, 2.0]
    assert "plans: 1.00 MiB +30%, 2.00 MiB +10%; per-block: 1.00 MiB +33%." in figure.alt


@pytest.mark.parametrize("drawing", sorted(FIGURES.glob("*.svg")), ids=lambda path: path.stem)
def test_the_picture_of_a_drawing_is_of_today(drawing):
    assert is_current(drawing), "python course/recorded/make/figures.py makes it anew"


@pytest.mark.parametrize("picture", screenshots.PICTURES)
def test_a_screenshot_is_of_todays_cells(picture):
    assert screenshots.is_current(picture), "course/recorded/make/screenshots.py takes it anew"
