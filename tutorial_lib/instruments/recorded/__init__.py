"""Recorded results as JSON files: the rows, the one command that makes them, readers.

`python -m tutorial_lib record` measures every row on this machine's GPU; with `--emulated t4` it
runs them on an emulated card; with `--predict` it predicts them, on any machine. Chapters read
the files, so that a reader without a GPU sees what one with a GPU measured.
"""

from tutorial_lib.instruments import load_when_used

_HOMES = {
    "Recording": "store",
    "Row": "rows",
    "emulated": "store",
    "faults": "handed_in",
    "find_rows": "rows",
    "load": "store",
    "path_of": "store",
    "read": "store",
    "record_rows": "record",
    "tried": "grid",
}
__all__ = list(_HOMES)
__getattr__ = load_when_used(__name__, _HOMES)
