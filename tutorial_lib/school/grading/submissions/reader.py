"""Takes the cells out of a notebook file that anybody may have written.

What JSON holds can take thirty times its bytes in memory. So the grader never parses a submission
itself: it runs this file as a program, which limits its own memory and time, reads the submission
from its standard input, and writes one line of JSON: the few things of each cell that grading
reads. It imports nothing of this library, so that it starts in a hundredth of a second.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
from collections.abc import Mapping
from typing import Any

# Far more than an answer needs. Splitting or tokenizing a text takes hundreds of times its bytes.
MOST_CHARACTERS = 50_000
MEMORY_BYTES, CPU_SECONDS = 512 * 1024**2, 20
_MOST_CELLS, _MOST_CHARACTERS_IN_ALL = 5_000, 4_000_000
_NAME_CHARACTERS = 200


def raw_cells(notebook: Any) -> list[dict[str, Any]] | None:
    """List the cells of a parsed notebook, or None when it is no notebook.

    Cells that are not even a dictionary are left out; nbformat 3 keeps its cells in worksheets.
    """
    if not isinstance(notebook, dict):
        return None
    raw = notebook.get("cells")
    if raw is None and isinstance(notebook.get("worksheets"), list):
        sheets = [sheet for sheet in notebook["worksheets"] if isinstance(sheet, dict)]
        raw = [cell for sheet in sheets for cell in _list(sheet.get("cells"))]
    if not isinstance(raw, list):
        return None
    return [cell for cell in raw if isinstance(cell, dict)]


def essentials(raw: Mapping[str, Any]) -> tuple[str, str, list[str]]:
    """Give a cell's kind, its text, and its names: cell id, nbgrader's grade_id and Colab's id."""
    source = raw.get("source", raw.get("input", ""))
    if isinstance(source, list):
        source = "".join(part for part in source if isinstance(part, str))
    metadata = _dict(raw.get("metadata"))
    names = (raw.get("id"), _dict(metadata.get("nbgrader")).get("grade_id"), metadata.get("id"))
    kind = raw.get("cell_type")
    return (
        kind if isinstance(kind, str) else "",
        source if isinstance(source, str) else "",
        [name for name in names if isinstance(name, str) and 0 < len(name) <= _NAME_CHARACTERS],
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def read(content: bytes) -> dict[str, Any]:
    """Read a file: `cells`, or else `status` and `reason`."""
    try:
        # bytes, not text: json then accepts a byte order mark, and UTF-16 by its zeros
        raw = raw_cells(json.loads(content))
    except (ValueError, RecursionError, MemoryError) as error:
        wrong = _what_is_wrong(content, error)
        return _refusal(
            "unreadable", f"The file {wrong}: save the notebook again and hand that in."
        )
    if raw is None:
        return _refusal("not a notebook", "The file is JSON, but it has no list of cells.")
    cells, total = [], 0
    for kind, source, names in map(essentials, raw[:_MOST_CELLS]):
        # one character too many, so that a text that is too long can still be told as such
        cells.append((kind[:_NAME_CHARACTERS], source[: MOST_CHARACTERS + 1], names))
        total += len(cells[-1][1])
    if len(raw) > _MOST_CELLS or total > _MOST_CHARACTERS_IN_ALL:
        return _refusal(
            "too large",
            f"The file has {len(raw):,} cells, and {total:,} characters in the first of them: "
            f"{_MOST_CELLS:,} cells and {_MOST_CHARACTERS_IN_ALL:,} characters are read. Delete "
            "what is no part of the lab.",
        )
    return {"cells": cells}


def _refusal(status: str, reason: str) -> dict[str, Any]:
    return {"status": status, "reason": reason}


def _what_is_wrong(content: bytes, error: BaseException) -> str:
    if not content.strip(b"\0 \t\r\n"):
        return "is empty"
    before, marker, _ = content.partition(b"\n<<<<<<< ")
    if marker:
        line = before.count(b"\n") + 2
        return f"holds two versions at once (a conflict mark of git stands in line {line})"
    if isinstance(error, MemoryError):
        return "takes too much memory to read"
    if isinstance(error, UnicodeDecodeError):
        byte = error.object[error.start]
        return f"is not in UTF-8 (byte 0x{byte:02x} at position {error.start})"
    if b"\0" in content:
        return f"is damaged (a zero byte at position {content.index(0)})"
    if isinstance(error, json.JSONDecodeError):
        return f"is not valid JSON (line {error.lineno}, column {error.colno})"
    return "is not valid JSON"


def limit_this_process() -> None:
    """Be ended by the system where too much memory or time would be taken."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))


def main() -> None:
    """Answer for one file."""
    limit_this_process()
    gc.disable()  # JSON holds no circles, and looking for them takes seconds
    json.dump(read(sys.stdin.buffer.read()), sys.stdout)


if __name__ == "__main__":
    main()
