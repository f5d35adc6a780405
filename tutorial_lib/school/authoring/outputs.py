"""Stored outputs, and the traces of one machine, moment or run that they must not hold."""

import re
from collections.abc import Iterator

from nbformat import NotebookNode

IGNORE_MARK = "# NBVAL_IGNORE_OUTPUT"

_BASE64 = re.compile(r"base64,[A-Za-z0-9+/=\s]+")
_MARKUP = re.compile(r"<(style|script)\b.*?</\1>|<[^>]+>", re.DOTALL | re.IGNORECASE)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")

_TRACES = {
    "a path of one machine": re.compile(
        r"(?<![\w.~/<-])/(?:home|work|tmp|root|Users|private)\b(?![.-]\w)"
        r"|\b[A-Za-z]:\\+Users\b|\bsite-packages\b"
    ),
    "a time stamp": re.compile(r"\b\d{1,2}:\d{2}:\d{2}\b|\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d"),
    "a memory address": re.compile(r"\bat 0x[0-9A-Fa-f]+|\b0x[0-9A-Fa-f]{9,16}\b"),
}
_DURATION = re.compile(
    r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)?\s?"
    r"(?:ns|µs|μs|us|ms|s|secs?|seconds?|mins?|minutes?|it/s|s/it)\b(?![-/=(])"
)


def problems(notebook: NotebookNode, name: str) -> list[str]:
    """List the stored outputs of a notebook that would differ on another machine or day."""
    return [
        f"{name}, cell {cell.id!r}: the output {problem}"
        for cell in notebook.cells
        if cell.cell_type == "code"
        for problem in _cell_problems(cell)
    ]


def _cell_problems(cell: NotebookNode) -> Iterator[str]:
    may_raise = "raises-exception" in cell.metadata.get("tags", [])
    traces = _TRACES if IGNORE_MARK in cell.source else {**_TRACES, "a duration": _DURATION}
    for output in cell.outputs:
        if output.output_type == "error" and not may_raise:
            yield f"is an error ({output.ename}); correct the cell."
            continue
        if output.output_type == "stream" and output.name == "stderr":
            said = output.text.strip().split("\n")[0][:60]
            yield f"has text on stderr ({said!r}); keep the cell quiet."
            continue
        text = "\n\n".join(_texts(output))
        for what, pattern in traces.items():
            if seen := pattern.search(text):
                yield (
                    f"holds {what} ({seen[0]!r}); print what is the same on every machine"
                    f"{f', or begin the cell with {IGNORE_MARK}' if pattern is _DURATION else ''}."
                )


def _texts(output: NotebookNode) -> list[str]:
    if output.output_type == "stream":
        return [output.text]
    if output.output_type == "error":
        return [_ANSI.sub("", "\n".join(output.traceback)), output.evalue]
    readable = []
    for mime, content in output.data.items():
        if mime.startswith("text/") or mime in ("image/svg+xml", "application/json"):
            text = _BASE64.sub("", str(content))
            readable.append(_MARKUP.sub(" ", text) if mime == "text/html" else text)
            readable += re.findall(r"\b(?:alt|src|href|title)=\"([^\"]*)\"", text)
    return readable
