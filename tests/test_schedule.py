"""The picture of a schedule, against events written by hand."""

from dataclasses import dataclass

from matplotlib.patches import Rectangle

from tutorial_lib.instruments import figures, widgets
from tutorial_lib.plots.base import COLORS


@dataclass
class Event:
    kind: str
    stage: int
    keeps: bool
    held_bytes: int


# stages 0 and 1 are a segment, stage 2 is kept
EVENTS = [
    Event("forward", 0, False, 2),
    Event("forward", 1, False, 3),
    Event("forward", 2, True, 6),
    Event("backward", 2, False, 7),
    Event("recompute", 0, True, 5),
    Event("recompute", 1, True, 9),
    Event("backward", 1, False, 8),
    Event("backward", 0, False, 4),
]


def bars(**options):
    """What is held of which stage: colour, stage, first column and width."""
    axes = figures.schedule(EVENTS, **options).axes[0]
    names = {color: name for name, color in COLORS.items()}
    boxes = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    found = []
    for box in boxes:
        red, green, blue, _ = (round(255 * part) for part in box.get_facecolor())
        name = names[f"#{red:02X}{green:02X}{blue:02X}"]
        found.append((name, round(box.get_y() + 0.3), box.get_x(), box.get_width()))
    return found


def test_boundaries_and_what_is_kept_live_as_long_as_they_are_needed():
    assert bars() == [
        ("inputs", 0, 0, 8),  # of the segment: for the recomputation
        ("recomputed", 0, 4, 4),
        ("recomputed", 1, 5, 2),
        ("inputs", 2, 1, 3),  # between the segment and what is kept
        ("activations", 2, 2, 2),
    ]


def test_a_step_shows_what_has_happened_by_then():
    assert bars(step=3) == [("inputs", 0, 0, 3), ("inputs", 2, 1, 2), ("activations", 2, 2, 1)]
    alt = figures.schedule(EVENTS, step=5, title="by hand", unit=1).alt
    assert alt == (
        "by hand: 5 of 8 runs, 3 forwards and 1 recomputed ones; peak so far 7 units. "
        "Now stage 0 runs forward again."
    )


def test_the_stepper_moves_and_stays_within_a_shorter_schedule():
    stepper = widgets.schedule_stepper({"long": EVENTS, "short": EVENTS[:3]}, unit=1)
    assert stepper.sentence.startswith("long: 1 of 8 runs")
    slider = stepper.box.children[1]
    assert (slider.min, slider.value, slider.max) == (1, 1, 8)
    stepper.set(step=5)
    assert "Now stage 0 runs forward again" in stepper.sentence
    stepper.set(name="short")
    assert stepper.sentence.startswith("short: 3 of 3 runs")
    assert (slider.value, slider.max, stepper.values["step"]) == (3, 3, 3)
    stepper.set(name="long")
    assert (slider.value, slider.max) == (3, 8)
