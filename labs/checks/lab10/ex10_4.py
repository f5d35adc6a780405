"""The check of 10.4: the mean over the tokens that count, in a window of micro-batches."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read

from . import given
from .losses import expect_gradients, expect_loss

_PASSED = "the window's mean over what counts, also where nothing does"


def _cases(draw: Draw) -> Cases:
    seq = draw.randint(5, 7)
    case: dict[str, Any] = {"seed": draw.randrange(10**6), "seq": seq, "vocab": 9, "width": 4}
    short, long = draw.sample(range(1, seq), 2)
    yield {**case, "counted": [[short, long, 0]]}
    window = [[seq, short], [1, 0], [0, 0], [long]]
    yield {**case, "counted": window, "num_counted": _count(window)}
    yield {**case, "counted": [[0, 0]]}
    yield {**case, "counted": [[0, 0]], "num_counted": 0}
    yield from ({**case, "counted": [[seq, 2]], "num_counted": few} for few in (seq + 1, 0))


def _count(window: list[list[int]]) -> int:
    return sum(map(sum, window))


def _losses(case: Case) -> tuple[Tensor, list[Tensor], list[Tensor], list[int]]:
    """Return the matrix, the rows, each micro-batch's sum of losses, and how many count in it."""
    torch.manual_seed(case["seed"])
    weight = torch.randn(case["vocab"], case["width"], dtype=torch.float64, requires_grad=True)
    hidden, targets = given.window_of(case)
    for part in hidden:
        part.requires_grad_()
    sums = [
        F.cross_entropy((h @ weight.T).flatten(0, 1), t.flatten(), reduction="sum")
        for h, t in zip(hidden, targets, strict=True)
    ]
    return weight, hidden, sums, [sum(lengths) for lengths in case["counted"]]


def _gradients(loss: Tensor, weight: Tensor, hidden: list[Tensor]) -> list[Tensor]:
    return [*torch.autograd.grad(loss, [weight, *hidden], retain_graph=True)]


@check(given.mean_over_counted, _PASSED, _cases)
def mean_over_counted(case: Case, result: Result) -> None:
    window, said, told = _count(case["counted"]), str(result["said"]), case.get("num_counted")
    if told is not None and told < window:
        reason = f"num_counted (={told}) is below the {window} tokens that count"
        expect.refuses(said, ValueError, reason, [told, window])
        return
    where = f"with num_counted={told} and a window whose counted tokens are {case['counted']}"
    weight, hidden, sums, numbers = _losses(case)
    number = sum(part[..., 0].numel() for part in hidden)
    rows = read.integers(result["rows"], "the targets that loss_sum was given")
    _judge_rows(case, rows)
    no_number = f"{where} the loss is nan: where nothing counts the mean is 0 / 0, and 0 is wanted."
    faults = {
        f"{where} this came: {said[:300]} Nothing is to be refused where num_counted is not below "
        "the tokens that count here; where none counts the loss is 0.": bool(said),
        no_number: result["loss"] != result["loss"],
    }
    expect.no_fault(faults)
    total = torch.stack(sums).sum()
    usual = list(_faults(total, sums, numbers, number))
    expect_loss(result["loss"], total.item() / max(window, 1), ((w, v.item()) for w, v in usual))
    of_matrix, *of_rows = read.tensors(result["gradients"], 1 + len(hidden), "the gradients")
    zeros = "not even zeros, and other ranks wait for a gradient of every parameter"
    faults = {
        f"{where} the loss leads back to nothing: neither hidden nor the matrix got a gradient, "
        f"{zeros}.": window == 0 and all(g is None for g in (of_matrix, *of_rows)),
        f"{where} the loss leads back to hidden alone: the matrix got no gradient, {zeros}. "
        "loss_sum may be given no token.": window == 0 and of_matrix is None,
    }
    expect.no_fault(faults)
    names = ["the matrix", *(f"micro-batch {i}" for i in range(len(hidden)))]
    wanted = _gradients(total / max(window, 1), weight, hidden)
    wrong = ((words, _gradients(value, weight, hidden)) for words, value in usual)
    expect_gradients(result, wanted, names, wrong)
    expect.unchanged(result)


def _judge_rows(case: Case, rows: Sequence[int]) -> None:
    _, targets = given.window_of(case)
    shifted, right = (
        sorted(t[t != given.IGNORED].tolist())
        for t in (torch.cat([t[:, 1:] for t in targets]), torch.cat(targets))
    )
    faults = {
        "loss_sum was given a token that is ignored, and it knows no such target: give it the rows "
        "of those that count, and their targets.": given.IGNORED in rows,
        "targets were shifted: here each token of hidden has its own target already, at the same "
        "place.": sorted(rows) == shifted != right,
        f"loss_sum was given {len(rows)} tokens, and {len(right)} count: one that is ignored has a "
        "loss under any other target too, so leave it out.": len(rows) > len(right),
    }
    expect.no_fault(faults)


def _faults(total: Tensor, sums: list[Tensor], numbers: list[int], tokens: int) -> Faults:
    if not sum(numbers):
        return
    means = [s / max(n, 1) for s, n in zip(sums, numbers, strict=True)]
    yield from {
        "it is the sum over the tokens: the mean is wanted.": total,
        "it is divided by all tokens, and those that are ignored do not count.": total / tokens,
        "it is the sum of the micro-batches' own means: num_counted has the tokens of the "
        "window.": torch.stack(means).sum(),
    }.items()
