"""Recorded results as JSON files: the rows, the one command that makes them, readers.

`python -m tutorial_lib record` measures every row on this machine's GPU; with `--emulated t4` it
runs them on an emulated card; with `--predict` it predicts them, on any machine. Chapters read
the files, so that a reader without a GPU sees what one with a GPU measured.
"""

from tutorial_lib.recorded.record import record_rows
from tutorial_lib.recorded.rows import Row, find_rows
from tutorial_lib.recorded.store import Recording, emulated, load, measured, path_of, read

__all__ = [
    "Recording",
    "Row",
    "emulated",
    "find_rows",
    "load",
    "measured",
    "path_of",
    "read",
    "record_rows",
]
