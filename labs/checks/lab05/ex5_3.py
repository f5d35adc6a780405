"""The check of 5.3: contexts that keep chosen matmuls of a segment."""

from collections.abc import Collection

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read

from . import given
from .given import modules
from .gpts import draw_sizes, expect_gradients

_PASSED = "four choices of matmuls: FLOPs, waiting bytes and gradients of a GPT with dropout"
_MATMULS, _LINEAR = range(modules.NUM_MATMULS), (0, 3, 4, 5)


def _cases(draw: Draw) -> Cases:
    sizes, drawn = draw_sizes(draw), sorted(draw.sample(_MATMULS, 3))
    yield from ({**sizes, "keep": keep} for keep in ([0, 4], [1, 2, 3], drawn, list[int]()))


class _Right:
    """The bytes of a case's step: plain, checkpointed, and with some matmuls kept."""

    def __init__(self, case: Case) -> None:
        gpt, tokens = modules.make_gpt(case)
        self.plain = modules.stepped(gpt, lambda: gpt.loss(tokens), case["seed"])
        width, seq = gpt.config.d_model, gpt.config.seq_len
        per_row = [  # multiplications, and numbers of the result
            (3 * width**2, 3 * width),
            (seq * width, seq * gpt.config.num_heads),
            (seq * width, width),
            (width**2, width),
            (4 * width**2, 4 * width),
            (4 * width**2, width),
        ]
        rows = case["batch"] * seq
        # FLOPs of each matmul of a block, and bytes of its result
        self.matmuls = [(2 * rows * flops, 4 * rows * numbers) for flops, numbers in per_row]
        checkpointed, tokens = modules.make_gpt(case)
        modules.checkpoint_blocks(checkpointed)
        self.waiting = modules.waiting_bytes(checkpointed, tokens)

    def flops(self, *kept: Collection[int]) -> int:
        """FLOPs of a step whose blocks keep these matmuls."""
        again = [self.matmuls[i][0] for keep in kept for i in _MATMULS if i not in set(keep)]
        return self.plain.flops + int(sum(again))

    def bytes_with(self, keep: Collection[int]) -> int:
        """Bytes that wait where both blocks keep these matmuls."""
        return self.waiting + 2 * int(sum(self.matmuls[i][1] for i in keep))


@check(given.keep_matmuls, _PASSED, _cases, oracle=_Right)
def keep_matmuls(case: Case, result: Result, right: _Right) -> None:
    keep, plain = case["keep"], right.plain
    where, wanted = f"keep {keep}: ", right.flops(keep, keep)
    expect.fact(
        read.flag(result, "same_again"),
        f"{where}asked about the recomputation too, as some releases of PyTorch do, your policy "
        "keeps other matmuls than in forward: each run counts from 0, and context.is_recompute "
        "says which it is.",
    )
    expect.value(
        result["flops"],
        wanted,
        _flops_faults(right, keep),
        name=f"{where}FLOPs",
        otherwise=lambda seen: (
            f"{(seen - plain.flops) / max(wanted - plain.flops, 1):.2f} times the FLOPs that "
            "should run again do so: print in the policy which operations get a number, and which "
            "of them are kept."
        ),
        where=where,
    )
    should_wait = right.bytes_with(keep)
    expect.value(
        result["waiting"],
        should_wait,
        name=f"{where}waiting bytes",
        otherwise=lambda waiting: (
            f"the right matmuls run again, and {waiting:,} bytes wait for backward, where "
            f"{should_wait:,} should: the results of other operations are to be recomputed."
        ),
        where=where,
    )
    other = (
        f"{where}bytes and FLOPs are right, and loss or gradients are not those of the plain "
        "model: does each matmul get its own result back?"
    )
    loss = read.number(result["loss"], f"{where}the loss")
    expect.close(loss, plain.loss, otherwise=other, tolerance=0)
    expect_gradients(result, plain.gradients, other)


def _flops_faults(right: _Right, keep: Collection[int]) -> Faults:
    others, fewer = [i for i in _MATMULS if i not in keep], [i - 1 for i in keep]
    yield from {
        "no matmul ran again: yours keeps them all, whatever was asked for.": right.flops(
            _MATMULS, _MATMULS
        ),
        "every matmul ran again: nothing was kept, or the recomputation did not take it.": (
            right.flops((), ())
        ),
        "those that should be kept ran again, and the others did not.": right.flops(others, others),
        "all linear layers are kept: an operation's name does not tell them apart, so count.": (
            right.flops(_LINEAR, _LINEAR)
        ),
        "yours counts from 1, and matmuls are numbered from 0.": right.flops(fewer, fewer),
        "one of the two blocks kept its matmuls, and the other one did not: each segment counts "
        "for itself.": right.flops(keep, ()),
    }.items()
