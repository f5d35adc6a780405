"""Recorded results as JSON files: the rows, the one command that makes them, readers.

`python -m tutorial_lib record` measures every row on this machine's GPU, or on an emulated card, or
predicts it. Chapters read the files. Rows, readers and files are content of `course/recorded/`, and
are found there.
"""

from tutorial_lib import content, load_when_used

_ROWS = content("recorded/rows", __name__)
FOLDER = _ROWS.parent
__path__.append(str(_ROWS))
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
