"""Pythons that run the course. Standard library only; every Python from 2.7 on can read this."""

import os
import subprocess

OLDEST, NEWEST = (3, 11), (3, 14)


def refusal(version, whose):
    # type: (tuple[int, ...], str) -> str | None
    """Say in a sentence that a Python does not suit, and which one here does; else None."""
    if OLDEST <= tuple(version[:2]) <= NEWEST:
        return None
    found = suitable()
    advice = "try `%s -m tutorial_lib ...`" % found if found else "install one from python.org"
    return "%s is Python %d.%d, and the course needs 3.%d to 3.%d: %s." % (
        (whose, version[0], version[1], OLDEST[1], NEWEST[1], advice)
    )


def suitable():
    # type: () -> str | None
    """Find a command that starts a Python for the course, by starting it; None without one.

    A name alone says little: a version manager's stand-in may have no Python behind it, and
    Debian's Python may lack what makes environments.
    """
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        command = ["py", "-3.%d" % minor] if os.name == "nt" else ["python3.%d" % minor]
        try:
            with open(os.devnull, "w") as nowhere:
                code = "import ensurepip, venv"
                subprocess.check_call(command + ["-c", code], stdout=nowhere, stderr=nowhere)
        except (OSError, subprocess.CalledProcessError):
            continue
        return " ".join(command)
    return None
