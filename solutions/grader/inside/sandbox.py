"""Layers between a student's code and the grader's machine.

Every layer may be missing (an old kernel, a container, macOS). What could be put in place is
returned by name, never assumed, so that the report can say what a submission could still reach.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import struct
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from solutions.grader.inside import seccomp

try:
    import resource
except ImportError:  # Windows has neither limits nor fork
    resource = None  # type: ignore[assignment]

ON_LINUX = sys.platform.startswith("linux")

_NEW_MOUNTS, _NEW_IPC, _NEW_USER = 0x0002_0000, 0x0800_0000, 0x1000_0000
_NEW_PIDS, _NEW_NET = 0x2000_0000, 0x4000_0000
_OWN_WORLD = _NEW_MOUNTS | _NEW_IPC | _NEW_PIDS | _NEW_NET
# With a user namespace first: it works without root, and even root loses its rights.
NAMESPACE_CHOICES = (_NEW_USER | _OWN_WORLD, _OWN_WORLD, 0)

_SCRATCH_BYTES, _SCRATCH_FILES = 64 * 1024**2, 4096
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 1, 4, 24
_PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 22, 36, 38, 47
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_PRIVATE, _MNT_DETACH = 2, 4, 0x4000, 1 << 18, 2
_MALLOC = {-1: 2**16, -3: 2**16, -8: 1}  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX
_SYS_LANDLOCK = 444  # create_ruleset, add_rule (445), restrict_self (446) on every architecture


@dataclass(frozen=True)
class Limits:
    """What one run of a student's code may use.

    With `exam_bytes` it's a memory exam: so many bytes of address space beyond what is mapped, no
    file that could hold a tensor. Without `threads` it may start neither threads nor processes.
    """

    seconds: float
    memory_bytes: int
    file_bytes: int = _SCRATCH_BYTES
    open_files: int = 256
    processes: int = 64
    exam_bytes: int = 0
    threads: bool = True

    def in_exam(self, exam_bytes: int) -> Limits:
        """Return the limits of a memory exam; pipes hold data too, so there are few of them."""
        return replace(self, exam_bytes=exam_bytes, file_bytes=0, open_files=32)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _succeed(result: int) -> int:
    """Pass a system call's result on, or raise the OSError that it left."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _prctl(option: int, first: int = 0, second: int = 0) -> int:
    return _succeed(_libc().prctl(option, *map(ctypes.c_ulong, (first, second, 0, 0))))


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends, so that nothing is left behind."""
    if ON_LINUX:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans_and_hide_memory() -> None:
    """Become the parent of every orphan below; let no other process look into this memory."""
    if ON_LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        _prctl(_PR_SET_DUMPABLE, 0)


def enter_namespaces(flags: int) -> None:
    """Leave the machine's network, processes, users and mounts; children start inside.

    Raises:
        OSError: When the kernel or the container refuses; the process may then be half inside,
            so try in a process that can be thrown away.
    """
    if not flags:
        return
    user, group = os.getuid(), os.getgid()
    _succeed(_libc().unshare(flags))
    if flags & _NEW_USER:
        with contextlib.suppress(OSError):
            Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    # Private first: no mount made here may show outside.
    _succeed(_libc().mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None))


def mount_scratch(folder: Path) -> bool:
    """Put an empty folder of limited size, kept in memory, over `folder`; False when refused."""
    options = f"size={_SCRATCH_BYTES},nr_inodes={_SCRATCH_FILES},mode=700".encode()
    place = os.fsencode(folder)
    _libc().umount2(place, _MNT_DETACH)
    return bool(_libc().mount(b"tmpfs", place, b"tmpfs", _MS_NOSUID | _MS_NODEV, options) == 0)


def confine(
    limits: Limits, readable: Mapping[Path, bool], scratch: Path, *, flags: int
) -> list[str]:
    """Shut this process in for good, before it runs a line of a student's code.

    It may read what is `readable` whole, or list the names alone where that is false; it may write
    to `scratch`, its working folder and HOME. It is in the namespaces of `flags` already. Return
    the layers in place: some of `limits`, `namespaces`, `landlock`, `capabilities`, `seccomp`.
    """
    os.chdir(scratch)
    names = ("HOME", "TMPDIR", "MPLCONFIGDIR", "TORCHINDUCTOR_CACHE_DIR")
    os.environ.update(dict.fromkeys(names, str(scratch)))
    tempfile.tempdir = None  # what was imported before may have settled on another folder
    alone = bool(limits.exam_bytes) or not limits.threads
    layers = ["namespaces"] if flags else []
    steps: list[tuple[str, Callable[[], object]]] = [("limits", lambda: _set_limits(limits, flags))]
    if ON_LINUX:
        steps += [
            ("no new privileges", lambda: _prctl(_PR_SET_NO_NEW_PRIVS, 1)),
            ("landlock", lambda: _landlock(readable, scratch)),
            ("capabilities", _drop_capabilities),
            ("seccomp", lambda: _filter_calls(alone=alone, threads=limits.threads)),
        ]
    for name, step in steps:
        with contextlib.suppress(OSError, ValueError):
            step()
            layers.append(name)
    return layers


def _set_limits(limits: Limits, flags: int) -> None:
    wanted = {
        "RLIMIT_CORE": 0,
        "RLIMIT_CPU": 2 * int(limits.seconds) + 6,  # cells, then the function
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_NOFILE": limits.open_files,
        # Data and not address space: torch maps far more than it uses.
        "RLIMIT_DATA": _mapped_bytes("VmData") + limits.memory_bytes,
    }
    if limits.exam_bytes:
        with contextlib.suppress(AttributeError):  # glibc: a large block goes back once it is free
            for option, size in _MALLOC.items():
                _libc().mallopt(option, size)
        wanted["RLIMIT_AS"] = _mapped_bytes("VmSize") + limits.exam_bytes
    if flags & _NEW_USER:  # elsewhere it would count the user's other processes too
        wanted["RLIMIT_NPROC"] = 4 * limits.processes
    for name, value in wanted.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        ceiling = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # a second earlier, so that the signal says why: at its hard limit a process is killed
        soft = ceiling - 1 if name == "RLIMIT_CPU" else ceiling
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (soft, ceiling))


def _mapped_bytes(kind: str) -> int:
    """Measure what this process has mapped: `VmData` for what is its own, `VmSize` for all."""
    if not ON_LINUX:
        return 0
    return int(Path("/proc/self/status").read_text().split(f"{kind}:")[1].split()[0]) * 1024


def _drop_capabilities() -> None:
    for capability in range(64):
        if _libc().prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) < 0:
            break
    _libc().prctl(_PR_CAP_AMBIENT, ctypes.c_ulong(4), 0, 0, 0)  # 4: clear all
    header = ctypes.create_string_buffer(struct.pack("Ii", 0x2008_0522, 0))
    _succeed(_libc().capset(header, ctypes.create_string_buffer(24)))


def _filter_calls(*, alone: bool, threads: bool) -> None:
    """Allow the system calls that Python and torch need; where `alone`, no other processes.

    No limit counts memory that belongs to no process, no Landlock stops sockets that other programs
    listen on, and a call that is never needed may hold the kernel's next fault.
    """
    program = seccomp.program(alone=alone, threads=threads)
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    place = ctypes.create_string_buffer(header)
    _prctl(_PR_SET_SECCOMP, 2, ctypes.addressof(place))


# The kernel's LANDLOCK_ACCESS_FS_* bits, in their order.
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_MAKE_DEVICES, _TRUNCATE, _IOCTL = 1 << 6 | 1 << 11, 1 << 14, 1 << 15
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL


def landlock_version() -> int:
    """Ask the kernel for its Landlock version; 0 when it has none."""
    if not ON_LINUX:
        return 0
    return max(0, int(_libc().syscall(_SYS_LANDLOCK, None, 0, 1)))


def _landlock(readable: Mapping[Path, bool], scratch: Path) -> None:
    version = landlock_version()
    if not version:
        raise OSError("this kernel has no Landlock")
    everything = (1 << (13, 14, 15, 15, 16)[min(version, 5) - 1]) - 1
    network = 3 if version >= 4 else 0  # bind and connect over TCP
    scopes = 3 if version >= 6 else 0  # abstract sockets, and signals to the outside
    attributes = struct.pack("QQQ", everything, network, scopes)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = _succeed(_libc().syscall(_SYS_LANDLOCK, attributes, ctypes.c_size_t(size), 0))
    try:
        read_only = _EXECUTE | _READ_FILE | _READ_DIR
        for path, whole in readable.items():
            _allow(ruleset, path, read_only if whole else _READ_DIR)
        _allow(ruleset, Path("/dev/null"), read_only | (everything & (_WRITE_FILE | _TRUNCATE)))
        _allow(ruleset, scratch, everything & ~_MAKE_DEVICES)
        _succeed(_libc().syscall(_SYS_LANDLOCK + 2, ruleset, 0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no permission
    try:
        if not path.is_dir():
            rights &= _FILE_RIGHTS
        rule = struct.pack("=Qi", rights, place)
        _succeed(_libc().syscall(_SYS_LANDLOCK + 1, ruleset, 1, rule, 0))
    finally:
        os.close(place)
