"""What happens in a student's process: set-up, answer cells, then the `run` half of one check.

Nothing here decides anything. Everything that this process sends is a claim, which the judge
weighs elsewhere; a student's code may therefore change whatever it likes in here.
"""

from __future__ import annotations
import __future__

import ast
import asyncio
import contextlib
import dataclasses
import functools
import importlib
import inspect
import linecache
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from IPython.core.inputtransformer2 import TransformerManager

from solutions.grader import wire
from solutions.grader.submissions.slice_cells import WRITES_A_FILE, cut, untimed
from tutorial_lib.checks.given import Case, CheckError, Result, RunHalf, forbid, outside
from tutorial_lib.checks.given.half import ANEW, refuse_thread, run_in_place
from tutorial_lib.checks.given.seal import EXCHANGED, Seal, places

ERROR_CHARACTERS = 4000
_NAP_SECONDS = 0.01  # of a cell, which runs anew for each check
_STARTS: list[tuple[Any, str]] = [(threading.Thread, "start"), (subprocess.Popen, "__init__")]
_STARTS += [(os, name) for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp", "system")]
_FUTURE = __future__.annotations.compiler_flag  # the others are no choice any more


class Shell:
    """What `get_ipython()` gives an answer cell: magics do nothing, timed cells still run."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.user_ns = namespace

    def run_line_magic(self, name: str, line: str) -> None:
        """Run a file that an earlier cell has written; do nothing for any other magic."""
        if name == "run":
            run_cell(Path(line.split()[0]).read_text("utf-8"), line.split()[0], self.user_ns)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Take any other call, such as `!command`, and do nothing."""
        return lambda *arguments, **options: None


def run_cell(source: str, name: str, namespace: dict[str, Any], flags: int = 0) -> int:
    """Execute a cell as a notebook would; `inspect.getsource` works on what it defines.

    The flags say what cells above import from `__future__`; return those for the cells below.
    """
    if source.lstrip().startswith(WRITES_A_FILE):
        magic, _, text = source.lstrip().partition("\n")
        with Path(magic.split()[-1]).open("a" if "-a" in magic.split() else "w") as file:
            file.write(text)
        return flags
    python, flags_here = untimed(source), flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        code = compile(python, name, "exec", flags_here, dont_inherit=True)
    except SyntaxError:
        python = TransformerManager().transform_cell(python)  # magics become calls
        code = compile(python, name, "exec", flags_here, dont_inherit=True)
    linecache.cache[name] = (len(python), None, python.splitlines(keepends=True), name)
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(code, namespace))
    else:
        exec(code, namespace)
    return flags | int(code.co_flags & _FUTURE)


def find_half(package: str, name: str) -> RunHalf:
    """Find the run half of a check, as in `lab01.parameter_bytes`; all else is a LookupError."""
    lab, _, attribute = name.partition(".")
    if lab.isidentifier() and attribute.isidentifier():
        found = getattr(importlib.import_module(f"{package}.{lab}"), attribute, None)
        half = getattr(found, "half", found)  # with a whole check around it, where there is one
        if isinstance(half, RunHalf):
            return half
    raise LookupError(f"{package}.{name} is not a check.")


watched_places = functools.cache(lambda: places(globals()))  # found once, before any fork


@dataclasses.dataclass(frozen=True)
class Work:
    """What a student's process does."""

    steps: Sequence[Mapping[str, Any]]  # cells in order
    request: wire.Request  # what the `RemoteFunction` asked
    whole: bool  # whether the student's own cells are left whole
    sources: Sequence[str] | None  # what of the cells is run, where that is known


def do(work: Work, half: RunHalf, channel: int, marks: wire.Marks) -> NoReturn:
    """Run the cells, then the check's cases as they come, as in a notebook; end the process.

    What comes of a case is sent with its mark. The first failure is the end.
    """
    one_by_one = threading.Lock()  # threads of an answer may call what is counted

    def send(kind: bytes, content: bytes) -> None:
        with one_by_one:
            rest = memoryview(marks.marked(kind, content))
            while rest:
                rest = rest[os.write(channel, rest) :]

    def fail(why: str) -> None:
        send(wire.FAILURE, why[:ERROR_CHARACTERS].encode("utf-8", "replace"))

    try:
        case = work.request.case
        for seed in (random.seed, np.random.seed, torch.manual_seed) if ANEW in case else ():
            seed(case[ANEW])  # all generators, as in another session, whose numbers are others
        run = _prepared(work, half, send)
        while True:
            send(wire.RESULT, wire.encode(run(case)))
            kind, content = wire.read_frame(functools.partial(os.read, channel))
            if not kind:
                os._exit(0)
            case = wire.decode(content)
    except CheckError as error:
        fail(str(error))
    except BaseException as error:  # whatever it is, the process ends with a message
        fail(f"your code stopped with {describe(error)}")
    finally:
        os._exit(0)


def _prepared(
    work: Work, half: RunHalf, send: Callable[[bytes, bytes], None]
) -> Callable[[Case], Result]:
    """Run the cells; what is returned runs the check's half on a case."""
    request = work.request
    used: list[str] = []
    forbid.remove(half.forbidden, CheckError, used)  # for good, before any line of the student's
    half = dataclasses.replace(half, forbidden=())
    if not half.threads:  # the kernel refuses all of these too, without a reason
        for place, start in _STARTS:
            setattr(place, start, refuse_thread)
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    namespace = vars(main)
    namespace["get_ipython"] = lambda: Shell(namespace)
    namespace["display"] = lambda *things, **options: None
    sleep, in_cells = time.sleep, [True]
    time.sleep = lambda s: sleep(min(float(s), _NAP_SECONDS if in_cells else math.inf))
    # A student's cell may call a check, which has nothing to judge by in here.
    RunHalf.__call__ = lambda self, answer: None  # type: ignore[method-assign, misc]
    sys.path.append("")  # for modules that a cell writes
    seal, stopped, flags = Seal(watched_places()), "", 0

    def begin(number: int) -> None:
        send(wire.STEP, str(number).encode())

    sources = work.sources or cut(work.steps, begin, work.whole)
    for number, (step, source) in enumerate(zip(work.steps, sources, strict=True)):
        if not source:
            continue
        begin(number)
        known = set(namespace)
        try:
            flags = run_cell(source, step["file"], namespace, flags)
        except BaseException as error:  # sys.exit() included: later cells still run in a notebook
            if step["exercise"] == request.exercise:
                stopped = describe(error)
                if isinstance(error, CheckError):
                    stopped += " (try things out in a cell of your own)"
            if isinstance(error, MemoryError):  # what fills it would stop the cells below, too
                full = [k for k, v in namespace.items() if k not in known and not callable(v)]
                namespace.update(dict.fromkeys(full))
    begin(len(work.steps))
    in_cells.clear()
    if (name := request.name) not in namespace:
        reason = f"stopped with {stopped}" if stopped else f"does not define {name}"
        raise CheckError(f"your answer cell for exercise {request.exercise} {reason}.")
    answer = seal.around(namespace[name])
    used.clear()  # what cells try out is not the function's doing
    outside.listen(lambda name: send(wire.REPORT, name.encode()))
    seal.check()

    def run(case: Case) -> Result:
        result = run_in_place(half, answer, case)
        seal.check()
        if used:  # and the answer has caught the error
            raise CheckError(used[0])
        return {**result, EXCHANGED: seal.broken}

    return run


def describe(error: BaseException) -> str:
    """Name an error in one line, with the line of the cell where that is known."""
    message, line = "(it has no readable message)", getattr(error, "lineno", None)
    with contextlib.suppress(BaseException):
        message = str(error)
    trace = error.__traceback__
    while line is None and trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith("<"):
            line = trace.tb_lineno
        trace = trace.tb_next
    where = f" in line {line}" if isinstance(line, int) else ""
    return f"{type(error).__name__}{where}: {message}"


def quiet(descriptors: Sequence[int]) -> None:
    """Send what is read and printed nowhere, and give signals their plain meaning back."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
