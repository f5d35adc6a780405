"""The checks of 5.2 and 5.4: the price of a choice, and the best choice within a budget."""

import itertools
import random
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property, partial
from typing import Any

from tutorial_lib.checks.given.half import HOW_TO_CALL
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read

from ..lab04.chains import telling
from . import given
from .given.numbers import BLOCK, Op, Option, options_of, trace_of

_PASSED_5_2 = "right bytes and FLOPs of eight choices, with in-place writes, views, shared inputs"
_PASSED_5_4 = "eight models: the fewest FLOPs within budget; refuses an impossible budget"
_LONG = 8  # parts, where there are too many choices to try them all
# Parts, options of each, and the budget: a share of the way from the smallest possible one to one
# that allows every part its fewest FLOPs.
_SHAPES = ((4, 3, 0.5), (6, 3, 0.3), (5, 4, 0.6), (7, 2, 0.5), (5, 3, 0.0), (4, 3, 1.0))


def _cases_5_2(draw: Draw) -> Cases:
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


def _where_5_2(case: Case) -> str:
    return f"kept {', '.join(case['kept']) or 'nothing'}: "


@check(given.cost_of_keeping, _PASSED_5_2, _cases_5_2, oracle=Cost, where=_where_5_2)
def cost_of_keeping(case: Case, result: Result, right: Cost) -> None:
    seen = read.integer(result["num_bytes"], "the bytes")
    words = f"the bytes ({seen:,}) are not those of the tensors in `kept`, each once."
    expect.close(seen, right.num_bytes, _bytes_faults(right), otherwise=words)
    seen = read.integer(result["flops"], "the FLOPs")
    expect.close(
        seen,
        right.flops,
        _flops_faults(right),
        otherwise=f"the bytes are right, but the FLOPs ({seen:,}) are "
        f"{'too few' if seen < right.flops else 'too many'}. Find by hand which operations run "
        f"again, and compare with yours. {HOW_TO_CALL} The trace is call.args[0].",
    )
    expect.fact(
        read.flag(result, "inputs kept"),
        "both numbers are right, but your function changed `trace` or `kept`, which the caller "
        "uses again. `|=` and `-=` change a set in place: begin with a new one.",
    )


def _bytes_faults(right: Cost) -> Faults:
    trace, kept, size_of = right.trace, right.kept, right.trace.num_bytes
    yield from {
        "you added up the dropped tensors that backward needs: add up the kept ones.": sum(
            size_of[name] for name in trace.needed - kept
        ),
        "the bytes leave out kept tensors that backward never asks for: they take memory as "
        "well.": sum(size_of[name] for name in trace.needed & kept),
        "the bytes count a tensor once for each operation that writes it: it is one storage.": sum(
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
        "your sum runs only the operations that make a dropped tensor itself. Their inputs may be "
        "gone too, and a loop from the front finds them too "
        "late.": sum(op.flops for op in ops if dropped & set(op.writes)),
        "you counted an operation several times where several dropped tensors depend on it: it "
        "runs again once.": sum(right.again({name}) for name in dropped),
        "your sum goes on past kept tensors: nothing has to run again to make those.": through,
        "your sum recomputes all that is not kept. Only what backward needs, or what leads to it, "
        "runs again.": right.again({name for op in ops for name in op.writes}),
        "your sum includes an operation that writes a tensor after its last reader: only what "
        "wrote it before it was read runs again.": right.again(needed, late=True),
        "your sum runs an operation again only if all of its results are missing: one missing "
        "result is enough.": of_all_missing,
        "your sum runs only the last operation that writes a tensor: an in-place operation changes "
        "what an earlier one made, so both run again.": right.again(
            needed, set(last.values()), late=True
        ),
        "your sum runs only the first operation that writes a tensor: an in-place one comes later, "
        "and needs its other inputs too.": by_first,
    }.items()


def _cases_5_4(draw: Draw) -> Cases:
    def case(count: int, number: int, share: float) -> Case:
        parts = _draw_parts(draw, count, number)
        if (count, number, share) in _SHAPES[1:3]:  # some parts have one option alone
            parts[0], parts[-1] = parts[0][:1], parts[-1][:1]
        best = Best({"parts": parts, "budget": 0})
        fewest = min(flops for _, flops in best.by_peak)
        high = min(peak for peak, flops in best.by_peak if flops == fewest)
        return {"parts": parts, "budget": best.smallest + int(share * (high - best.smallest))}

    def values(drawn: Case) -> list[int]:
        best = Best(drawn)
        kept = _fewest(c for c in best.choices if _all_kept(c) <= best.budget)
        # -1: nothing fits; 0: a budget that is ignored
        return [-1, 0, best.flops, kept, *(value for _, value in _faults(best))]

    yield telling(lambda: case(5, 3, 0.5), values)
    cases = [case(*shape) for shape in _SHAPES]
    yield from cases
    yield {**cases[4], "budget": cases[4]["budget"] - 1}
    yield {"parts": _draw_parts(draw, _LONG, 8), "budget": 10**4}  # every first option fits


def _draw_parts(draw: Draw, count: int, number: int) -> list[list[list[int]]]:
    """Draw parts as data; a first option keeps most, holds most at work, and runs least again."""
    parts = []
    for _ in range(count):
        kept = sorted((draw.randint(2, 40) for _ in range(number)), reverse=True)
        flops = [0, *sorted(draw.randint(1, 60) for _ in range(number - 1))]
        working = sorted((kept[0] + draw.randint(2, 30) for _ in kept), reverse=True)
        parts.append([list(option) for option in zip(kept, working, flops, strict=True)])
    return parts


class Best:
    """All choices of a case, tried one after the other."""

    def __init__(self, case: Case) -> None:
        self.parts, self.budget = options_of(case), case["budget"]
        is_long = len(self.parts) == _LONG  # too many choices to try: only the best is listed
        self.choices = list(itertools.product(*(p[: 1 if is_long else None] for p in self.parts)))
        self.by_peak = [(peak_bytes(chosen), total_flops(chosen)) for chosen in self.choices]
        self.smallest = min(peak for peak, _ in self.by_peak)
        self.flops = _fewest(c for c in self.choices if peak_bytes(c) <= self.budget)


def peak_bytes(chosen: Sequence[Option], *, own: bool = False) -> int:
    """Return the most bytes held: kept by the parts before (and its own), and a part at work."""
    kept = itertools.accumulate((option.kept_bytes for option in chosen), initial=0)
    return max(k + o.working_bytes + own * o.kept_bytes for k, o in zip(kept, chosen, strict=False))


def total_flops(chosen: Sequence[Option]) -> int:
    """Add up the FLOPs that run again."""
    return sum(option.flops for option in chosen)


def _fewest(choices: Iterable[Sequence[Option]]) -> int:
    return min(map(total_flops, choices), default=-1)


def _where_5_4(case: Case) -> str:
    return f"{len(case['parts'])} parts, {case['budget']} bytes: "


@check(given.fewest_flops, _PASSED_5_4, _cases_5_4, oracle=Best, where=_where_5_4)
def fewest_flops(case: Case, result: Result, best: Best) -> None:
    said = str(result["said"])
    if best.budget < best.smallest:
        words = f"no choice fits, so raise a ValueError; {said[:120] or 'a choice'} came."
        expect.fact(said.startswith("ValueError"), words)
        return
    expect.fact(not said, f"your function raised {said[:160].strip(': ')}, and there is a choice.")
    name = "the numbers of the options"
    numbers = read.integers(result["chosen"], name, len(best.parts))
    are_there = all(0 <= n < len(part) for n, part in zip(numbers, best.parts, strict=True))
    expect.fact(are_there, f"{name}: {numbers} includes a number that its part does not have.")
    chosen = [part[n] for n, part in zip(numbers, best.parts, strict=True)]
    expect.fact(peak_bytes(chosen) <= best.budget, _over(chosen, best.budget))
    expect.close(
        total_flops(chosen),
        best.flops,
        _faults(best),
        otherwise=f"{numbers} fits and runs {total_flops(chosen)} FLOPs again, but another choice "
        "fits with fewer: is each option of a part tried after all that may be kept before it?",
    )


def _over(chosen: Sequence[Option], budget: int) -> str:
    if all(option.flops == 0 for option in chosen):
        return "every part has its fewest FLOPs, but that does not fit."
    if _all_kept(chosen) <= budget:
        return "kept bytes fit, but each part's working bytes come on top of those kept before it."
    return f"your choice needs {peak_bytes(chosen) - budget} bytes more than the budget."


def _faults(best: Best) -> Faults:
    smallest = min(flops for peak, flops in best.by_peak if peak == best.smallest)

    def at_once(chosen: Sequence[Option]) -> int:
        return _all_kept(chosen) + max(o.working_bytes for o in chosen)

    of_one = [[part[i] for part in best.parts] for i in range(min(map(len, best.parts)))]
    alike = _fewest(c for c in of_one if peak_bytes(c) <= best.budget)
    cautious = _fewest(c for c in best.choices if at_once(c) <= best.budget)
    by_greed = total_flops(greedy(best.parts, best.budget))
    yield from {
        "that is the least memory possible: use the rest of the budget to save FLOPs.": smallest,
        "all parts use the same option, but a mixture needs fewer FLOPs.": alike,
        "your sum holds what all parts keep while one runs. When a part runs backward, those after "
        "it are done and hold nothing.": cautious,
        "your sum adds a part's own kept_bytes to its working_bytes, which include them.": _fewest(
            c for c in best.choices if peak_bytes(c, own=True) <= best.budget
        ),
        "that is the greedy choice, by bytes freed per FLOP: it may free too much.": by_greed,
    }.items()


def _all_kept(chosen: Sequence[Option]) -> int:
    return sum(option.kept_bytes for option in chosen)


def greedy(parts: Sequence[Sequence[Option]], budget: int) -> list[Option]:
    """Exchange the option that frees most bytes for each FLOP, until all fits or none is left."""
    numbers = [min(range(len(part)), key=lambda i, p=part: p[i].flops) for part in parts]  # type: ignore[misc]
    while peak_bytes(chosen := [part[n] for part, n in zip(parts, numbers, strict=True)]) > budget:
        exchanges = [
            ((was.kept_bytes - option.kept_bytes) / max(option.flops - was.flops, 1), i, number)
            for i, (part, was) in enumerate(zip(parts, chosen, strict=True))
            for number, option in enumerate(part)
            if option.kept_bytes < was.kept_bytes
        ]
        if not exchanges:
            break
        _, i, number = max(exchanges)
        numbers[i] = number
    return chosen
