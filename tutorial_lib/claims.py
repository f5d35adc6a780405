"""Claims of the course's sources, and the verdicts that its chapters reach, with their numbers.

A chapter ends with `Verdicts(...)`: a table to read, and the same as data in the cell's output.
`build` collects that data from all notebooks; the last chapter shows it whole (`court`).
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "course" / "claims"
MIME = "application/vnd.training-that-fits.verdicts+json"
VERDICTS = ("holds", "holds if", "wrong")
HOW = ("counted", "predicted", "emulated", "measured", "computed", "cited")
# One sheet for the whole table: cells without styles of their own leave a diff that can be read.
_SHEET = "<style>.verdicts :is(th, td) {text-align: left !important; vertical-align: top}</style>"


class ClaimError(ValueError):
    """A verdict that cannot stand: unknown, without a number, missing, or contradicted."""


@cache
def claims() -> dict[str, str]:
    """Give every claim's words by its id, as `course/claims/claims.csv` has them."""
    with (FOLDER / "claims.csv").open(encoding="utf-8", newline="") as file:
        return {row["id"]: row["claim"] for row in csv.DictReader(file)}


@dataclass(frozen=True)
class Verdict:
    """What became of one claim.

    Args:
        claim: Its id, such as `A10`.
        verdict: `holds`, `holds if` (the sentence names the condition) or `wrong`.
        sentence: One plain sentence that a reader can quote.
        number: The figures that decide, formatted from the notebook's own values.
        how: `counted`, `predicted`, `emulated` or `measured` bytes and times; `computed` for other
            values, such as a gradient or an accuracy; `cited` from a source the notebook names.
        cell: Id of the cell that produced the number.
        device: The device, where the number depends on one.
        notebook: Filled in when verdicts are collected, as in `course/01_where_memory_goes`.

    Raises:
        ClaimError: When a word is none of the above, or there is no figure in the number.
    """

    claim: str
    verdict: str
    sentence: str
    number: str
    how: str
    cell: str
    device: str = ""
    notebook: str = ""

    def __post_init__(self) -> None:
        for name, known in (("claim", claims()), ("verdict", VERDICTS), ("how", HOW)):
            if getattr(self, name) not in known:
                raise ClaimError(
                    f"{self.claim}: {name} {getattr(self, name)!r} is unknown: there are "
                    f"{', '.join(known)}."
                )
        if not re.search(r"\d|True|False", self.number):
            raise ClaimError(f"{self.claim}: no figure in the number {self.number!r}.")


class Verdicts(list[Verdict]):
    """Verdicts that show themselves as a table, and carry their data in the output."""

    def __init__(self, *verdicts: Verdict) -> None:
        super().__init__(verdicts)

    def __str__(self) -> str:
        lines = [f"{v.claim} {v.verdict:<8} {v.number} ({v.how}): {v.sentence}" for v in self]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        kept = [{name: text for name, text in asdict(v).items() if text} for v in self]
        return {"text/plain": str(self), "text/html": self._html(), MIME: kept}

    def _html(self) -> str:
        heads = ("", "the claim, and <b>what became of it</b>", "the number")
        rows = ["".join(f"<th>{head}</th>" for head in heads)]
        for v in self:
            told = ", ".join(filter(None, (v.how, escape(v.device), _link(v))))
            both = f"{escape(claims()[v.claim])}<br><b>{v.verdict}</b>: {escape(v.sentence)}"
            cells = (v.claim, both, f"{escape(v.number)} ({told})")
            rows.append("".join(f"<td>{cell}</td>" for cell in cells))
        lines = (f"<tr>{row}</tr>" for row in rows)
        return "\n".join([_SHEET, "<table class='dataframe verdicts'>", *lines, "</table>"])


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


def contradictions(found: Iterable[Verdict]) -> Iterator[str]:
    """Name the claims on which two notebooks reach different verdicts."""
    first: dict[str, Verdict] = {}
    for verdict in found:
        other = first.setdefault(verdict.claim, verdict)
        if other.verdict != verdict.verdict:
            yield (
                f"{verdict.claim}: {other.notebook} says {other.verdict!r}, "
                f"and {verdict.notebook} says {verdict.verdict!r}."
            )


def _link(verdict: Verdict) -> str:
    if not verdict.notebook:
        return f"cell <code>{verdict.cell}</code>"
    name = verdict.notebook.rpartition("/")[2]
    return f"<a href='../{verdict.notebook}.ipynb'>{name}</a>, cell <code>{verdict.cell}</code>"
