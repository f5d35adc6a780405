"""The verdicts on all claims, as `python -m tutorial_lib build` collects them."""

import json
from collections import Counter
from pathlib import Path

from tutorial_lib.claims import FOLDER

from .verdicts import JUDGED, ClaimError, Verdict, Verdicts, claims


class Court(Verdicts):
    """The verdicts on all claims, and how many there are of each kind."""

    @property
    def headline(self) -> str:
        """Count claims, published measurements, and the rest, each by its words."""
        count = Counter({v.claim: (claims("kind")[v.claim], v.verdict) for v in self}.values())
        said = []
        for kind, name in (("claim", "claims"), ("number", "published measurements")):
            words = {w: count[kind, w] for w in JUDGED if count[kind, w]}
            each = ", ".join(f"{number} {w}" for w, number in words.items())
            said.append(f"{sum(words.values())} {name} ({each})")
        shown, built = count["topic", "shown"], count["code", "built"]
        return f"{', '.join(said)}; besides, {shown} topics shown and {built} code examples built"


def court(path: Path = FOLDER / "verdicts.json") -> Court:
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
    return Court(*sorted(found, key=lambda v: (list(claims()).index(v.claim), v.notebook)))
