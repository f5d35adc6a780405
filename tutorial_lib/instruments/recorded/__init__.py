"""Recorded results as JSON files: the rows, the one command that makes them, readers.

`python -m tutorial_lib record` measures every row on this machine's GPU, or on an emulated card, or
predicts it. Chapters read the files. Rows, readers and files are content of `course/recorded/`, and
are found there.
"""

from pathlib import Path

from tutorial_lib import load_when_used

FOLDER = Path(__file__).resolve().parents[3] / "course" / "recorded"
_ROWS = FOLDER / "rows"
if not _ROWS.is_dir():
    raise ModuleNotFoundError(
        "recorded rows are in course/recorded of the course's folder, which an installed "
        "package leaves out: get a clone or the zip of the course, and run this there."
    )
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
