"""The run half of a check: all that touches an answer, and all that an answer's process sees.

In a notebook it runs in place. A grader runs it in the answer's own process, where nothing else of
the check is, and only plain data comes back to be judged.
"""

import contextlib
import inspect
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn
from unittest import mock

from tutorial_lib.blanks import raises_blank
from tutorial_lib.checks.given.forbid import Forbidden, refused
from tutorial_lib.checks.given.settings import quietly
from tutorial_lib.checks.given.values import Answer, Case, CheckError, Result, plain
from tutorial_lib.memory.private_torch import active_modes

Run = Callable[[Answer, Case], Result]
# In the case of a memory exam: what the step may use beyond what is there before it.
EXAM_BYTES = "exam_bytes"
ANEW = "anew"  # of a case that a grader runs in a fresh process: what seeds it before all cells
# An answer's process does not know which case it runs: the check replaces this mark.
HOW_TO_CALL = "(how to call it)"
_BLANK = re.compile(r"exercise (?P<number>\d+(?:\.\d+)*):")
_LAB = re.compile(r"\.(\w+)\.given\b")


@dataclass(frozen=True, eq=False)
class RunHalf:
    """A function that runs an answer on a case, and what surrounds its call."""

    name: str  # its lab's and its own, as in `lab01.parameter_bytes`
    exercise: str  # the exercise's mark, as in `1.1`
    function: Run  # called with an answer and a case; returns plain data
    forbidden: Sequence[Forbidden] = ()
    exam: Run | None = None  # for memory exams (see `given.exam`), of graders alone
    threads: bool = False  # whether it starts some itself; else a grader lets nobody do so

    def run(self, answer: Answer, case: Case) -> Result:
        """Run an answer on a case, or on a memory exam's."""
        if self.exam is not None and EXAM_BYTES in case:
            return self.exam(answer, case)
        return self.function(answer, case)


def run_half(
    exercise: str,
    *,
    forbidden: Sequence[Forbidden] = (),
    exam: Run | None = None,
    threads: bool = False,
) -> Callable[[Run], RunHalf]:
    """Make a function of a lab's `given` the run half of its name; for the rest, see `RunHalf`."""

    def as_half(function: Run) -> RunHalf:
        found = _LAB.search(function.__module__)
        if found is None:
            raise ValueError(
                f"{function.__name__} is defined in {function.__module__}, but a run half belongs "
                "in a lab's `given`: an answer's process sees nothing else."
            )
        name = f"{found[1]}.{function.__name__}"
        return RunHalf(name, exercise, function, forbidden, exam, threads)

    return as_half


def run_in_place(half: RunHalf, answer: Answer, case: Case) -> Result:
    """Run a half here; prints, warnings and the RNG of the caller stay undisturbed.

    Raises:
        CheckError: When the answer is no function, is blank, or raises.
    """
    if not callable(answer):
        raise CheckError(
            f"exercise {half.exercise} needs a function, but got {type(answer).__name__}: "
            "was its name used for something else?"
        )
    with quietly() as printed, _in_one_thread():
        try:
            with refused(half.forbidden, CheckError):
                return {key: plain(value) for key, value in half.run(answer, case).items()}
        except CheckError:
            raise
        except Exception as error:
            if isinstance(error, NotImplementedError) and _is_blank(answer, error):
                raise CheckError(_still_blank(half.exercise, error)) from error
            said = f"\nIt printed:\n{printed.end}" if printed.end else ""
            raise CheckError(
                f"your function raised {type(error).__name__}: {error}\n{HOW_TO_CALL}{said}"
            ) from error


class StartsAnotherError(CheckError, PermissionError):
    """A thread or a process was refused; a library may catch it as the system's own refusal."""


def refuse_thread(*_: Any, **__: Any) -> NoReturn:
    """Raise a CheckError in the place of what starts a thread, a process or a program."""
    raise StartsAnotherError(
        "your code starts another thread or process, and what is done there is not counted: do the "
        "work in the thread that calls your function."
    )


@contextlib.contextmanager
def _in_one_thread() -> Iterator[None]:
    """Refuse new threads and programs where a meter is on: it sees what its own thread does."""

    def seen(start: Callable[..., None]) -> Callable[..., None]:
        def start_unseen(*args: Any, **kwargs: Any) -> None:
            if active_modes():
                refuse_thread()
            start(*args, **kwargs)

        return start_unseen

    thread, program = threading.Thread, subprocess.Popen
    with (
        mock.patch.object(thread, "start", seen(thread.start)),
        mock.patch.object(program, "__init__", seen(program.__init__)),
    ):
        yield


def _is_blank(answer: Callable[..., Any], error: NotImplementedError) -> bool:
    code = getattr(inspect.unwrap(answer), "__code__", None)  # a decorated one shows its wrapper
    return bool(_BLANK.match(str(error)) or (code and raises_blank(code)))


def _still_blank(exercise: str, error: NotImplementedError) -> str:
    # A blank says which exercise it is: an answer may call an earlier one that is still blank.
    said = _BLANK.match(str(error))
    blank = said["number"] if said else exercise
    called = "" if blank == exercise else f", and your answer to {exercise} calls it"
    return (
        f"exercise {blank} is still blank{called}: replace the line that raises "
        "NotImplementedError, run that cell, then this one."
    )
