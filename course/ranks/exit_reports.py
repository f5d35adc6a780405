"""Reports of a process that died, or waits for ever: what it was doing, read from its stderr."""

import re
import signal
import time
from pathlib import Path

_PATIENCE = 3.0  # seconds for a process on a busy machine to write where it is
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_COLLECTIVES = "distributed_c10d.py"  # PyTorch's file of all_reduce, barrier, send and the like
_NOT_OF_THE_USER = ("torch", "ranks", "joblib", "multiprocessing")


def of_the_dead(exit_code: int | None, stderr: Path) -> str:
    """Say how a process ended (its exit code is below 0 for a signal), and what it wrote last."""
    how = f"with exit code {exit_code}"
    if exit_code is not None and exit_code < 0:
        names = {one.value: one.name for one in signal.Signals}
        how = f"by {names.get(-exit_code, f'signal {-exit_code}')}"
    advice = ": is the machine out of memory?" if exit_code == -9 else "."
    words = stderr.read_text(encoding="utf-8", errors="replace").strip()
    return f"{how}{advice}" + (f" It wrote last:\n\n{words[-4000:]}" if words else "")


def of_the_waiting(stderr: Path) -> str:
    """Say where a process is, from the stacks that `faulthandler` wrote when time was up."""
    give_up = time.monotonic() + _PATIENCE
    while "_serve" not in (text := stderr.read_text(encoding="utf-8", errors="replace")):
        if time.monotonic() > give_up:
            return "has not said where it is"
        time.sleep(0.05)
    threads = re.split(r"^(?:Current thread|Thread)", text, flags=re.MULTILINE)
    main = next(thread for thread in threads if "_serve" in thread)
    frames = [(Path(file), line, name) for file, line, name in _FRAME.findall(main)]
    waits_in = [name for file, _, name in frames if file.name == _COLLECTIVES]
    own = [frame for frame in frames if not {*_NOT_OF_THE_USER} & {*frame[0].parts}]
    what = f"waits in {waits_in[-1]}" if waits_in else f"is in {frames[0][2]}"
    return f"{what} (line {own[0][1]} of {own[0][2]})" if own else what
