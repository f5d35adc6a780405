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


def _where(case: Case) -> str:
    return f"keep {case['keep']}: "


@check(given.keep_matmuls, _PASSED, _cases, oracle=_Right, where=_where)
def keep_matmuls(case: Case, result: Result, right: _Right) -> None:
    keep, plain = case["keep"], right.plain
    expect.fact(
        read.flag(result, "same_again"),
        "asked about the recomputation too, as some releases of PyTorch do, your policy keeps "
        "other matmuls than in forward: each run counts from 0, and context.is_recompute says "
        "which it is.",
    )
    flops, wanted = read.integer(result["flops"], "FLOPs"), right.flops(keep, keep)
    again = (flops - plain.flops) / max(wanted - plain.flops, 1)
    expect.close(
        flops,
        wanted,
        _flops_faults(right, keep),
        otherwise=f"{again:.2f} times the FLOPs that should run again do so: print in the policy "
        "which operations get a number, and which of them are kept.",
    )
    waiting, should_wait = read.integer(result["waiting"], "waiting bytes"), right.bytes_with(keep)
    other = (
        "bytes and FLOPs are right, and loss or gradients are not those of the plain model: does "
        "each matmul get its own result back?"
    )
    faults = {
        f"the right matmuls run again, and {waiting:,} bytes wait for backward, where "
        f"{should_wait:,} should: the results of other operations are to be "
        "recomputed.": waiting != should_wait,
        other: read.number(result["loss"], "the loss") != plain.loss,
    }
    expect.no_fault(faults)
    expect_gradients(result, plain.gradients, other)


def _flops_faults(right: _Right, keep: Collection[int]) -> Faults:
    others, fewer = [i for i in _MATMULS if i not in keep], [i - 1 for i in keep]
    kept = {
        "no matmul ran again: yours keeps them all, whatever was asked for.": _MATMULS,
        "every matmul ran again: nothing was kept, or the recomputation did not take it.": (),
        "those that should be kept ran again, and the others did not.": others,
        "all linear layers are kept: an operation's name does not tell them apart, so "
        "count.": _LINEAR,
        "yours counts from 1, and matmuls are numbered from 0.": fewer,
    }
    yield from ((words, right.flops(one, one)) for words, one in kept.items())
    one_block = "one of the two blocks kept its matmuls, and the other one did not: each segment "
    yield f"{one_block}counts for itself.", right.flops(keep, ())
