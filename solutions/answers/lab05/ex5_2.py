"""Answers to 5.2, the cost of keeping some tensors."""

from functools import cache

from solutions.answers import right, wrong

looks_one_step_back = wrong(
    "your sum runs only the operations that make",
    "            missing = missing | (set(op.reads) - kept)\n",
    "",
)
runs_again_where_all_results_are_missing = wrong(
    "all of its results are missing", "missing & set(op.writes)", "set(op.writes) <= missing"
)
goes_back_to_the_input = wrong(
    "your sum goes on past kept tensors", "(set(op.reads) - kept)", "set(op.reads)"
)
makes_everything = wrong(
    "your sum recomputes all that is not kept", "missing & set(op.writes)", "set(op.writes) - kept"
)
gives_freed_bytes = wrong(
    "you added up the dropped tensors",
    "for name in kept)",
    "for name in trace.needed - kept)",
)
counts_needed_bytes = wrong(
    "the bytes leave out kept tensors that backward never asks for",
    "for name in kept)",
    "for name in trace.needed & kept)",
)
counts_every_write = wrong(
    "once for each operation that writes it",
    "for name in kept)",
    "for op in trace.ops for name in op.writes if name in kept)",
)
gives_the_flops_alone = wrong(
    "2 values are wanted, the bytes and the FLOPs",
    "sum(trace.num_bytes[name] for name in kept), flops",
    "flops",
)
takes_from_the_tape = wrong(
    "your function changed `trace` or `kept`",
    "    return sum",
    "    trace.needed.difference_update(kept)\n    return sum",
)


def bytes_of(trace, names):
    return sum(trace.num_bytes[name] for name in names)


def swept(trace, kept, wanted=None):
    """The right FLOPs: once through the trace, from its end."""
    must, flops = set(trace.needed if wanted is None else wanted) - set(kept), 0
    for op in reversed(trace.ops):
        if must & set(op.writes):
            flops += op.flops
            must |= set(op.reads) - set(kept)
    return flops


def followed(trace, kept, makers):
    """Follow each dropped tensor back, by one maker each."""
    again = set()

    def make(name):
        op = makers.get(name)
        if op is None or name in kept or op in again:
            return
        again.add(op)
        for read in op.reads:
            make(read) if read != name else None

    for name in trace.needed:
        make(name)
    return bytes_of(trace, kept), sum(op.flops for op in again)


@wrong("where several dropped tensors depend on it")
def adds_up_the_prices(trace, kept):
    flops = sum(swept(trace, kept, {name}) for name in trace.needed - kept)
    return bytes_of(trace, kept), flops


@wrong("only the last operation that writes")
def remembers_the_last_writer(trace, kept):
    ops = [op for op in trace.ops if op.name != "view"]
    return followed(trace, kept, {name: op for op in ops for name in op.writes})


@wrong("only the first operation that writes")
def remembers_the_first_writer(trace, kept):
    return followed(trace, kept, {n: op for op in reversed(trace.ops) for n in op.writes})


@right
def by_recursion_over_the_writers_before_a_reader(trace, kept):
    @cache
    def again(name, before):
        if name in kept:
            return frozenset()
        own = [i for i, op in enumerate(trace.ops[:before]) if name in op.writes]
        return frozenset(own).union(*(again(read, i) for i in own for read in trace.ops[i].reads))

    ran = frozenset().union(*(again(name, len(trace.ops)) for name in trace.needed))
    return bytes_of(trace, kept), sum(trace.ops[i].flops for i in ran)


@right
def from_the_end_of_the_trace(trace, kept):
    return bytes_of(trace, kept), swept(trace, kept)


@wrong("writes a tensor after its last reader")
def runs_all_writers_again(trace, kept):
    @cache
    def again(name):
        if name in kept:
            return frozenset()
        own = [i for i, op in enumerate(trace.ops) if name in op.writes]
        reads = {read for i in own for read in trace.ops[i].reads} - {name}
        return frozenset(own).union(*map(again, reads))

    ran = frozenset().union(*map(again, trace.needed))
    return bytes_of(trace, kept), sum(trace.ops[i].flops for i in ran)
