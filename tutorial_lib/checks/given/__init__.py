"""What the process of an answer sees of the checks: the halves that run answers, and their tools.

Nothing here knows what is right. A module named `given`, in here or in a lab, imports nothing of
the checks that is not named so; a grader copies these files, and no others, for an answer to see.
"""

from tutorial_lib.checks.given.half import RunHalf, run_half
from tutorial_lib.checks.given.values import Answer, Case, CheckError, Result

__all__ = ["Answer", "Case", "CheckError", "Result", "RunHalf", "run_half"]
