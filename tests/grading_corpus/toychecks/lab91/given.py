"""An exercise that is a memory exam and nothing else."""

from tutorial_lib.checks.given import exam, forbid, run_half

NO_CHECKPOINT = forbid.checkpointing("your answer may not call it")


@run_half("2.1", forbidden=[NO_CHECKPOINT], exam=exam.of_checkpoint(), threads=True)
def frugal(answer, case):
    return {}
