"""The check of 10.5: what takes the place of a head and its loss."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tutorial_lib.checks.given import observe
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read

from . import given, losses

_PASSED = "tied or not, with bias, in float64 and bfloat16, in chunks"
_MANY = 1000  # of the vocabulary, from which on logits are far more bytes than all else
_WORSE = 1.5  # times the error of a whole loss under autocast


def _cases(draw: Draw) -> Cases:
    case: dict[str, Any] = {"seed": draw.randrange(10**6), "dtype": "float64", "factor": 2}
    case |= {"vocab": draw.randint(20, 30), "width": draw.randint(4, 7), "rows": 3, "seq": 7}
    case |= {"ignored": draw.randint(1, 3), "chunk": draw.choice([4, 5]), "tied": True}
    yield {**case, "bias": False}
    yield {**case, "bias": True, "num_counted": 40}
    yield {**case, "bias": True, "tied": False, "frozen": True}
    yield {**case, "bias": True, "ignored": case["seq"], "num_counted": draw.choice([None, 40])}
    low = {**case, "dtype": "float32", "autocast": True, "bias": True, "width": 16}
    low |= {"vocab": 12, "rows": 32, "seq": 33, "ignored": 1, "chunk": 6}
    yield low
    yield {**low, "autocast": False, "dtype": "bfloat16"}
    large = {**low, **losses.draw_large(draw), "autocast": False, "bias": False}
    large |= {"rows": 8, "seq": 65, "ignored": 1}
    yield from (large, {**large, "chunk": 40}, {**large, "dtype": "bfloat16"})


def _whole(head: nn.Linear, hidden: Tensor, targets: Tensor, num_counted: int | None) -> Tensor:
    """Return the loss of all logits at once."""
    logits = head(hidden).flatten(0, -2)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = F.cross_entropy(logits, targets.flatten(), reduction="sum")
    if num_counted is None:
        num_counted = int((targets != given.IGNORED).sum())
    return total / max(num_counted, 1)


class Right:
    """Loss and gradients in one graph, in float64 and as the case has them."""

    def __init__(self, case: Case) -> None:
        self.loss, self.gradients = self.of(case, exact=True)
        _, self.usual = self.of(case, exact=False)

    @staticmethod
    def of(case: Case, *, exact: bool) -> tuple[float, list[Tensor]]:
        """Run a case with the whole loss."""
        model = given.Tied(case)
        model.to(torch.float64 if exact else model.head.weight.dtype)
        observe.fill_gradients(model)
        autocast = case.get("autocast", False) and not exact
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = _whole(model.head, model(), model.targets, case.get("num_counted"))
        (loss * case["factor"]).backward()
        found = observe.gradients_of(model)
        return loss.item(), [torch.ones(0) if g is None else g for g in found]


@check(
    given.head_loss,
    _PASSED,
    _cases,
    oracle=Right,
    sits=lambda head, hidden, targets, size, num_counted: (
        losses.by_chunks(hidden.flatten(0, 1), targets.flatten(), head.weight, size) / num_counted
    ),
)
def head_loss(case: Case, result: Result, right: Right) -> None:
    names = [name for name, _ in given.Tied(case).named_parameters()]
    counted = case["rows"] * (case["seq"] - case["ignored"])
    if case.get("autocast") or case["dtype"] == "bfloat16":
        _judge_low(case, result, right, names)
    else:
        _judge_exactly(case, result, right, names, counted)
    expect.unchanged(result)
    if case["vocab"] >= _MANY:
        allowed = losses.allowed_bytes({**case, "tokens": counted})
        losses.expect_no_whole(result, case, counted, allowed)


def _judge_exactly(
    case: Case, result: Result, right: Right, names: Sequence[str], counted: int
) -> None:
    exact = case["dtype"] == "float64"
    window = case.get("num_counted", counted)
    told = _loss_faults(case, right, counted, window) if counted else ()
    losses.expect_loss(result["loss"], right.loss, told, 1e-9 if exact else 1e-5)
    faults = _faults(case, right, names) if counted else ()
    losses.expect_gradients(result, right.gradients, names, faults, 1e-12 if exact else 1e-5)


def _loss_faults(case: Case, right: Right, counted: int, window: int) -> Faults:
    yield "it is the sum over the tokens: the mean is wanted.", right.loss * window
    if case["bias"]:
        model = given.Tied(case)
        without = nn.Linear(case["width"], case["vocab"], bias=False)
        without.weight = model.head.weight
        loss = _whole(without, model(), model.targets, case.get("num_counted"))
        yield "the head's bias is not in it, and this head has one.", loss.item()
    yield "num_counted is not used: it has the tokens of the window.", right.loss * window / counted


def _faults(case: Case, right: Right, names: Sequence[str]) -> Faults:
    of = dict(zip(names, right.gradients, strict=True))
    if case["bias"] and not case.get("frozen"):
        without = {**of, "head.bias": torch.ones_like(of["head.bias"])}
        yield "the bias got none: it is a parameter of the head too.", list(without.values())
    if case["tied"]:
        model = given.Tied(case)
        observe.fill_gradients(model)
        untied = nn.Linear(1, 1)
        untied.weight = nn.Parameter(model.head.weight.detach())
        untied.bias = model.head.bias
        loss = _whole(untied, model(), model.targets, case.get("num_counted"))
        (loss * case["factor"]).backward()
        yield (
            "the matrix has the embeddings' gradient alone: it is the head's as well.",
            observe.gradients_of(model),
        )
        of_head = untied.weight.grad
        assert of_head is not None
        tied = next(name for name in of if name == "embedding.weight")
        halved = {**of, tied: of[tied] - of_head + of_head / case["factor"]}
        yield (
            "the matrix has the head's gradient without the factor that came to backward: return "
            "it, and let autograd add it up with the embeddings'.",
            list(halved.values()),
        )


def _judge_low(case: Case, result: Result, right: Right, names: Sequence[str]) -> None:
    seen = read.tensors(result["gradients"], len(names), "the gradients")
    types = read.items(result["matmuls"], "the types of the matmuls")
    faults = {
        "in bfloat16 a matmul with the head's matrix was made in float32, which takes a copy of "
        "the matrix of twice its bytes: softmax and sums are float32, and matmuls are "
        "bfloat16.": "float32" in types,
        f"in bfloat16 the loss is a {str(result['type'])[:30]}, and float32 is wanted: what is "
        "added up over thousands of tokens has more digits than "
        "bfloat16.": result["type"] != "torch.float32",
    }
    expect.no_fault(faults)
    losses.expect_loss(result["loss"], right.loss, (), 0.02)
    for name, mine, plain, exact in zip(names, seen, right.usual, right.gradients, strict=True):
        error = expect.relative_error(None if mine is None else mine.double() - 1, exact - 1)
        allowed = _WORSE * expect.relative_error(plain.double() - 1, exact - 1)
        expect.fact(
            error <= allowed,
            f"in bfloat16 the gradient of {name} is off by {error:.1%} of its norm, and the whole "
            f"loss stays within {allowed:.1%}: logits may be bfloat16, and softmax and sums over "
            "chunks are float32.",
        )
