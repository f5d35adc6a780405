"""A figure with controls; the figure alone where no control can be shown.

Every control is in ipywidgets since 7.7.1 and works from the keyboard.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

from tutorial_lib.plots.base import CourseFigure, as_html

VIEW = "application/vnd.jupyter.widget-view+json"


@dataclass(frozen=True)
class Control:
    """One thing to move: a slider over its options, a menu, or a box to tick for two truths."""

    label: str  # its name, to its left
    options: Sequence[Any]  # what it goes over
    value: Any  # where it begins
    menu: bool = False
    # where a slider over a range ends, from the values of the other controls
    last: Callable[[Mapping[str, Any]], int] | None = None

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

        look = {"style": {"description_width": "11em"}, "layout": {"width": "98%"}}
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
        draw: From the value of every control, by name, to the figure; or to a sentence that says
            why there is none.
        controls: By name.

    Raises:
        ValueError: When a first value is no option. What `draw` raises at first is raised too;
            what it raises later stands in place of the figure.
    """

    def __init__(
        self, draw: Callable[..., CourseFigure | str], controls: Mapping[str, Control]
    ) -> None:
        self._draw = draw
        self._controls = controls
        self.values = {name: each.checked(name, each.value) for name, each in controls.items()}
        self._fit()
        self._show(draw(**self.values))

    def _fit(self) -> None:
        """End each slider where the other controls' values say, and move its value below that."""
        for name, control in self._controls.items():
            if control.last:
                last = control.last(self.values)
                self.values[name] = min(self.values[name], last)
                if "box" in self.__dict__:
                    self.box.children[list(self._controls).index(name)].max = last

    def _show(self, shown: CourseFigure | str, error: Exception | None = None) -> None:
        self.error = error
        if isinstance(shown, str):
            self.sentence, self.html = shown, f'<p role="alert">{escape(shown)}</p>'
        else:
            self.sentence, self.html = shown.alt, f"{as_html(shown)}<p>{escape(shown.alt)}</p>"

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
        self._fit()
        try:
            self._show(self._draw(**self.values))
        except Exception as error:
            # Jupyter sends what a control's callback raises to a log that no learner opens.
            self._show(f"No figure here, since this came: {type(error).__name__}: {error}", error)
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
        self.__dict__["box"] = ipywidgets.VBox([*widgets, ipywidgets.HTML(self.html)])
        self._fit()
        return self.__dict__["box"]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/html": self.html, "text/plain": self.sentence}
        with suppress(ImportError):
            bundle[VIEW] = {"version_major": 2, "version_minor": 0, "model_id": self.box.model_id}
        return bundle
