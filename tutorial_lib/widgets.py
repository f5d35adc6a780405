"""Explorers: sliders over the course's figures, and the figure alone where no slider can be shown.

Every control is in ipywidgets since 7.7.1 and works from the keyboard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from html import escape
from math import inf
from numbers import Real
from typing import Any

from tutorial_lib.plots import CARDS_GIB, COLORS, CourseFigure, as_html, batch_grid, ledger_bars
from tutorial_lib.plots import schedule as draw_schedule
from tutorial_lib.units import GIB

VIEW = "application/vnd.jupyter.widget-view+json"
MODELS = {"124M": 124 * 10**6, "1.5B": 15 * 10**8, "7B": 7 * 10**9, "13B": 13 * 10**9}
MODELS["70B"] = 70 * 10**9


@dataclass(frozen=True)
class Control:
    """One thing to move: a slider over its options, a menu, or a box to tick for two truths."""

    label: str
    options: Sequence[Any]
    value: Any
    menu: bool = False

    def checked(self, name: str, value: Any) -> Any:
        """Return the option that equals the value, or raise `ValueError` naming the options."""
        # True == 1 for Python, but a tick is no number.
        same_kind = isinstance(value, bool) == (bool in map(type, self.options))
        if same_kind and value in self.options:
            return self.options[self.options.index(value)]
        needed = ", ".join(map(repr, self.options)) or "its options, of which there are none"
        raise ValueError(f"{name} (={value!r}) must be one of {needed}.")

    def widget(self, value: Any) -> Any:
        """Build the control of ipywidgets that stands at this value."""
        import ipywidgets

        look = {"style": {"description_width": "11em"}, "layout": {"width": "30em"}}
        common: dict[str, Any] = {"description": self.label, "value": value, **look}
        if isinstance(self.options[0], bool):
            return ipywidgets.Checkbox(**common)
        if self.menu:
            return ipywidgets.Dropdown(**common, options=self.options)
        common["continuous_update"] = False  # a drag is drawn once, at its end
        if isinstance(self.options, range):
            return ipywidgets.IntSlider(**common, min=self.options[0], max=self.options[-1])
        return ipywidgets.SelectionSlider(**common, options=self.options)


class Explorer:
    """A figure with controls: move one, and the figure and its sentence follow.

    Shown as the last value of a cell, it leaves the figure too, for readers without a kernel.

    Args:
        draw: From the value of every control, by name, to the figure.
        controls: By name.

    Raises:
        ValueError: When a first value is no option. What `draw` raises at first is raised too;
            what it raises later stands in place of the figure.
    """

    def __init__(self, draw: Callable[..., CourseFigure], controls: Mapping[str, Control]) -> None:
        self._draw = draw
        self._controls = controls
        self.values = {name: each.checked(name, each.value) for name, each in controls.items()}
        self._show(draw(**self.values))

    def _show(self, figure: CourseFigure) -> None:
        self.error: Exception | None = None
        self.sentence = figure.alt
        self.html = f"{as_html(figure)}<p>{escape(figure.alt)}</p>"

    def set(self, **values: Any) -> None:
        """Move controls by name, as a learner's hand would; the figure is drawn once.

        Raises:
            ValueError: When a name or a value is unknown; nothing has moved then.
        """
        if unknown := values.keys() - self._controls.keys():
            raise ValueError(f"unknown {sorted(unknown)}: try {', '.join(self._controls)}.")
        moved = {name: self._controls[name].checked(name, new) for name, new in values.items()}
        # The widgets moved below report back here: nothing is new then, nothing is drawn twice.
        if moved.items() <= self.values.items():
            return
        self.values |= moved
        try:
            self._show(self._draw(**self.values))
        except Exception as error:
            # Jupyter sends what a control's callback raises to a log that no learner opens.
            self.error = error
            self.sentence = f"No figure here, since this came: {type(error).__name__}: {error}"
            self.html = f'<p role="alert">{escape(self.sentence)}</p>'
        if "box" in self.__dict__:
            *widgets, picture = self.box.children
            for widget, value in zip(widgets, self.values.values(), strict=True):
                widget.value = value
            picture.value = self.html

    @cached_property
    def box(self) -> Any:
        """The controls above their figure, an `ipywidgets.VBox`; built when first asked for."""
        import ipywidgets

        widgets = [self._controls[name].widget(value) for name, value in self.values.items()]
        for name, widget in zip(self.values, widgets, strict=True):
            widget.observe(lambda change, name=name: self.set(**{name: change["new"]}), "value")
        return ipywidgets.VBox([*widgets, ipywidgets.HTML(self.html)])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/html": self.html, "text/plain": self.sentence}
        with suppress(ImportError):
            bundle[VIEW] = {"version_major": 2, "version_minor": 0, "model_id": self.box.model_id}
        return bundle


def batch_explorer(
    micro_batch: int = 8, accumulation_steps: int = 4, num_gpus: int = 2
) -> Explorer:
    """Explore one update: which samples one GPU holds at once, and how many the update sees.

    Args:
        micro_batch: Samples in memory at once, 1 to 16.
        accumulation_steps: Micro-batches per update, 1 to 8.
        num_gpus: GPUs side by side, 1 to 4.
    """
    controls = {
        "micro_batch": Control("micro-batch", range(1, 17), micro_batch),
        "accumulation_steps": Control("accumulation steps", range(1, 9), accumulation_steps),
        "num_gpus": Control("GPUs", range(1, 5), num_gpus),
    }
    return Explorer(batch_grid, controls)


def schedule_stepper(schedules: Mapping[str, Sequence[Any]], *, unit: int = 0) -> Explorer:
    """Step through schedules, one run of a stage after the other.

    Args:
        schedules: Name of each, and its events, as `plan.simulate(...).events` gives them.
        unit: Show bytes as multiples of this many; 0 for bytes.

    Raises:
        ValueError: When there is no schedule, or one without events.
    """
    if not schedules:
        raise ValueError("schedules is empty: give the events of at least one.")
    longest = max(map(len, schedules.values()))

    def draw(name: str, step: int) -> CourseFigure:
        events = schedules[name]
        return draw_schedule(events, step=min(step, len(events)), title=name, unit=unit)

    controls = {
        "name": Control("schedule", list(schedules), next(iter(schedules)), menu=True),
        "step": Control("step", range(1, longest + 1), longest),
    }
    return Explorer(draw, controls)


def memory_calculator(
    ledger: Callable[..., Mapping[str, int]],
    *,
    model: str = "7B",
    precision: str = "bf16 mixed",
    optimizer: str = "AdamW",
    micro_batch: int = 1,
    seq_len: int = 2048,
    checkpointing: bool = False,
    models: Mapping[str, int] = MODELS,
    precisions: Sequence[str] = ("fp32", "bf16 mixed", "bf16"),
    optimizers: Sequence[str] = ("SGD", "SGD momentum", "AdamW", "AdamW 8-bit"),
    micro_batches: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
    seq_lens: Sequence[int] = (512, 1024, 2048, 4096, 8192, 16384, 32768),
    cards_gib: Sequence[int] = CARDS_GIB,
) -> Explorer:
    """Explore what your own ledger says: the bytes of a training step, beside graphics cards.

    Args:
        ledger: Your function `ledger(num_parameters, precision, optimizer, *, micro_batch,
            seq_len, checkpointing)`, which returns bytes by category, the keys of `plots.COLORS`.
        model, precision, optimizer, micro_batch, seq_len, checkpointing: The first setting.
        models: Number of parameters by name.
        precisions, optimizers, micro_batches, seq_lens: Options; the ledger gets one of each.
        cards_gib: Memory of the cards to compare with, in GiB.
    """

    def draw(model: str, precision: str, optimizer: str, **step: Any) -> CourseFigure:
        parts = _checked_ledger(ledger(models[model], precision, optimizer, **step))
        title = f"{precision}, {optimizer}, {step['micro_batch']} x {step['seq_len']} tokens, "
        title += "checkpointed" if step["checkpointing"] else "not checkpointed"
        figure = ledger_bars({model: parts}, title=title, cards_gib=cards_gib)
        held = [f"{gib} GiB" for gib in cards_gib if sum(parts.values()) <= gib * GIB]
        if cards_gib:
            figure.alt += f" Large enough for these bytes: {', '.join(held) or 'none'}."
        return figure

    controls = {
        "model": Control("parameters", list(models), model),
        "precision": Control("precision", precisions, precision, menu=True),
        "optimizer": Control("optimizer", optimizers, optimizer, menu=True),
        "micro_batch": Control("micro-batch", micro_batches, micro_batch),
        "seq_len": Control("sequence length", seq_lens, seq_len),
        "checkpointing": Control("checkpointing", (False, True), checkpointing),
    }
    return Explorer(draw, controls)


def _checked_ledger(parts: Any) -> Mapping[str, int]:
    if isinstance(parts, Mapping) and all(
        name in COLORS and isinstance(num_bytes, Real) and 0 <= float(num_bytes) < inf
        for name, num_bytes in parts.items()
    ):
        return parts
    raise ValueError(f"ledger gave {parts!r}: return a dict of bytes for {', '.join(COLORS)}.")
