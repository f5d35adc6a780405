"""Claims of the course's sources, and the verdicts of its chapters, found in `course/claims`."""

from tutorial_lib import content, load_when_used

FOLDER = content("claims", __name__)
__path__.append(str(FOLDER))
__all__, __getattr__ = load_when_used(
    __name__,
    {
        "all_verdicts": "Court court",
        "asked": "keep kept questions",
        "in_notebooks": "contradictions faults rows_of",
        "verdicts": "JUDGED MIME WORDS ClaimError Verdict Verdicts claims figures width word",
    },
)
