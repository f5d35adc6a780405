"""Stored outputs, and the traces of one machine, moment or run that they must not hold."""

import re

from nbformat import NotebookNode

IGNORE_MARK = "# NBVAL_IGNORE_OUTPUT"

_BASE64 = re.compile(r"base64,[A-Za-z0-9+/=\s]+")
_MARKUP = re.compile(r"<(style|script)\b.*?</\1>|<[^>]+>", re.DOTALL | re.IGNORECASE)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")

_ANYWHERE = (
    (
        "a path of one machine",
        re.compile(
            r"(?<![\w.~/<-])/(?:home|work|tmp|root|Users|private)\b(?![.-]\w)"
            r"|\b[A-Za-z]:\\+Users\b|\bsite-packages\b"
        ),
    ),
    ("a time stamp", re.compile(r"\b\d{1,2}:\d{2}:\d{2}\b|\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d")),
    ("a memory address", re.compile(r"\bat 0x[0-9A-Fa-f]+|\b0x[0-9A-Fa-f]{9,16}\b")),
)
_UNLESS_IGNORED = (
    (
        "a duration",
        re.compile(
            r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)?\s?"
            r"(?:ns|µs|μs|us|ms|s|secs?|seconds?|mins?|minutes?|it/s|s/it)\b(?![-/=(])"
        ),
    ),
)


def problems(notebook: NotebookNode, name: str) -> list[str]:
    """List the stored outputs of a notebook that would differ on another machine or day."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            where = f"{name}, cell {cell.id!r}"
            found += [f"{where}: {problem}" for problem in _cell_problems(cell)]
    return found


def _cell_problems(cell: NotebookNode) -> list[str]:
    found = []
    patterns = _ANYWHERE if IGNORE_MARK in cell.source else _ANYWHERE + _UNLESS_IGNORED
    for output in cell.outputs:
        if output.output_type == "error" and "raises-exception" not in cell.metadata.get(
            "tags", []
        ):
            found.append(f"the output is an error ({output.ename}); correct the cell.")
            continue
        if output.output_type == "stream" and output.name == "stderr":
            said = output.text.strip().split("\n")[0][:60]
            found.append(f"the output has text on stderr ({said!r}); keep the cell quiet.")
            continue
        for what, pattern in patterns:
            seen = next(filter(None, (pattern.search(text) for text in _texts(output))), None)
            if seen:
                found.append(f"the output holds {what} ({seen[0]!r}); {_advice(what)}.")
    return found


def _advice(what: str) -> str:
    if what == "a duration":
        return f"print what stays the same, or begin the cell with {IGNORE_MARK}"
    return "print what is the same on every machine"


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
