"""A filter that the kernel applies to a student's processes: the system calls that they may make.

These are what Python, torch and the labs need. All others are refused, those too that the kernel
will get in the future.
"""

import errno
import functools
import os
import re
import struct

# The kernel's number of each machine that is known here, in the order of the numbers below.
MACHINES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}

# Each with its number on each machine; a dash where a machine has no such call.
_TABLE = """
# Files: which of them, is Landlock's business.
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69,
pwritev 296 70, preadv2 327 286, pwritev2 328 287, lseek 8 62, open 2 -, openat 257 56, close 3 57,
close_range 436 436, stat 4 -, fstat 5 80, lstat 6 -, newfstatat 262 79, statx 332 291,
statfs 137 43, fstatfs 138 44, access 21 -, faccessat 269 48, faccessat2 439 439, readlink 89 -,
readlinkat 267 78, getdents 78 -, getdents64 217 61, getcwd 79 17, chdir 80 49, fchdir 81 50,
mkdir 83 -, mkdirat 258 34, rmdir 84 -, unlink 87 -, unlinkat 263 35, rename 82 -, renameat 264 38,
renameat2 316 276, link 86 -, linkat 265 37, symlink 88 -, symlinkat 266 36, truncate 76 45,
ftruncate 77 46, fallocate 285 47, fsync 74 82, fdatasync 75 83, flock 73 32, fcntl 72 25,
dup 32 23, dup2 33 -, dup3 292 24, pipe 22 -, pipe2 293 59, chmod 90 -, fchmod 91 52,
fchmodat 268 53, utime 132 -, utimes 235 -, utimensat 280 88, futimesat 261 -, umask 95 166,
fadvise64 221 223, copy_file_range 326 285, sendfile 40 71, getxattr 191 8, lgetxattr 192 9,
fgetxattr 193 10, listxattr 194 11, llistxattr 195 12, flistxattr 196 13, ioctl 16 29
# Memory: all of it belongs to a process, and the watch adds it up.
mmap 9 222, munmap 11 215, mprotect 10 226, mremap 25 216, madvise 28 233, brk 12 214, msync 26 227,
get_mempolicy 239 236
# Processes and threads; `CONDITIONS` holds for clone and prctl.
fork 57 -, vfork 58 -, clone 56 220, execve 59 221, exit 60 93, exit_group 231 94, wait4 61 260,
waitid 247 95, kill 62 129, tkill 200 130, tgkill 234 131, getpid 39 172, getppid 110 173,
gettid 186 178, getpgid 121 155, getpgrp 111 -, setpgid 109 154, getsid 124 156, setsid 112 157,
set_tid_address 218 96, set_robust_list 273 99, get_robust_list 274 100, rseq 334 293, futex 202 98,
arch_prctl 158 -, prctl 157 167, prlimit64 302 261, getrlimit 97 163, setrlimit 160 164,
getrusage 98 165, times 100 153, sched_yield 24 124, sched_getaffinity 204 123,
sched_setaffinity 203 122, sched_getparam 143 121, sched_getscheduler 145 120, getpriority 140 141,
setpriority 141 140, getcpu 309 168, getuid 102 174, geteuid 107 175, getgid 104 176,
getegid 108 177, getresuid 118 148, getresgid 120 150, getgroups 115 158, uname 63 160,
sysinfo 99 179, getrandom 318 278
# Signals and time.
rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, sigaltstack 131 132,
restart_syscall 219 128, pause 34 -, alarm 37 -, getitimer 36 102, setitimer 38 103,
timer_create 222 107, timer_settime 223 110, timer_gettime 224 108, timer_delete 226 111,
nanosleep 35 101, clock_nanosleep 230 115, clock_gettime 228 113, clock_getres 229 114,
gettimeofday 96 169, time 201 -
# Waiting, and pipes between own processes: `CONDITIONS` holds for socketpair, and nothing here
# gives a socket that leads anywhere else.
select 23 -, pselect6 270 72, poll 7 -, ppoll 271 73, epoll_create 213 -, epoll_create1 291 20,
epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, eventfd 284 -, eventfd2 290 19,
socketpair 53 199, sendto 44 206, recvfrom 45 207, sendmsg 46 211, recvmsg 47 212, shutdown 48 210,
getsockname 51 204, getpeername 52 205, getsockopt 55 209, setsockopt 54 208
"""
ALLOWED: dict[str, tuple[int | None, ...]] = {
    name: tuple(None if number == "-" else int(number) for number in numbers)
    for name, *numbers in re.findall(r"(\w+) (\d+|-) (\d+|-)", re.sub("#.*", "", _TABLE))
}

_NEW_NAMESPACES = 0x7E02_0000  # all CLONE_NEW* bits that clone knows
_THREAD = 0x1_0000  # CLONE_THREAD
_SET_NAME, _GET_NAME = 15, 16
_AF_UNIX, _SOCK_STREAM = 1, 1  # spelt out: not every system's socket module has them

# What must hold for arguments: the number of one, the bits of it that matter, and their values.
Conditions = tuple[tuple[int, int, tuple[int, ...]], ...]
CONDITIONS: dict[str, Conditions] = {
    "clone": ((0, _NEW_NAMESPACES, (0,)),),
    "prctl": ((0, 0xFFFF_FFFF, (_SET_NAME, _GET_NAME)),),
    # A stream stays with its other end. A datagram socket could be sent from to any path.
    "socketpair": (
        (0, 0xFFFF_FFFF, (_AF_UNIX,)),
        (1, 0xF, (_SOCK_STREAM,)),
    ),
}

# In a memory exam: threads, but no other process, and no name on disk that holds a tensor's bytes.
_NEVER: Conditions = ((0, 0, (1,)),)
ALONE: dict[str, Conditions] = dict.fromkeys(
    ("fork", "vfork", "execve", "symlink", "symlinkat"), _NEVER
)
ALONE["clone"] = ((0, _NEW_NAMESPACES | _THREAD, (_THREAD,)),)

# Instructions of classic BPF: put a word into the register, mask the register, compare it, return.
_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_CALL_OFFSET, _MACHINE_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
_ALLOW, _FAIL = 0x7FFF_0000, 0x0005_0000
# From here on, numbers are the same on all machines. Libraries try such new calls and take another
# way where an old kernel says that it has none, so that is what they are told.
_NEW_CALLS = 424

_Line = tuple[int, int, int, int]  # instruction, lines to skip when true, when false, value


@functools.cache  # for the fork server's children too
def program(*, alone: bool = False) -> bytes:
    """Assemble the filter for this machine, with what `ALONE` refuses where asked.

    Raises:
        OSError: When the machine's numbers are not known.
    """
    machine = os.uname().machine
    if machine not in MACHINES:
        raise OSError("the numbers of this machine's system calls are not known here")
    refuse = (_RETURN, 0, 0, _FAIL | errno.EPERM)
    lines: list[_Line] = [(_LOAD, 0, 0, _MACHINE_OFFSET)]
    # other numberings, such as that of 32-bit programs
    lines += [(_EQUAL, 1, 0, MACHINES[machine]), refuse]
    lines += [(_LOAD, 0, 0, _CALL_OFFSET)]
    place = list(MACHINES).index(machine)
    conditions = CONDITIONS | (ALONE if alone else {})
    for name, numbers in ALLOWED.items():
        number = numbers[place]
        if number is not None:
            verdict = [*_checked(conditions.get(name, ())), (_RETURN, 0, 0, _ALLOW)]
            lines += [(_EQUAL, 0, len(verdict), number), *verdict]
    lines += [(_AT_LEAST, 0, 1, _NEW_CALLS), (_RETURN, 0, 0, _FAIL | errno.ENOSYS), refuse]
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def _checked(conditions: Conditions) -> list[_Line]:
    """Refuse a call whose arguments are not as they must be; else go on behind these lines."""
    lines: list[_Line] = []
    for argument, mask, values in conditions:
        # the lower half: what is looked at has no more than 32 bits
        lines += [(_LOAD, 0, 0, _ARGUMENTS_OFFSET + 8 * argument), (_AND, 0, 0, mask)]
        lines += [(_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)]
        lines += [(_RETURN, 0, 0, _FAIL | errno.EPERM)]
    return lines
