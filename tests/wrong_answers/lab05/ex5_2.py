"""Answers to 5.2, the cost of keeping some tensors."""

from functools import cache

from wrong_answers import right, wrong

looks_one_step_back = wrong(
    "only the operations that make a dropped tensor itself",
    "            missing = missing | (set(op.reads) - kept)\n",
    "",
)
runs_again_where_all_results_are_missing = wrong(
    "all of its results are missing", "missing & set(op.writes)", "set(op.writes) <= missing"
)
goes_back_to_the_input = wrong(
    "what is kept need not be made", "(set(op.reads) - kept)", "set(op.reads)"
)
makes_everything = wrong(
    "your sum makes all that is not kept", "missing & set(op.writes)", "set(op.writes) - kept"
)
gives_freed_bytes = wrong(
    "the bytes are those of what backward needs and you drop",
    "for name in kept)",
    "for name in tape.needed - kept)",
)
counts_needed_bytes = wrong(
    "the bytes leave out kept tensors that backward never asks for",
    "for name in kept)",
    "for name in tape.needed & kept)",
)
counts_every_write = wrong(
    "once for each operation that writes it",
    "for name in kept)",
    "for op in tape.ops for name in op.writes if name in kept)",
)
gives_the_flops_alone = wrong(
    "2 values are wanted, the bytes and the FLOPs",
    "sum(tape.num_bytes[name] for name in kept), flops",
    "flops",
)
takes_from_the_tape = wrong(
    "your function changed `tape` or `kept`",
    "    return sum",
    "    tape.needed.difference_update(kept)\n    return sum",
)


def bytes_of(tape, names):
    return sum(tape.num_bytes[name] for name in names)


def swept(tape, kept, wanted=None):
    """The right FLOPs: once through the tape, from its end."""
    must, flops = set(tape.needed if wanted is None else wanted) - set(kept), 0
    for op in reversed(tape.ops):
        if must & set(op.writes):
            flops += op.flops
            must |= set(op.reads) - set(kept)
    return flops


def followed(tape, kept, makers):
    """Follow each dropped tensor back, by one maker each."""
    again = set()

    def make(name):
        op = makers.get(name)
        if op is None or name in kept or op in again:
            return
        again.add(op)
        for read in op.reads:
            make(read) if read != name else None

    for name in tape.needed:
        make(name)
    return bytes_of(tape, kept), sum(op.flops for op in again)


@wrong("an operation that several dropped tensors go back to")
def adds_up_the_prices(tape, kept):
    flops = sum(swept(tape, kept, {name}) for name in tape.needed - kept)
    return bytes_of(tape, kept), flops


@wrong("made by the last operation alone that writes it")
def remembers_the_last_writer(tape, kept):
    ops = [op for op in tape.ops if op.name != "view"]
    return followed(tape, kept, {name: op for op in ops for name in op.writes})


@wrong("made by the first operation alone that writes it")
def remembers_the_first_writer(tape, kept):
    return followed(tape, kept, {n: op for op in reversed(tape.ops) for n in op.writes})


@right
def by_recursion_over_the_writers_before_a_reader(tape, kept):
    @cache
    def again(name, before):
        if name in kept:
            return frozenset()
        own = [i for i, op in enumerate(tape.ops[:before]) if name in op.writes]
        return frozenset(own).union(*(again(read, i) for i in own for read in tape.ops[i].reads))

    ran = frozenset().union(*(again(name, len(tape.ops)) for name in tape.needed))
    return bytes_of(tape, kept), sum(tape.ops[i].flops for i in ran)


@right
def from_the_end_of_the_tape(tape, kept):
    return bytes_of(tape, kept), swept(tape, kept)


@wrong("after its last reader runs again in your sum")
def runs_all_writers_again(tape, kept):
    @cache
    def again(name):
        if name in kept:
            return frozenset()
        own = [i for i, op in enumerate(tape.ops) if name in op.writes]
        reads = {read for i in own for read in tape.ops[i].reads} - {name}
        return frozenset(own).union(*map(again, reads))

    ran = frozenset().union(*map(again, tape.needed))
    return bytes_of(tape, kept), sum(tape.ops[i].flops for i in ran)
