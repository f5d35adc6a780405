"""Pretended seconds, and how far off an answer may be."""

from tutorial_lib.checks.vocabulary import Faults, expect

_TOLERANCE = 1e-3  # a step takes at least a thousand launches


def expect_time(seen: float, wanted: float, name: str, faults: Faults) -> None:
    """Expect pretended seconds, or a ratio of some, but for a launch or two."""
    expect.close(
        seen,
        wanted,
        faults,
        otherwise="It is none of the usual faults. Run it on a PretendGPU in a cell of your own, "
        "and print each time that it takes.",
        tolerance=_TOLERANCE,
        where=f"{name}: {seen:.4g} is off by {seen / wanted - 1:+,.1%}. ",
    )
