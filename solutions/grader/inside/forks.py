"""The fork server: imports torch and a lab's run halves once, then forks a session per submission.

It never runs a line of a student's code itself, and knows neither the solution nor the seed nor any
answer: what it holds in memory, all its forks inherit.
"""

import contextlib
import functools
import importlib
import itertools
import json
import os
import pkgutil
import socket
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from solutions.grader import wire
from solutions.grader.inside import sandbox, session, student
from solutions.grader.launch import serve_forks
from tutorial_lib.checks.given import RunHalf
from tutorial_lib.checks.given.settings import quietly
from tutorial_lib.units import MIB

# What Python and torch read on any Linux; never a home, never the course folder itself.
_SYSTEM = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo"),
    *("/etc/ld.so.cache", "/etc/localtime", "/dev/zero", "/dev/urandom", "/dev/random"),
    *("/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu"),
)
_PROBE_BYTES = 64 * MIB
# Where an answer imports one of these, a memory exam has no room for it.
_OFTEN_IMPORTED = ("numpy", "pandas", "matplotlib.pyplot", "scipy.stats", "sklearn.linear_model")


def serve(order: dict[str, Any], hidden: list[Path], channel: socket.socket) -> None:
    """Prepare, say what the sandbox can do, then fork a session for each folder that comes.

    The order holds `seconds`, `memory_bytes`, `package`, `import_path`, `view` (the folder with
    what is seen of the course), `preload` (modules, and names in them) and `forbidden` (a file that
    no student may read); no answer may read what is `hidden`.
    """
    with contextlib.suppress(OSError):  # where memory runs out, the kernel ends these first
        Path("/proc/self/oom_score_adj").write_text("1000")
    with contextlib.suppress(Exception):
        from tutorial_lib.instruments import private_torch

        private_torch.import_compiler()
    for name in itertools.chain(order["preload"], _often_imported()):
        # what cannot be imported here cannot be imported by the answer either, which says so
        with contextlib.suppress(Exception):
            pkgutil.resolve_name(name)  # a library may load a name only when it is asked for
    with quietly():  # its first use imports the compiler, and calls what may be forbidden later
        wire.decode(wire.encode([torch.ones(1)]))  # nor does a fork load anew what this loads
    copy = Path(order["view"])
    hidden += without_forbidden(copy)
    setting = session.Setting(
        limits=sandbox.Limits(order["seconds"], order["memory_bytes"]),
        readable=readable_paths([copy, *map(Path, order["import_path"])], hidden),
        package=order["package"],
        namespaces=usable_namespaces(),
    )
    layers = _probe(setting, Path(order["forbidden"]))
    setting = replace(setting, holds_exams="memory exam" in layers)
    # no answer can read the files of what cannot be imported
    for name in [name for name in sys.modules if name.partition(".")[0] == "solutions"]:
        del sys.modules[name]
    student.watched_places()
    serve_forks(channel, layers, lambda folder: session.start_session(folder, setting))


def halves() -> list[Any]:
    """List the run halves that this process has imported."""
    modules = [getattr(module, "__dict__", {}) for module in [*sys.modules.values()]]
    values = (value for module in modules for value in [*module.values()])
    return [value for value in values if isinstance(value, RunHalf)]


def without_forbidden(folder: Path) -> list[Path]:
    """Import what the checks forbid, and take its files out of the copy; list those outside it."""
    outside = []
    everything = (one for half in halves() for one in half.forbidden)
    for name in {name for one in everything for name in one.modules}:
        file = Path(str(importlib.import_module(name).__file__)).resolve()
        outside += [file, *file.parent.glob(f"__pycache__/{file.stem}.*.pyc")]
    for path in [path for path in outside if path.is_relative_to(folder)]:
        path.unlink()
    return [path for path in outside if path.exists()]


def _often_imported() -> Iterator[str]:  # asked when the run halves have been imported
    if any(half.exam for half in halves()):
        yield from _OFTEN_IMPORTED


def readable_paths(import_path: Sequence[Path], hidden: Sequence[Path]) -> dict[Path, bool]:
    """List what a student's code may read, as `sandbox.confine` wants it.

    That is Python, its packages, system files and `import_path`, which has the view, without what
    is `hidden` and all that is in it.
    """
    names = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix}:
        names += [f"{prefix}/lib", f"{prefix}/bin", f"{prefix}/pyvenv.cfg"]
    names += filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    names += [entry for entry in sys.path if Path(entry).name.endswith("-packages")]
    paths = {*map(Path, (*_SYSTEM, *names)), *import_path}
    out_of_sight, seen = {path.resolve() for path in hidden}, dict[Path, bool]()
    todo = sorted(paths | {path.resolve() for path in paths})
    for path in todo:  # which grows: a folder is taken apart around what is hidden in it
        real = path.resolve()
        if real not in out_of_sight:
            seen[path] = not any(real in other.parents for other in out_of_sight)
            todo += [] if seen[path] else path.iterdir()
    return seen


def _in_child(task: Callable[[], Any]) -> Any:
    """Do something in a process that is thrown away; None when it failed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            os.close(reading)
            os.write(writing, json.dumps(task()).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return json.loads(answer) if answer else None


def usable_namespaces() -> int:
    """Find the strongest namespaces that this machine grants, by trying them."""

    def attempt(flags: int) -> bool:
        sandbox.enter_namespaces(flags)
        # a process must be able to live in there
        return bool(_in_child(lambda: True))

    choices = sandbox.NAMESPACE_CHOICES if sandbox.ON_LINUX else ()
    return next((flags for flags in choices if _in_child(functools.partial(attempt, flags))), 0)


def _probe(setting: session.Setting, forbidden: Path) -> list[str]:
    """Shut a child in as a student would be, and see what it still can do."""
    scratch = Path(os.environ["TMPDIR"])

    def confined(limits: sandbox.Limits) -> list[str]:
        return sandbox.confine(limits, setting.readable, scratch, flags=setting.namespaces)

    def inside() -> list[str]:
        layers = confined(setting.limits)
        with contextlib.suppress(OSError):
            forbidden.read_bytes()
            layers.append("solutions readable")
        with contextlib.suppress(OSError):
            # the folder above the scratch folder stands for the whole machine
            (scratch.parent / "written").write_text("")
            layers.append("files writable")
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", 0)):
            if not setting.namespaces:
                layers.append("network reachable")
        return layers

    def sits_exam() -> bool:
        layers = confined(setting.limits.in_exam(_PROBE_BYTES))
        torch.empty(_PROBE_BYTES // 2, dtype=torch.uint8)
        try:
            torch.empty(2 * _PROBE_BYTES, dtype=torch.uint8)
        except (MemoryError, RuntimeError):
            return "seccomp" in layers  # else another process could lend its memory
        return False

    def outside() -> Any:
        sandbox.enter_namespaces(setting.namespaces)
        # in one more child: the first of a process namespace must outlive the others
        return _in_child(lambda: [_in_child(inside), _in_child(sits_exam)])

    layers, holds_exams = _in_child(outside) or ([], False)
    return [*(layers or []), *["memory exam"] * bool(holds_exams)]
