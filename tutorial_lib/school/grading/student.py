"""What happens in a student's process: set-up, answer cells, then the `run` half of one check.

Nothing here decides anything. Everything that this process sends is a claim, which the judge
weighs elsewhere; a student's code may therefore change whatever it likes in here.
"""

from __future__ import annotations

import contextlib
import importlib
import linecache
import os
import signal
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from IPython.core.inputtransformer2 import TransformerManager

from tutorial_lib.checks.core import Check, CheckError, run_in_place
from tutorial_lib.school.grading.needs import needed, used_names
from tutorial_lib.school.grading.wire import encode, frame

STEP, RESULT, FAILURE = b"S", b"R", b"F"
ERROR_CHARACTERS = 4000

_NO_PYTHON = (
    "bash",
    "sh",
    "script",
    "html",
    "HTML",
    "javascript",
    "js",
    "svg",
    "latex",
    "markdown",
)


class Shell:
    """What `get_ipython()` gives an answer cell: magics do nothing, timed cells still run."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.user_ns = namespace

    def run_cell_magic(self, name: str, line: str, body: str) -> None:
        """Run the body of `%%time` and the like; leave out cells in another language."""
        if name not in (*_NO_PYTHON, "writefile"):
            run_cell(body, f"<%%{name}>", self.user_ns)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Take any other call, such as a line magic or `!command`, and do nothing."""
        return lambda *arguments, **options: None


def run_cell(source: str, name: str, namespace: dict[str, Any]) -> None:
    """Execute a cell as a notebook would; `inspect.getsource` works on what it defines."""
    python = TransformerManager().transform_cell(source)  # magics become calls
    linecache.cache[name] = (len(python), None, python.splitlines(keepends=True), name)
    exec(compile(python, name, "exec", dont_inherit=True), namespace)


def find_check(package: str, name: str) -> Check:
    """Find a check by its name, as in `lab01.parameter_bytes`.

    Raises:
        LookupError: When the name leads to anything but a check.
    """
    module, _, attribute = name.partition(".")
    if not (module.isidentifier() and attribute.isidentifier()):
        raise LookupError(f"{name!r} is not the name of a check.")
    check = getattr(importlib.import_module(f"{package}.{module}"), attribute, None)
    if not isinstance(check, Check):
        raise LookupError(f"{package}.{name} is not a check.")
    return check


def work(
    pipe: int, steps: Sequence[Mapping[str, Any]], request: Mapping[str, Any], package: str
) -> NoReturn:
    """Run the cells, then the check; sends what came of it through the pipe and ends the process.

    Args:
        pipe: Where messages are written.
        steps: Cells in order, each with `exercise` (None for set-up) and `source`.
        request: `check`, `exercise`, `name` and `case`, as the `RemoteFunction` asked.
        package: Where checks are found.
    """

    def send(kind: bytes, content: bytes) -> None:
        rest = memoryview(frame(kind, content))
        while rest:
            rest = rest[os.write(pipe, rest) :]

    try:
        send(RESULT, encode(_result(steps, request, package, send)))
    except CheckError as error:
        send(FAILURE, _text(str(error)))
    except BaseException as error:  # whatever it is, the process ends with a message
        send(FAILURE, _text(f"your code stopped with {describe(error)}"))
    finally:
        os._exit(0)


def _result(
    steps: Sequence[Mapping[str, Any]],
    request: Mapping[str, Any],
    package: str,
    send: Callable[[bytes, bytes], None],
) -> Any:
    check = find_check(package, request["check"])
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    namespace = vars(main)
    namespace["get_ipython"] = lambda: Shell(namespace)
    namespace["display"] = lambda *things, **options: None
    stopped = ""
    for number, (step, source) in enumerate(zip(steps, _cut(steps, send), strict=True)):
        send(STEP, str(number).encode())
        try:
            run_cell(source, step["file"], namespace)
        except BaseException as error:  # sys.exit() included: later cells still run in a notebook
            if step["exercise"] == request["exercise"]:
                stopped = describe(error)
    send(STEP, str(len(steps)).encode())
    name = request["name"]
    if name not in namespace:
        reason = f"stopped with {stopped}" if stopped else f"does not define {name}"
        raise CheckError(f"your answer cell for exercise {request['exercise']} {reason}.")
    return run_in_place(check, namespace[name], request["case"])


def _cut(steps: Sequence[Mapping[str, Any]], send: Callable[[bytes, bytes], None]) -> list[str]:
    """Cut the set-up down to what the answers need; the answers stay whole."""
    used = []
    for number, step in enumerate(steps):
        send(STEP, str(number).encode())  # hostile text may end the process that parses it
        used.append(set() if step["exercise"] is None else used_names(_python(step["source"])))
    setup = needed(["" if step["exercise"] else step["source"] for step in steps], used)
    return [
        step["source"] if step["exercise"] else part
        for step, part in zip(steps, setup, strict=True)
    ]


def _python(source: str) -> str:
    while source.lstrip().startswith("%%"):  # what stands below a cell magic is looked at too
        source = source.lstrip().partition("\n")[2]
    try:
        return str(TransformerManager().transform_cell(source))
    except Exception:  # running the cell will say what is wrong with it
        return source


def describe(error: BaseException) -> str:
    """Name an error in one line, with the line of the cell where that is known."""
    message = "(it has no readable message)"
    with contextlib.suppress(BaseException):
        message = str(error)
    line = getattr(error, "lineno", None)
    trace = error.__traceback__
    while line is None and trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith("<"):
            line = trace.tb_lineno
        trace = trace.tb_next
    where = f" in line {line}" if isinstance(line, int) else ""
    return f"{type(error).__name__}{where}: {message}"


def _text(text: str) -> bytes:
    return text[:ERROR_CHARACTERS].encode("utf-8", "replace")


def quiet(descriptors: Sequence[int]) -> None:
    """Send what is read and printed nowhere, and give signals their plain meaning back."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
