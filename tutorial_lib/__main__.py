"""`python -m tutorial_lib COMMAND`: the one door to the course."""

import gc
import sys

from tutorial_lib.school import pythons


def main() -> int:
    """Run one command, or say which Python to run it with."""
    if sys.version_info < (3, 8):  # noqa: UP036 - too old to read the rest
        whose = f"This ({sys.executable})"
        print(pythons.refusal(sys.version_info[:2], whose), file=sys.stderr)
        return 2
    from tutorial_lib.school.commands.main import main as run

    status = run()
    # Python would look through all of PyTorch for garbage at its end. With a GPU's PyTorch it does,
    # since Triton reports what is frozen as leaks.
    if "triton" not in sys.modules:
        gc.freeze()
    return status


if __name__ == "__main__":
    sys.exit(main())
