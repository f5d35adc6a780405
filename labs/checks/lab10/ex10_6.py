"""The check of 10.6: the chunk for a budget."""

import math
import re
from typing import Any

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read

from ..lab04.chains import telling
from . import given

_PASSED = "the fewest equal chunks within the budget"


class Needs:
    """What a loss in chunks needs."""

    def __init__(self, case: Case, size: int | None = None) -> None:
        head, hidden = given.head_of(case)
        self.size, self.vocab = size or hidden.element_size(), head.out_features
        self.tokens = hidden.shape[:-1].numel()
        self.rows = 2 * hidden.numel() * self.size
        self.learns = sum(p.numel() for p in head.parameters() if p.requires_grad)
        self.sums = self.learns * (self.size + 4)
        self.token = self.vocab * (4 + self.size) + head.in_features * self.size
        self.floor = self.rows + self.sums

    def largest(self, room: int, token: int | None = None) -> int:
        """Return the most tokens of a chunk for these bytes."""
        return min(room // (token or self.token), self.tokens)

    def even(self, largest: int) -> int:
        """Return the smallest chunk that makes as few chunks."""
        if largest < 1:
            return 0
        return math.ceil(self.tokens / math.ceil(self.tokens / largest))


def _cases(draw: Draw) -> Cases:
    for learns in (True, False):

        def drawn(learns: bool = learns) -> Case:
            case: dict[str, Any] = {"dtype": "bfloat16", "bias": False, "learns": learns}
            case |= {"vocab": draw.choice([32_000, 128_256, 256_000]), "width": 4096}
            case["shape"] = [draw.randint(2, 4), 2000]
            return _with_room(case, draw.randint(60, 300))

        case = telling(drawn, lambda case: [_right(case), *(value for _, value in _faults(case))])
        yield case
    yield _with_room({**case, "dtype": "float32", "bias": True}, 1000, less=1)
    for room, less in ((Needs(case).tokens + 5, 0), (1, 0), (1, 1)):
        yield _with_room(case, room, less)


def _with_room(case: Case, tokens: int, less: int = 0) -> dict[str, Any]:
    """Return a case whose budget just fits a chunk of so many tokens, or some bytes less."""
    needs = Needs(case)
    return {**case, "budget": needs.floor + tokens * needs.token - less}


def _right(case: Case) -> int:
    needs = Needs(case)
    return needs.even(needs.largest(case["budget"] - needs.floor))


@check(given.choose_chunk, _PASSED, _cases)
def choose_chunk(case: Case, result: Result) -> None:
    needs, budget = Needs(case), case["budget"]
    least = needs.floor + needs.token
    if budget < least:
        reason = f"a budget of {budget} bytes is below what a chunk of one token needs, {least}"
        expect.refuses(result["said"], ValueError, reason, [budget, least])
        return
    said = str(result["said"])
    wide = Needs(case, 4)
    refused = f"a budget of {budget} bytes holds a chunk of one token, but a ValueError came"
    is_wide = str(wide.floor + wide.token) in re.sub("[,_]", "", said)
    faults = {
        f"{refused} as if all numbers had four bytes: how many bytes does an element of hidden "
        "take?": (needs.size != 4 and is_wide),
        f"{refused}: {said[:200]} Do you count something that is not there, such as the gradient "
        "of a frozen matrix?": bool(said),
    }
    expect.no_fault(faults)
    where = f"{needs.tokens} tokens, a vocabulary of {case['vocab']}, a budget of {budget} bytes: "
    seen = read.integer(result["chunk"], f"{where}the chunk")
    otherwise = f"a chunk of {seen} tokens fits, but makes more chunks than are needed, or uneven "
    otherwise += "ones."
    if seen > needs.largest(budget - needs.floor):
        wanted = needs.floor + seen * needs.token
        otherwise = f"a chunk of {seen} tokens needs {wanted} bytes, more than the budget."
    expect.close(seen, _right(case), _faults(case), otherwise=otherwise, where=where)


def _faults(case: Case) -> Faults:
    needs, budget, wide = Needs(case), case["budget"], Needs(case, 4)
    room, vocab = budget - needs.floor, needs.vocab
    largest, low = needs.largest(room), needs.token - vocab * needs.size

    def even(room: int, token: int | None = None) -> int:
        return needs.even(needs.largest(room, token))

    if case["bias"]:
        yield (
            "the bias is missing, which may learn even if the matrix is frozen; or you rounded up "
            "a fraction of a token: // rounds down.",
            even(room + vocab * (needs.size + 4)),
        )
    yield from {
        "you counted four bytes for each number, but hidden's numbers have fewer.": (
            wide.even(wide.largest(budget - wide.floor))
        ),
        "that chunk fits, but the last one is smaller than the others: as many chunks of equal "
        "size need fewer bytes.": largest,
    }.items()
    if largest:
        yield (
            "you rounded tokens / chunks down, or to the nearest: the leftover tokens then make "
            "one more chunk. Round up.",
            round(needs.tokens / math.ceil(needs.tokens / largest)),
        )
    yield from {
        "you counted a chunk's logits once: count them in hidden's type and in float32.": (
            even(room, low)
        ),
        "you counted a chunk's logits as two in float32: one has hidden's type.": (
            even(room, needs.token + vocab * (4 - needs.size))
        ),
        "you counted hidden's bytes once: the rows that count are a copy, and have a gradient.": (
            even(room + needs.rows // 2)
        ),
    }.items()
    if case["learns"]:
        yield from {
            "the gradients' sums are missing: they don't depend on the chunk.": even(budget),
            "the sums in float32 are missing: count them besides the chunk's own gradients.": (
                even(room + 4 * needs.learns)
            ),
        }.items()
