"""Recorded results as JSON files: the rows, the one command that makes them, readers.

`python -m tutorial_lib record` measures every row on this machine's GPU; with `--emulated t4` it
runs them on an emulated card; with `--predict` it predicts them, on any machine. Chapters read
the files, so that a reader without a GPU sees what one with a GPU measured.
"""

from tutorial_lib.instruments import load_when_used

__all__, __getattr__ = load_when_used(
    __name__,
    {
        "grid": "tried",
        "handed_in": "faults",
        "record": "record_rows",
        "rows": "Row find_rows",
        "store": "Recording emulated load path_of read",
    },
)
