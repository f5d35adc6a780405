"""Claims of the course's sources, and the verdicts that its chapters reach, with their numbers.

A chapter ends with `Verdicts(...)`: a table to read, and the same as data in the cell's output.
`build` collects that data from all notebooks; the last chapter shows it whole (`court`).
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from html import escape
from typing import Any

from tutorial_lib.claims import FOLDER

MIME = "application/vnd.training-that-fits.verdicts+json"
CLOSE, NEAR = 0.05, 0.15  # how far from a figure a value may be to give it, or nearly
WORDS = {  # of claims and measurements, then of code and topics
    "holds": f"true as it is said: all that we tried gives its figures, within {CLOSE:.0%}",
    "holds if": "true under a condition, which the sentence names",
    "nearly": f"under one condition all its figures are within {NEAR:.0%}",
    "partly": "some of it is true: a half, or one of its figures",
    "wrong": "false as it is said: nothing that we tried gives one of its figures",
    "built": "a code example or an exercise: it runs here, and its faults are said",
    "shown": "a topic, which claims nothing: a chapter shows it",
}
JUDGED = tuple(WORDS)[:5]
HOW = ("counted", "predicted", "emulated", "measured", "computed", "cited")
# One sheet for the whole table: cells without styles leave a diff that can be read.
_SHEET = "<style>.verdicts :is(th, td) {text-align: left !important; vertical-align: top}</style>"


class ClaimError(ValueError):
    """A verdict that cannot stand: unknown, without a number, missing, or contradicted."""


def claims(column: str = "claim") -> dict[str, str]:
    """Return every claim's words by its id, or its `kind`, as in `course/claims/claims.csv`."""
    return {row["id"]: row[column] for row in _rows("claims.csv")}


def figures(claim: str) -> list[dict[str, Any]]:
    """Return a claim's figures: part, low, high (infinite: "at least"), unit, place, quote.

    Those of one quotation belong together: they are true only if one condition gives them all.
    """
    found = [row for row in _rows("figures.csv") if row["claim"] == claim]
    return [row | {"low": float(row["low"]), "high": float(row["high"] or "inf")} for row in found]


@cache
def _rows(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def word(claim: str, tried: Mapping[str, Mapping[str, float]]) -> str:
    """Return the verdict that values allow: how near they come to the figures of the claim.

    Args:
        claim: Its id.
        tried: For each part of its figures, no other, the values by their conditions.
    """
    off = _beyond(claim, tried)
    every = [share for parts in off.values() for shares in parts for share in shares.values()]
    together = max(  # the worst quotation, under the condition that is best for it
        min((max(p[c] for p in parts) for c in _tried_together(parts)), default=1.0)
        for parts in off.values()
    )
    if together <= CLOSE:
        return "holds" if max(every) <= CLOSE else "holds if"
    return "nearly" if together <= NEAR else "partly" if min(every) <= CLOSE else "wrong"


def width(claim: str, tried: Mapping[str, Mapping[str, float]]) -> tuple[int, int]:
    """Return how many of the tried settings make a claim's figures true, and how many there are.

    Of several quotations, the one that is true in the smallest share of its settings counts.

    Args:
        claim: Its id.
        tried: As in `word`.

    Example:
        >>> width("A10", {"saved": {"of the activations": 75.0, "of the peak": 58.5}})
        (1, 2)
    """
    counts = list[tuple[int, int]]()
    for parts in _beyond(claim, tried).values():
        together = _tried_together(parts)
        held = [c for c in together if max(p[c] for p in parts) <= CLOSE]
        counts.append((len(held), len(together)))
    return min(counts, key=lambda count: count[0] / max(1, count[1]))


def _beyond(
    claim: str, tried: Mapping[str, Mapping[str, float]]
) -> dict[str, list[dict[str, float]]]:
    """Return, by quotation and figure, how far beyond the figure's edge each value is."""
    needed = [figure["part"] for figure in figures(claim)]
    if set(tried) != set(needed):
        raise ClaimError(f"{claim}: tried has values for {list(tried)}, and needs {needed}.")
    off: dict[str, list[dict[str, float]]] = {}
    for said in figures(claim):
        values, low, high = tried[said["part"]].items(), said["low"], said["high"]
        shares = {c: max(1 - v / low, v / high - 1, 0) for c, v in values}
        off.setdefault(said["quote"], []).append(shares)
    return off


def _tried_together(parts: list[dict[str, float]]) -> list[str]:
    return [c for c in parts[0] if all(c in part for part in parts)]


@dataclass(frozen=True)
class Verdict:
    """What became of one claim.

    Raises:
        ClaimError: When a word is unknown, when there is no figure in the number, or
            when nothing says how wide a condition is.

    Example:
        >>> Verdict("B06", "holds", "24 blocks run 300 times.", "12.5", "counted", "a").verdict
        'holds'
    """

    claim: str  # its id, such as `A10`
    verdict: str  # one of `WORDS`; where the claim names figures, the one that `word` gives
    sentence: str  # one plain sentence that a reader can quote
    number: str  # the figures that decide, formatted from the notebook's own values
    # `counted`, `predicted`, `emulated` or `measured` bytes and times; `computed` for other
    # values, such as a gradient or an accuracy; `cited` from a source the notebook names
    how: str
    cell: str  # id of the cell that produced the number
    device: str = ""  # the device, where the number depends on one
    notebook: str = ""  # filled in when verdicts are collected, as in `course/01_where_memory_goes`
    # what `word` takes, kept to four digits
    tried: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    # for a claim without figures that holds under a condition: in how many settings it
    # does, how many were tried, and their name, as in `(7, 9, "losses")`
    held: tuple[int, int, str] | None = None

    def __post_init__(self) -> None:
        kind = claims("kind").get(self.claim, "")
        words = {"code": ("built",), "topic": ("shown",)}.get(kind, JUDGED)
        for name, known in (("claim", claims()), ("verdict", words), ("how", HOW)):
            if getattr(self, name) not in known:
                raise ClaimError(
                    f"{self.claim}: {name} {getattr(self, name)!r} is unknown: there are "
                    f"{', '.join(known)}."
                )
        if not re.search(r"\d|True|False", self.number):
            raise ClaimError(f"{self.claim}: no figure in the number {self.number!r}.")
        if (figures(self.claim) or self.tried) and self.verdict != word(self.claim, self.tried):
            raise ClaimError(
                f"{self.claim}: the verdict is {self.verdict!r}, and the values that were tried "
                f"allow {word(self.claim, self.tried)!r}: change the word, or try more."
            )
        if self.verdict == "holds if" and not self.tried and not self.held:
            raise ClaimError(
                f"{self.claim}: nothing says how wide the condition is: give held, as in "
                '(7, 9, "losses"), from a grid of settings that a cell tries.'
            )
        short = {p: {c: float(f"{v:.4g}") for c, v in t.items()} for p, t in self.tried.items()}
        object.__setattr__(self, "tried", short)

    @property
    def width(self) -> str:
        """Return in words in what share of the tried settings a condition holds."""
        if self.verdict != "holds if":
            return ""
        held, of, what = self.held or (*width(self.claim, self.tried), "settings")
        return f"true in {held} of {of} {what}"


class Verdicts(list[Verdict]):
    """Verdicts that show themselves as a table, and carry their data in the output.

    Example:
        >>> Verdicts(Verdict("B06", "holds", "24 blocks run 300 times.", "12.5", "counted", "a"))
        holds    24 blocks run 300 times. 12.5 (counted, B06)
    """

    def __init__(self, *verdicts: Verdict) -> None:
        super().__init__(verdicts)

    def __str__(self) -> str:
        lines = [
            f"{v.verdict:<8} {v.sentence} {v.number} "
            f"({', '.join(filter(None, (v.how, v.width, v.claim)))})"
            for v in self
        ]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        kept = [{name: value for name, value in asdict(v).items() if value} for v in self]
        return {"text/plain": str(self), "text/html": self._html(), MIME: kept}

    def _html(self) -> str:
        heads = ("the claim, and <b>what became of it</b>", "the number", "")
        rows = ["".join(f"<th>{head}</th>" for head in heads)]
        for v in self:
            told = ", ".join(filter(None, (v.how, escape(v.device), _link(v))))
            said = f"<b>{v.verdict}</b>" + (f" ({v.width})" if v.width else "")
            both = f"{escape(claims()[v.claim])}<br>{said}: {escape(v.sentence)}"
            cells = (both, f"{escape(v.number)} ({told})", v.claim)
            rows.append("".join(f"<td>{cell}</td>" for cell in cells))
        lines = (f"<tr>{row}</tr>" for row in rows)
        return "\n".join([_SHEET, "<table class='dataframe verdicts'>", *lines, "</table>"])


def _link(verdict: Verdict) -> str:
    if not verdict.notebook:
        return f"cell <code>{verdict.cell}</code>"
    name = verdict.notebook.rpartition("/")[2]
    return f"<a href='../{verdict.notebook}.ipynb'>{name}</a>, cell <code>{verdict.cell}</code>"
