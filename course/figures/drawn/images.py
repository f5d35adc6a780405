"""Figures of images and of networks for images: rows of small pictures, bars to both sides."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tutorial_lib.plots.base import CourseFigure, fill, new_figure
from tutorial_lib.units import binary_unit, human_bytes


def image_rows(rows: Mapping[str, Sequence[Any]], *, title: str = "") -> CourseFigure:
    """Draw rows of grey images, each row with its name. Black is -1, and white is 1.

    Args:
        rows: Name of each row; its images, `(height, width)` or `(1, height, width)`, of any
            number that NumPy can read. All images are of one size.
        title: Words above them.

    Raises:
        ValueError: When a row has no image, or an image is of another size.
    """
    pictures = {name: [_grey(image) for image in images] for name, images in rows.items()}
    sizes = {image.shape for images in pictures.values() for image in images}
    if not pictures or not all(pictures.values()) or len(sizes) != 1:
        raise ValueError(
            f"rows has images of sizes {sorted(sizes)} in rows of "
            f"{[len(images) for images in pictures.values()]}: each row needs an image, and all "
            "images need one size."
        )
    longest = max(map(len, pictures.values()))
    ((height, width),) = sizes
    # A white margin of an eighth to the right and below, so that images stand apart.
    gap_y, gap_x = max(1, height // 8), max(1, width // 8)
    shape = (len(rows) * (height + gap_y), longest * (width + gap_x))
    sheet = np.ones(shape)
    for row, images in enumerate(pictures.values()):
        for column, image in enumerate(images):
            top, left = row * (height + gap_y), column * (width + gap_x)
            sheet[top : top + height, left : left + width] = image
    figure, axes = new_figure(title, height=0.5 + 6.5 * sheet.shape[0] / sheet.shape[1])
    axes.imshow(sheet, cmap="gray", vmin=-1, vmax=1, interpolation="nearest")
    middles = [row * (height + gap_y) + height / 2 for row in range(len(rows))]
    axes.set_yticks(middles, list(rows), fontsize=9)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.is_photo = True
    each = "; ".join(f"{name}: {len(images)} images" for name, images in pictures.items())
    figure.alt = f"{title or 'Images'}. {each}."
    return figure


def opposite_bars(parts: Mapping[str, Mapping[str, int]], *, title: str = "") -> CourseFigure:
    """Draw parameters and activations of a network's parts to both sides, in the order they run.

    Each side has a scale of its own: it is the two shapes that are compared.

    Args:
        parts: Name of each part, first to run first; its bytes by category.
        title: Words above it.

    Raises:
        ValueError: When no part has any bytes of a side.
    """
    left, right = "parameters", "activations"
    sides = {side: [part.get(side, 0) for part in parts.values()] for side in (left, right)}
    for side, sizes in sides.items():
        if max(sizes, default=0) <= 0:
            raise ValueError(f"no part has bytes of {side}: give at least one that has.")
    figure, axes = new_figure(title, height=1.0 + 0.33 * len(parts))
    for side, sign, words in ((left, -1, "right"), (right, 1, "left")):
        largest = max(sides[side])
        for row, size in enumerate(sides[side]):
            axes.barh(row, sign * size / largest, height=0.7, **fill(side))
            place = (sign * (size / largest + 0.02), row)
            axes.text(*place, human_bytes(size), ha=words, va="center", fontsize=8)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(parts)), list(parts), fontsize=9)
    axes.set(xlim=(-1.3, 1.3), ylim=(len(parts) - 0.5, -0.5))
    axes.set_xticks([-0.5, 0.5], [_axis(side, sides[side]) for side in (left, right)])
    axes.tick_params(length=0)
    axes.spines["bottom"].set_visible(False)
    each = "; ".join(
        f"{name}: {human_bytes(part.get(left, 0))} and {human_bytes(part.get(right, 0))}"
        for name, part in parts.items()
    )
    figure.alt = f"{title or 'Parts of a network'}, {left} and {right}. {each}."
    return figure


def _grey(image: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    grey: np.ndarray[Any, np.dtype[np.float64]] = np.asarray(image, dtype=np.float64)
    grey = grey[0] if grey.ndim == 3 and len(grey) == 1 else grey
    if grey.ndim != 2:
        raise ValueError(f"an image has shape {grey.shape}; (height, width) is needed.")
    return grey


def _axis(side: str, sizes: Sequence[int]) -> str:
    unit, size = binary_unit(sum(sizes))
    return f"{side.replace('_', ' ')}, {sum(sizes) / size:.3g} {unit} in all"
