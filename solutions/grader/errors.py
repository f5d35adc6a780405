"""The two errors of grading: a request that cannot be met, and a submission that cannot be read."""


class GradingError(ValueError):
    """A class cannot be graded as asked: says what came, what was needed and what to try."""


class NotGradable(Exception):  # noqa: N818 - a finding about one file, and no failure of grading
    """One submission cannot be graded; the others can."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status  # the word that stands in `scores.csv`
        self.reason = reason  # one sentence for the feedback page
