"""The line of the user's code that is at work: none of PyTorch's, Python's or ours."""

import linecache
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

import torch

Frames = Iterable[tuple[FrameType, int]]

_OURS = Path(__file__).parent.parent
_MODELS = str(_OURS / "models")  # which learners read
_CALLERS = {"StepsSeen.run", "_predicted"}  # their caller is not a line of the step
_CONTENT = [str(_OURS.parent / name) for name in ("labs/checks", "course/ranks")]
_LIBRARIES = (str(Path(torch.__file__).parent), str(_OURS), *_CONTENT)
_PYTHON = sysconfig.get_path("stdlib")
_PACKAGES = sysconfig.get_path("purelib")  # it lies inside Python's own folder


def calling_line(frame: FrameType | None) -> str:
    """Name file and line of the innermost frame that is the user's, as in `train.py:7`."""
    for user, number in _of_the_user(traceback.walk_stack(frame)):
        return f"{_file(user)}:{number}"
    return ""


def line_in_words(frames: Frames) -> str:
    """Name the first of these lines that is the user's, with its code."""
    for frame, number in _of_the_user(frames):
        text = linecache.getline(frame.f_code.co_filename, number).strip()
        code = f" (`{text}`)" if text else ""
        return f"{_file(frame)}, line {number}, in {frame.f_code.co_name}{code},"
    return "make_step"


def line_at_work() -> str:
    """Name the innermost line of the user's that is at work now, with its code."""
    return line_in_words(traceback.walk_stack(None))


def _of_the_user(frames: Frames) -> Frames:
    for frame, number in frames:
        path = frame.f_code.co_filename
        of_python = path.startswith(_PYTHON) and not path.startswith(_PACKAGES)
        if path.startswith(str(_OURS)) and frame.f_code.co_qualname in _CALLERS:
            return
        of_library = path.startswith(_LIBRARIES) and not path.startswith(_MODELS)
        if not of_python and not of_library:
            yield frame, number


def _file(frame: FrameType) -> str:
    # A notebook's cell has a file name of its own, another one in every session.
    return Path(frame.f_code.co_filename).name if "__file__" in frame.f_globals else "cell"
