"""The check of 5.2: what it costs to keep some tensors of a tape and to make the others again."""

from __future__ import annotations

import random
from collections import namedtuple
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.given import answered
from tutorial_lib.checks.lab04.chains import telling as telling_case
from tutorial_lib.checks.vocabulary import expect, read

# Tensors go by the names of their storages.
Op = namedtuple("Op", "name reads writes flops")


@dataclass(frozen=True)
class Tape:
    """The operations of a forward, the bytes of what they made, and what backward asks for."""

    ops: list[Op]
    num_bytes: dict[str, int]
    needed: set[str]

    def __iter__(self) -> Iterator[Any]:
        """Give the three in order, as the notebook's named tuple does."""
        return iter((self.ops, self.num_bytes, self.needed))


# A block: what each operation reads and writes, whether it is a product, and which of the written
# tensors backward asks for. `sum` is written three times: by a product, in place, and as a view.
# `reuse` writes its result into `lora`, which `add_` has read by then; nobody needs `probe`.
_BLOCK = (
    ("norm", "x", "h stats", False, "h stats"),
    ("qkv", "h", "qkv amax", True, "qkv"),
    ("scores", "qkv", "scores", True, ""),
    ("softmax", "scores", "weights", False, "weights"),
    ("dropout", "weights", "dropped mask", False, "dropped mask"),
    ("mix", "dropped qkv", "mixed", True, "mixed"),
    ("out", "mixed", "sum", True, ""),
    ("lora", "h", "lora", True, ""),
    ("add_", "sum lora", "sum", False, "sum"),
    ("view", "sum", "sum", False, ""),
    ("up", "sum", "up", True, "up"),
    ("gelu", "up", "act", False, "act"),
    ("down", "act", "result", True, ""),
    ("reuse", "result lora", "lora", True, ""),
    ("probe", "act", "probe", True, ""),
)


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)

    def bytes_of(case: Case) -> Iterator[int]:
        cost = Cost(case)
        return iter([cost.num_bytes, *(value for _, value in _bytes_faults(cost))])

    def flops_of(case: Case) -> Iterator[int]:
        cost = Cost(case)
        return iter([cost.flops, *(value for _, value in _flops_faults(cost))])

    drawn = partial(_draw, draw)
    telling = [telling_case(drawn, values) for values in (bytes_of, flops_of)]
    return [*telling, *(drawn() for _ in range(5)), {**drawn(), "kept": []}]


def _draw(draw: random.Random) -> dict[str, Any]:
    """Draw FLOPs, bytes and what is kept."""
    written = sorted({name for _, _, writes, *_ in _BLOCK for name in writes.split()})
    numbers = random.Random(draw.randrange(10**6))
    return {
        "flops": [numbers.randrange(100, 1000) * 10**6 * row[3] for row in _BLOCK],
        "num_bytes": {name: 4 * numbers.randrange(1000, 9000) for name in written},
        # without `lora`: kept, it would be what `reuse` wrote
        "kept": sorted(numbers.sample([n for n in written if n != "lora"], numbers.randint(3, 8))),
    }


def _tape_of(case: Case) -> Tape:
    ops = [
        Op(name, tuple(reads.split()), tuple(writes.split()), flops)
        for (name, reads, writes, *_), flops in zip(_BLOCK, case["flops"], strict=True)
    ]
    needed = {name for *_, needed in _BLOCK for name in needed.split()}
    return Tape(ops, dict(case["num_bytes"]), needed)


class Cost:
    """The right cost of a case."""

    def __init__(self, case: Case) -> None:
        self.tape, self.kept = _tape_of(case), set(case["kept"])
        self.num_bytes = sum(self.tape.num_bytes[name] for name in self.kept)

    @cached_property
    def flops(self) -> int:
        """FLOPs of what runs again."""
        return self.again(self.tape.needed)

    def again(
        self,
        wanted: Collection[str],
        ops: Collection[Op] | None = None,
        *,
        stop: bool = True,
        late: bool = False,
    ) -> int:
        """Give the FLOPs for wanted tensors, one operation added after the other.

        Args:
            wanted: What has to be there.
            ops: Those that are known; all of the tape.
            stop: Whether what is kept need not be made.
            late: Whether an operation also makes what was read before it.
        """
        kept = self.kept if stop else set()
        known = [op for op in self.tape.ops if ops is None or op in ops]
        ran: set[int] = set()

        def makes(place: int) -> bool:
            readers = {n for i in ran if late or i > place for n in known[i].reads} - kept
            return bool(set(known[place].writes) & ((set(wanted) - self.kept) | readers))

        while more := {place for place in range(len(known)) if makes(place)} - ran:
            ran |= more
        return sum(known[place].flops for place in ran)


def _run(answer: Callable[..., Any], case: Case) -> Result:
    tape, kept = _tape_of(case), set(case["kept"])
    num_bytes, flops = answered.several(answer(tape, kept), 2, "the bytes and the FLOPs")
    is_kept = tape == _tape_of(case) and kept == set(case["kept"])
    return {"num_bytes": num_bytes, "flops": flops, "inputs kept": is_kept}


def _judge(case: Case, result: Result, right: Cost) -> None:
    where = f"kept {', '.join(case['kept']) or 'nothing'}: "
    seen = read.integer(result.get("num_bytes"), f"{where}the bytes")
    expect.close(
        seen,
        right.num_bytes,
        _bytes_faults(right),
        otherwise=f"the bytes ({seen:,}) are not those of the tensors in `kept`, each once.",
        tolerance=0,
        where=where,
    )
    seen = read.integer(result.get("flops"), f"{where}the FLOPs")
    side = "too few" if seen < right.flops else "too many"
    expect.close(
        seen,
        right.flops,
        _flops_faults(right),
        otherwise=f"the bytes are right, and the FLOPs ({seen:,}) are {side}. Write down by hand "
        "which operations run again, and print yours beside it.",
        tolerance=0,
        where=where,
    )
    if not read.flag(result, "inputs kept"):
        raise CheckError(
            f"{where}both numbers are right, and your function changed `tape` or `kept`, which the "
            "caller uses again. `|=` and `-=` change a set in place: begin with a new one."
        )


def _bytes_faults(right: Cost) -> expect.Faults:
    tape, kept = right.tape, right.kept
    yield (
        "the bytes are those of what backward needs and you drop: the kept ones are wanted.",
        sum(tape.num_bytes[name] for name in tape.needed - kept),
    )
    yield (
        "the bytes leave out kept tensors that backward never asks for: they take memory as well.",
        sum(tape.num_bytes[name] for name in tape.needed & kept),
    )
    yield (
        "the bytes hold a tensor once for each operation that writes it: it is one storage.",
        sum(tape.num_bytes[n] for op in tape.ops for n in op.writes if n in kept),
    )


def _flops_faults(right: Cost) -> expect.Faults:
    ops, needed = right.tape.ops, right.tape.needed
    dropped = needed - right.kept
    yield (
        "only the operations that make a dropped tensor itself run again in your sum. Their inputs "
        "may be gone too, though backward never asked for them, and a loop from the front finds "
        "them too late.",
        sum(op.flops for op in ops if dropped & set(op.writes)),
    )
    yield (
        "an operation that several dropped tensors go back to is in your sum several times: it "
        "runs once.",
        sum(right.again({name}) for name in dropped),
    )
    yield (
        "your sum goes on through tensors that are kept: what is kept need not be made.",
        right.again(needed, stop=False),
    )
    yield (
        "your sum makes all that is not kept. Only what backward needs, or what leads to it, is "
        "made again.",
        right.again({name for op in ops for name in op.writes}),
    )
    yield (
        "an operation that writes a tensor after its last reader runs again in your sum: only what "
        "wrote it before it was read is needed.",
        right.again(needed, late=True),
    )
    must, flops = needed - right.kept, 0
    for op in reversed(ops):
        if set(op.writes) <= must:
            flops += op.flops
            must |= set(op.reads) - right.kept
    yield (
        "an operation runs again only where all of its results are missing, in your sum: one that "
        "is missing is enough.",
        flops,
    )
    last = {name: op for op in ops if op.name != "view" for name in op.writes}
    yield (
        "a tensor is made by the last operation alone that writes it, in your sum: an operation in "
        "place changes what an earlier one made, and both run again.",
        right.again(needed, set(last.values()), late=True),
    )
    first = {name: op for op in reversed(ops) for name in op.writes}
    yield (
        "a tensor is made by the first operation alone that writes it, in your sum: one in place "
        "comes later, and what that reads must be there too.",
        right.again(needed, set(first.values())),
    )


cost_of_keeping = Check(
    "lab05.cost_of_keeping",
    "5.2",
    "bytes and FLOPs of eight choices, with in-place writes, views and shared inputs",
    _cases,
    _run,
    _judge,
    oracle=Cost,
)
