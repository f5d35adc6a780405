"""A check that is a memory exam and nothing else."""

from tutorial_lib.checks import exam, forbid
from tutorial_lib.checks.core import Check

frugal = Check(
    name="lab91.frugal",
    exercise="2.1",
    passed="it fits",
    cases=lambda seed: [],
    run=lambda answer, case: {},
    judge=lambda case, result: None,
    forbidden=[forbid.checkpointing("your answer may not call it")],
    exam=exam.of_checkpoint(),
)
