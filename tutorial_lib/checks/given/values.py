"""Plain data: what passes between an answer's process and the judge's, and what a refusal is."""

import operator
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Answer = Callable[..., Any]
Case = Mapping[str, Any]
Result = Mapping[str, Any]


_WRAPPER = textwrap.TextWrapper(
    80, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
)


class CheckError(AssertionError):
    """An answer did not pass: says what was seen, what was wanted and what to try."""

    def _render_traceback_(self) -> list[str]:
        """Show the message alone; JupyterLab would break a long line within a word."""
        lines = f"CheckError: {self}".splitlines()
        return [part for line in lines for part in _WRAPPER.wrap(line) or [""]]


@dataclass(frozen=True)
class Opaque:
    """A value that is not plain data: only the name of its type is kept."""

    type_name: str


def plain(value: Any) -> Any:
    """Reduce a value to what may cross between processes: numbers, text, tensors, containers."""
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        value = value.tolist()  # as good as Python's own numbers and lists
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, float):
        return float(value)
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu").clone()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(type(value), "__index__"):
        return int(operator.index(value))
    return Opaque(type(value).__name__)
