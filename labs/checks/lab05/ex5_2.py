"""The check of 5.2: the price of keeping some tensors of a trace and recomputing the others."""

import random
from collections.abc import Collection
from functools import cached_property, partial
from typing import Any

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read

from ..lab04.chains import telling
from . import given
from .given.numbers import BLOCK, Op, trace_of

_PASSED = "bytes and FLOPs of eight choices, with in-place writes, views and shared inputs"


def _cases(draw: Draw) -> Cases:
    drawn = partial(_draw, draw)

    def bytes_of(case: Case) -> list[int]:
        cost = Cost(case)
        return [cost.num_bytes, *(value for _, value in _bytes_faults(cost))]

    def flops_of(case: Case) -> list[int]:
        cost = Cost(case)
        return [cost.flops, *(value for _, value in _flops_faults(cost))]

    yield telling(drawn, bytes_of)
    yield telling(drawn, flops_of)
    yield from (drawn() for _ in range(5))
    yield {**drawn(), "kept": []}


def _draw(draw: Draw) -> dict[str, Any]:
    """Draw FLOPs, bytes and the kept tensors."""
    written = sorted({name for _, _, writes, *_ in BLOCK for name in writes.split()})
    numbers = random.Random(draw.randrange(10**6))
    return {
        "flops": [numbers.randrange(100, 1000) * 10**6 * row[3] for row in BLOCK],
        "num_bytes": {name: 4 * numbers.randrange(1000, 9000) for name in written},
        # without `lora`: kept, it would be what `reuse` wrote
        "kept": sorted(numbers.sample([n for n in written if n != "lora"], numbers.randint(3, 8))),
    }


class Cost:
    """The right cost of a case."""

    def __init__(self, case: Case) -> None:
        self.trace, self.kept = trace_of(case), set(case["kept"])
        self.num_bytes = sum(self.trace.num_bytes[name] for name in self.kept)

    @cached_property
    def flops(self) -> int:
        """FLOPs of the operations that run again."""
        return self.again(self.trace.needed)

    def again(
        self,
        wanted: Collection[str],
        ops: Collection[Op] | None = None,
        *,
        stop: bool = True,
        late: bool = False,
    ) -> int:
        """Count the FLOPs for wanted tensors, one operation added after the other.

        Without `stop` what is kept is made too; `late`, also what was read before an operation.
        """
        kept = self.kept if stop else set()
        known = [op for op in self.trace.ops if ops is None or op in ops]
        ran: set[int] = set()

        def makes(place: int) -> bool:
            readers = {n for i in ran if late or i > place for n in known[i].reads} - kept
            return bool(set(known[place].writes) & ((set(wanted) - self.kept) | readers))

        while more := {place for place in range(len(known)) if makes(place)} - ran:
            ran |= more
        return sum(known[place].flops for place in ran)


def _where(case: Case) -> str:
    return f"kept {', '.join(case['kept']) or 'nothing'}: "


@check(given.cost_of_keeping, _PASSED, _cases, oracle=Cost, where=_where)
def cost_of_keeping(case: Case, result: Result, right: Cost) -> None:
    seen = read.integer(result["num_bytes"], "the bytes")
    words = f"the bytes ({seen:,}) are not those of the tensors in `kept`, each once."
    expect.close(seen, right.num_bytes, _bytes_faults(right), otherwise=words)
    seen = read.integer(result["flops"], "the FLOPs")
    expect.close(
        seen,
        right.flops,
        _flops_faults(right),
        otherwise=f"the bytes are right, and the FLOPs ({seen:,}) are "
        f"{'too few' if seen < right.flops else 'too many'}. Write down by hand which operations "
        "run again, and print yours beside it.",
    )
    expect.fact(
        read.flag(result, "inputs kept"),
        "both numbers are right, and your function changed `trace` or `kept`, which the caller "
        "uses again. `|=` and `-=` change a set in place: begin with a new one.",
    )


def _bytes_faults(right: Cost) -> Faults:
    trace, kept, size_of = right.trace, right.kept, right.trace.num_bytes
    yield from {
        "the bytes are those of what backward needs and you drop: the kept ones are wanted.": sum(
            size_of[name] for name in trace.needed - kept
        ),
        "the bytes leave out kept tensors that backward never asks for: they take memory as "
        "well.": sum(size_of[name] for name in trace.needed & kept),
        "the bytes hold a tensor once for each operation that writes it: it is one storage.": sum(
            size_of[name] for op in trace.ops for name in op.writes if name in kept
        ),
    }.items()


def _flops_faults(right: Cost) -> Faults:
    ops, needed = right.trace.ops, right.trace.needed
    dropped = needed - right.kept
    must, of_all_missing, through = set(dropped), 0, right.again(needed, stop=False)
    for op in reversed(ops):
        if set(op.writes) <= must:
            of_all_missing += op.flops
            must |= set(op.reads) - right.kept
    last = {name: op for op in ops if op.name != "view" for name in op.writes}
    first = {name: op for op in reversed(ops) for name in op.writes}
    by_first = right.again(needed, set(first.values()))
    yield from {
        "only the operations that make a dropped tensor itself run again in your sum. Their inputs "
        "may be gone too, though backward never asked for them, and a loop from the front finds "
        "them too late.": sum(op.flops for op in ops if dropped & set(op.writes)),
        "an operation that several dropped tensors go back to is in your sum several times: it "
        "runs once.": sum(right.again({name}) for name in dropped),
        "your sum goes on through tensors that are kept: what is kept need not be made.": through,
        "your sum makes all that is not kept. Only what backward needs, or what leads to it, is "
        "recomputed.": right.again({name for op in ops for name in op.writes}),
        "an operation that writes a tensor after its last reader runs again in your sum: only what "
        "wrote it before it was read is needed.": right.again(needed, late=True),
        "an operation runs again only where all of its results are missing, in your sum: one that "
        "is missing is enough.": of_all_missing,
        "a tensor is made by the last operation alone that writes it, in your sum: an operation in "
        "place changes what an earlier one made, and both run again.": right.again(
            needed, set(last.values()), late=True
        ),
        "a tensor is made by the first operation alone that writes it, in your sum: one in place "
        "comes later, and what that reads must be there too.": by_first,
    }.items()
