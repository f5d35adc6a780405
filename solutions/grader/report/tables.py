"""CSV files that instructors write by hand, export, or open."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from solutions.grader import GradingError

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_]|\][^\x07]*\x07)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_COMPUTED = ("=", "+", "-", "@", "\t", "\r", "\n")  # so begins what a spreadsheet would compute


def readable(text: str) -> str:
    """Take out colours, control characters and what no encoding can write."""
    plain = _CONTROL.sub("\ufffd", _ANSI.sub("", text))
    return plain.encode("utf-8", "backslashreplace").decode()


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write a table, whose first row has all columns.

    A text that a spreadsheet would compute gets an apostrophe.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _guarded(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _guarded(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = readable(value)
    is_computed = text.startswith(_COMPUTED) or value.startswith(_COMPUTED)
    return f"'{text}" if is_computed else text


def read_table(path: Path, wanted: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """Read a CSV file that a person wrote or a spreadsheet exported, by commas, semicolons or tabs.

    Of the spellings that are wanted, one column must have one. Each line that is not empty comes
    with its number, and its cells by column in small letters.

    Raises:
        GradingError: When the file cannot be read, or the column is missing.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "it is not in UTF-8")
        raise GradingError(f"{path} cannot be read ({why}): give a CSV file in UTF-8.") from error
    head = text.partition("\n")[0]
    reader = csv.DictReader(io.StringIO(text), delimiter=max(",;\t", key=head.count))
    there = [name.strip().lower() for name in reader.fieldnames or ()]
    if not set(wanted) & set(there):
        raise GradingError(
            f"{path} has the columns {', '.join(there) or 'of no table'}: it needs one called "
            f"{' or '.join(wanted)} in its first line."
        )
    lines = []
    for row in reader:
        cells = {str(name).strip().lower(): (value or "").strip()
                 for name, value in row.items() if not isinstance(value, list)}  # fmt: skip
        if any(cells.values()):
            lines.append((reader.line_num, cells))
    return lines
