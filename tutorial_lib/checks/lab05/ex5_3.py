"""The check of 5.3: contexts that keep chosen products of a segment."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext, checkpoint

from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.given import observe
from tutorial_lib.checks.lab05 import models
from tutorial_lib.checks.vocabulary import expect, read
from tutorial_lib.instruments.private_torch import policy_of

# A block's products in order, attention written out: qkv, scores, mix, out, up, down.
_COUNT, _LINEAR = 6, (0, 3, 4, 5)


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    sizes = models.draw_sizes(draw)
    drawn = sorted(draw.sample(range(_COUNT), 3))
    return [{**sizes, "keep": keep} for keep in ([0, 4], [1, 2, 3], drawn, list[int]())]


class Right:
    """What a case's step takes: plain, checkpointed, and with some products kept."""

    def __init__(self, case: Case) -> None:
        gpt, tokens = models.make_gpt(case)
        self.plain = models.stepped(gpt, lambda: gpt.loss(tokens), case["seed"])
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
        # FLOPs of each product of a block, and bytes of its result
        self.products = [(2 * rows * flops, 4 * rows * numbers) for flops, numbers in per_row]
        checkpointed, tokens = models.make_gpt(case)
        _wrap(checkpointed)
        self.waiting = _waiting(checkpointed, tokens)

    def flops(self, *kept: Collection[int]) -> int:
        """FLOPs of a step whose blocks keep these products."""
        again = [self.products[i][0] for keep in kept for i in range(_COUNT) if i not in set(keep)]
        return self.plain.flops + int(sum(again))

    def bytes_with(self, keep: Collection[int]) -> int:
        """Bytes that wait where both blocks keep these products."""
        return self.waiting + 2 * int(sum(self.products[i][1] for i in keep))


def _wrap(gpt: nn.Module, **options: Any) -> None:
    for block in gpt.blocks:  # type: ignore[union-attr]
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, **options)


def _waiting(gpt: nn.Module, tokens: Tensor) -> int:
    held: list[Tensor] = []
    _, stayed = observe.peak_above(lambda: held.append(gpt.loss(tokens)), gpt)  # type: ignore[operator]
    return stayed


def _run(answer: Callable[..., Any], case: Case) -> Result:
    gpt, tokens = models.make_gpt(case)
    context_fn = answer(set(case["keep"]))
    if not callable(context_fn):
        raise CheckError(
            f"{type(context_fn).__name__} came, and a function is wanted: checkpoint calls it "
            "before each segment, so that each segment has contexts of its own."
        )
    _wrap(gpt, context_fn=context_fn)
    try:
        step = models.stepped(gpt, lambda: gpt.loss(tokens), case["seed"])
    except (RuntimeError, IndexError) as error:
        if "mutated" in str(error):
            raise CheckError(
                "a result was written in place after it was kept, and PyTorch hands no such result "
                "out: keep products alone."
            ) from error
        raise CheckError(
            f"backward failed ({type(error).__name__}: {str(error)[:120]}). The recomputation "
            "asked for a result that forward did not keep: each segment counts for itself."
        ) from error
    asked = {"same_again": _same_again(answer(set(case["keep"])))}
    return {**step._asdict(), **asked, "waiting": _waiting(gpt, tokens)}


def _same_again(context_fn: Callable[[], Any]) -> bool:
    """Ask the policy about both runs: not every release asks it about the recomputation."""
    operands = torch.empty(2, 2), torch.empty(2, 2)
    kept = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE
    policy = policy_of(context_fn()[0])
    if policy is None:  # contexts of the answer's own
        return True
    first, again = (
        [policy(context, torch.ops.aten.mm.default, *operands) in kept for _ in range(_COUNT)]
        for context in (SelectiveCheckpointContext(is_recompute=again) for again in (False, True))
    )
    return first == again


def _judge(case: Case, result: Result, right: Right) -> None:
    keep, plain = case["keep"], right.plain
    where = f"keep {keep}: "
    faults = {
        f"{where}asked about the recomputation too, as some releases of PyTorch do, your policy "
        "keeps other products than in forward: each run counts from 0, and context.is_recompute "
        "says which it is.": not read.flag(result, "same_again")
    }
    expect.no_fault(faults)
    waiting = read.integer(result.get("waiting"), f"{where}waiting bytes")
    seen, wanted = read.integer(result.get("flops"), f"{where}FLOPs"), right.flops(keep, keep)
    expect.close(
        seen,
        wanted,
        _flops_faults(right, keep),
        otherwise=f"{(seen - plain.flops) / max(wanted - plain.flops, 1):.2f} times the FLOPs that "
        "should run again do so: print in the policy which operations get a number, and which of "
        "them are kept.",
        tolerance=0,
        where=where,
    )
    wanted = right.bytes_with(keep)
    expect.close(
        waiting,
        wanted,
        otherwise=f"the right products run again, and {waiting:,} bytes wait for backward, where "
        f"{wanted:,} should: the results of other operations are to be made again.",
        tolerance=0,
        where=where,
    )
    other = (
        f"{where}bytes and FLOPs are right, and loss or gradients are not those of the plain "
        "model: does each product get its own result back?"
    )
    loss = read.number(result.get("loss"), f"{where}the loss")
    expect.close(loss, plain.loss, otherwise=other, tolerance=0)
    models.expect_gradients(result, plain.gradients, other)


def _flops_faults(right: Right, keep: Collection[int]) -> expect.Faults:
    yield (
        "no product ran again: yours keeps them all, whatever was asked for.",
        right.flops(range(_COUNT), range(_COUNT)),
    )
    yield (
        "every product ran again: nothing was kept, or the recomputation did not take it.",
        right.flops((), ()),
    )
    others = [i for i in range(_COUNT) if i not in keep]
    yield "those that should be kept ran again, and the others did not.", right.flops(*2 * [others])
    yield (
        "all linear layers are kept: an operation's name does not tell them apart, so count.",
        right.flops(_LINEAR, _LINEAR),
    )
    fewer = [i - 1 for i in keep]
    yield "yours counts from 1, and products are numbered from 0.", right.flops(fewer, fewer)
    yield (
        "one of the two blocks kept its products, and the other one did not: each segment counts "
        "for itself.",
        right.flops(keep, ()),
    )


keep_products = Check(
    "lab05.keep_products",
    "5.3",
    "four choices of products: FLOPs, waiting bytes and gradients of a GPT with dropout",
    _cases,
    _run,
    _judge,
    oracle=Right,
)
