"""A filter of system calls that the kernel applies to a student's processes: an allow-list."""

from __future__ import annotations

import errno
import os
import struct

from tutorial_lib.school.grading.inside.calls import (
    ALLOWED,
    ALONE,
    CONDITIONS,
    MACHINES,
    Conditions,
)

# Instructions of classic BPF: put a word into the register, mask the register, compare it, return.
_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_CALL_OFFSET, _MACHINE_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
_ALLOW, _FAIL = 0x7FFF_0000, 0x0005_0000
# From here on, numbers are the same on all machines. Libraries try such new calls and take another
# way where an old kernel says that it has none, so that is what they are told.
_NEW_CALLS = 424

_Line = tuple[int, int, int, int]  # instruction, lines to skip when true, when false, value


def program(*, alone: bool = False) -> bytes:
    """Assemble the filter for this machine.

    Args:
        alone: Refuse what `ALONE` refuses, too.

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
