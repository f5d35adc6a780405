"""`python -m tutorial_lib COMMAND`: the one door to the course.

Every Python can read this file and `pythons`, back to 2.7, so that an old one gets a sentence.
"""

import sys

from tutorial_lib.school import pythons


def main():
    # type: () -> int
    """Run one command, or say which Python to run it with."""
    if sys.version_info < (3, 8):  # it could not even read the rest
        whose = "This (%s)" % sys.executable
        sys.stderr.write("%s\n" % pythons.refusal(sys.version_info[:2], whose))
        return 2
    from tutorial_lib.school.commands.main import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
