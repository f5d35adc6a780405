"""The questions of 5.2 and 5.4 as numbers, and the halves that run their answers."""

from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from tutorial_lib.checks.given import Answer, Case, Result, answered, observe, run_half
from tutorial_lib.checks.given.surroundings import expect_unchanged

from ...lab04.given import NO_SOLVER, in_time

# Tensors go by the names of their storages.
Op = namedtuple("Op", "name reads writes flops")


@dataclass(frozen=True)
class Trace:
    """The operations of a forward, the bytes of their results, and those that backward needs."""

    ops: list[Op]
    num_bytes: dict[str, int]
    needed: set[str]

    def __iter__(self) -> Iterator[Any]:
        """Yield the three in order, as the notebook's named tuple does."""
        return iter((self.ops, self.num_bytes, self.needed))


# A block: what each operation reads and writes, whether it is a matmul, and which of the written
# tensors backward asks for. `sum` is written three times: by a matmul, in place, and as a view.
# `reuse` writes its result into `lora`, which `add_` has read by then; nobody needs `probe`.
BLOCK = (
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


def trace_of(case: Case) -> Trace:
    """Make a case's trace."""
    ops = [
        Op(name, tuple(reads.split()), tuple(writes.split()), flops)
        for (name, reads, writes, *_), flops in zip(BLOCK, case["flops"], strict=True)
    ]
    needed = {name for *_, needed in BLOCK for name in needed.split()}
    return Trace(ops, dict(case["num_bytes"]), needed)


@run_half("5.2")
def cost_of_keeping(answer: Answer, case: Case) -> Result:
    trace, kept = trace_of(case), set(case["kept"])
    num_bytes, flops = answered.several(answer(trace, kept), 2, "the bytes and the FLOPs")
    is_kept = trace == trace_of(case) and kept == set(case["kept"])
    return {"num_bytes": num_bytes, "flops": flops, "inputs kept": is_kept}


class Option(NamedTuple):
    """A way to run a part: bytes that then wait, bytes held while it runs, and FLOPs run again."""

    kept_bytes: int
    working_bytes: int
    flops: int


def options_of(case: Case) -> list[list[Option]]:
    """Make the options of a case's parts."""
    return [[Option(*option) for option in part] for part in case["parts"]]


@run_half("5.4", forbidden=[NO_SOLVER])
def fewest_flops(answer: Answer, case: Case) -> Result:
    parts, chosen = options_of(case), []
    call = partial(in_time, lambda: chosen.append(answer(parts, case["budget"])), 10)
    said = observe.error_said(call, "ValueError")
    expect_unchanged(parts, options_of(case))
    return {"said": said, "chosen": chosen[0] if chosen else None}
