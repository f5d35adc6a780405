"""Pythons that run the course. Standard library only, and no syntax newer than Python 3.6."""

import os
import subprocess

OLDEST, NEWEST = (3, 11), (3, 14)


def refusal(version: "tuple[int, ...]", whose: str) -> "str | None":
    """Return why a Python does not suit, and which one here does; None where it suits."""
    if OLDEST <= tuple(version[:2]) <= NEWEST:
        return None
    found = suitable()
    advice = f"try `{found} -m tutorial_lib ...`" if found else "install one from python.org"
    return (
        f"{whose} is Python {version[0]}.{version[1]}, but the course needs "
        f"3.{OLDEST[1]} to 3.{NEWEST[1]}: {advice}."
    )


def suitable() -> "str | None":
    """Return a command that starts a Python for the course, found by starting it, or None.

    A name alone says little: a version manager's stand-in may have no Python behind it, and
    Debian's Python may lack what makes environments.
    """
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        command = ["py", f"-3.{minor}"] if os.name == "nt" else [f"python3.{minor}"]
        try:
            subprocess.run(
                [*command, "-c", "import ensurepip, venv"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=True,
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return " ".join(command)
    return None
