"""Remote functions, which the judge's notebook holds in place of a student's."""

import functools
import gc
import json
import os
import socket
import time

from solutions.grader import wire
from tutorial_lib.checks.given import Case, CheckError, Result, outside

# An oracle that measures collects garbage dozens of times, 0.1 s each with torch's objects in view.
gc.freeze()

SOCKET_VARIABLE = "TUTORIAL_LIB_GRADE_SOCKET"
_CONNECT_SECONDS = 60.0


class SessionLost(RuntimeError):  # noqa: N818 - named for what happened
    """The session ended: no fault of the answer, so the submission is judged once more."""


class OutOfTime(CheckError):  # noqa: N818 - named for what happened
    """The answer was stopped for its time: no points, but a busy machine may be to blame."""


class RemoteFunction:
    """Names a function that an answer cell defines in the student's process, for a check alone."""

    def __init__(self, exercise: str, name: str) -> None:
        self.exercise, self.name = exercise, name

    def run_remotely(self, check: str, case: Case) -> Result | None:
        """Have the `run` half of a check done in the student's process.

        Its plain data may be anything, even malicious; it is None for a memory exam not held.

        Raises:
            CheckError: When the answer gave nothing usable; says why.
            OutOfTime: When the reason is its time.
            SessionLost: When the student's process could not be reached.
        """
        request = wire.Request(check, self.exercise, self.name, case)
        try:
            connection = _connection()
            connection.sendall(wire.frame(wire.REQUEST, wire.encode(vars(request))))
            counts = wire.read_frame(connection.recv, wire.TEXT_BYTES)[1]
            kind, content = wire.read_frame(connection.recv)
        except (OSError, wire.WireError) as error:
            raise SessionLost(str(error)) from error
        if kind in (wire.FAILURE, wire.TIMED_OUT):
            failed = OutOfTime if kind == wire.TIMED_OUT else CheckError
            raise failed(content.decode("utf-8", "replace"))
        if kind == wire.NOT_HELD:
            return None
        if kind != wire.RESULT:
            raise SessionLost("it ended without an answer.")
        try:
            result = wire.decode(content)
        except wire.WireError as error:
            raise CheckError(f"the result of your code cannot be read: {error}") from error
        if not isinstance(result, dict):
            raise CheckError("your code gave no result.")
        return result | {outside.COUNTS: json.loads(counts)}

    def __call__(self, *arguments: object, **options: object) -> None:
        """Refuse to be called: a student's code never runs in the judge's process."""
        raise CheckError(f"{self.name} can only be handed to a check while a lab is graded.")


@functools.cache
def _connection() -> socket.socket:
    give_up = time.monotonic() + _CONNECT_SECONDS
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(os.environ[SOCKET_VARIABLE])
        except OSError:
            connection.close()
            if time.monotonic() > give_up:
                raise
            time.sleep(0.02)  # the other side is still being started
        else:
            return connection


def hang_up() -> None:
    """End this process's session; the next request opens the one that is then named."""
    if _connection.cache_info().currsize:
        _connection().close()
    _connection.cache_clear()
