import numpy as np
import pytest
import torch

from tutorial_lib import plots
from tutorial_lib.plots.base import CourseFigure
from tutorial_lib.units import MIB


def test_rows_of_images_stand_on_one_sheet_and_are_named():
    rows = {"before": torch.randn(3, 1, 8, 8), "after": [np.zeros((8, 8))]}
    figure = plots.image_rows(rows, title="Digits")
    assert isinstance(figure, CourseFigure)
    assert figure.alt == "Digits. before: 3 images; after: 1 images."
    (axes,) = figure.axes
    sheet = axes.images[0].get_array()
    assert sheet.shape == (18, 27)  # a margin of one pixel after each image
    assert np.allclose(sheet[:8, :8], rows["before"][0, 0].numpy())
    assert np.all(sheet[9:17, :8] == 0)
    assert np.all(sheet[9:17, 9:] == 1)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["before", "after"]
    assert "<img alt=" in figure._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({}, "each row needs an image"),
        ({"none": []}, "each row needs an image"),
        ({"one": torch.zeros(1, 8, 8), "other": torch.zeros(1, 4, 4)}, "need one size"),
        ({"colours": torch.zeros(1, 3, 8, 8)}, r"\(height, width\) is needed"),
    ],
)
def test_rows_that_cannot_be_drawn_are_refused(rows, words):
    with pytest.raises(ValueError, match=words):
        plots.image_rows(rows)


def test_bars_to_both_sides_have_their_own_scales():
    parts = {
        "top": {"parameters": MIB, "activations": 900 * MIB},
        "bottom": {"parameters": 10 * MIB, "activations": 90 * MIB},
    }
    figure = plots.opposite_bars(parts, title="U-Net")
    widths = [bar.get_width() for bar in figure.axes[0].patches]
    assert widths == pytest.approx([-0.1, -1, 1, 0.1])
    assert figure.alt == (
        "U-Net, parameters and activations. top: 1.00 MiB and 900 MiB; "
        "bottom: 10.0 MiB and 90.0 MiB."
    )
    words = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert words == ["parameters, 11 MiB in all", "activations, 990 MiB in all"]
