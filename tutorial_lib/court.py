"""The verdicts on all claims, as `python -m tutorial_lib build` collects them."""

import json
from pathlib import Path

from tutorial_lib.claims import FOLDER, ClaimError, Verdict, Verdicts, claims


def court(path: Path = FOLDER / "verdicts.json") -> Verdicts:
    """Read the verdicts on all claims, in the claims' order.

    Args:
        path: The file that `python -m tutorial_lib build` collects.

    Raises:
        ClaimError: When a claim has no verdict.
    """
    found = [Verdict(**row) for row in json.loads(path.read_text(encoding="utf-8"))]
    missing = sorted(set(claims()) - {verdict.claim for verdict in found})
    if missing:
        raise ClaimError(f"No verdict on {', '.join(missing)}: let a notebook end with one.")
    return Verdicts(*sorted(found, key=lambda v: (list(claims()).index(v.claim), v.notebook)))
