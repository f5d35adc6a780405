"""Parts of a picture with sliders that needs no kernel, in Vega-Lite: `CourseFigure.moving`."""

from typing import Any


def slider(name: str, label: str, value: int, options: range) -> dict[str, Any]:
    """Return a parameter of a Vega-Lite specification that a slider moves.

    Args:
        name: What formulas call it.
        label: Words to its left.
        value: Where it begins.
        options: What it goes over.

    Example:
        >>> slider("r", "r", 16, range(1, 41))["bind"]["max"]
        40
    """
    ends = {"min": options[0], "max": options[-1], "step": options.step}
    bind = {"input": "range", "name": f"{label} ", **ends}
    return {"name": name, "value": value, "bind": bind}


def formulas(**named: str) -> list[dict[str, str]]:
    """Return the transforms of a Vega-Lite specification that compute fields, one after the other.

    Example:
        >>> formulas(k="ceil(n / datum.s)")
        [{'calculate': 'ceil(n / datum.s)', 'as': 'k'}]
    """
    return [{"calculate": formula, "as": name} for name, formula in named.items()]
