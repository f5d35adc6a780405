"""The checks of 10.4 and 10.5: the mean over what counts, and a head with its loss."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tutorial_lib.checks.given import observe
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read

from . import given, losses
from .losses import expect_gradients, expect_loss

_PASSED_10_4 = "the right mean over a window's tokens that count, even if none do"
_PASSED_10_5 = "right gradients with and without tied weights, with a bias, in float64 and bfloat16"
_MANY = 1000  # of the vocabulary, from which on logits are far more bytes than all else
_WORSE = 1.5  # times the error of a whole loss under autocast


def _cases_10_4(draw: Draw) -> Cases:
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


@check(given.mean_over_counted, _PASSED_10_4, _cases_10_4)
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
    no_number = f"{where} the loss is nan: if nothing counts, the mean is 0 / 0, but return 0."
    faults = {
        f"{where} this came: {said[:300]} Nothing should be refused if num_counted is not below "
        "the tokens that count here; if none counts, the loss is 0.": bool(said),
        no_number: result["loss"] != result["loss"],
    }
    expect.no_fault(faults)
    total = torch.stack(sums).sum()
    usual = list(_faults_10_4(total, sums, numbers, number))
    expect_loss(result["loss"], total.item() / max(window, 1), ((w, v.item()) for w, v in usual))
    of_matrix, *of_rows = read.tensors(result["gradients"], 1 + len(hidden), "the gradients")
    zeros = "not even zeros, but other ranks wait for a gradient of every parameter"
    faults = {
        f"{where} the loss has no path back: neither hidden nor the matrix got a gradient, "
        f"{zeros}.": window == 0 and all(g is None for g in (of_matrix, *of_rows)),
        f"{where} the loss leads back only to hidden: the matrix got no gradient, {zeros}. You may "
        "call loss_sum with no token.": window == 0 and of_matrix is None,
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
        "loss_sum was given an ignored token, but its target isn't a valid one: pass only the rows "
        "that count, and their targets.": given.IGNORED in rows,
        "targets were shifted: here each token of hidden has its own target already, at the same "
        "position.": sorted(rows) == shifted != right,
        f"loss_sum was given {len(rows)} tokens, and {len(right)} count: an ignored token has a "
        "loss with any other target too, so leave it out.": len(rows) > len(right),
    }
    expect.no_fault(faults)


def _faults_10_4(total: Tensor, sums: list[Tensor], numbers: list[int], tokens: int) -> Faults:
    if not sum(numbers):
        return
    means = [s / max(n, 1) for s, n in zip(sums, numbers, strict=True)]
    yield from {
        "it is the sum over the tokens instead of the mean.": total,
        "it is divided by all tokens, but ignored tokens do not count.": total / tokens,
        "it is the sum of the micro-batches' own means: num_counted has the tokens of the "
        "window.": torch.stack(means).sum(),
    }.items()


def _cases_10_5(draw: Draw) -> Cases:
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
    _PASSED_10_5,
    _cases_10_5,
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
    faults = _faults_10_5(case, right, names) if counted else ()
    losses.expect_gradients(result, right.gradients, names, faults, 1e-12 if exact else 1e-5)


def _loss_faults(case: Case, right: Right, counted: int, window: int) -> Faults:
    yield "it is the sum over the tokens instead of the mean.", right.loss * window
    if case["bias"]:
        model = given.Tied(case)
        without = nn.Linear(case["width"], case["vocab"], bias=False)
        without.weight = model.head.weight
        loss = _whole(without, model(), model.targets, case.get("num_counted"))
        yield "the head's bias is missing, but this head has one.", loss.item()
    yield "num_counted is not used: it has the tokens of the window.", right.loss * window / counted


def _faults_10_5(case: Case, right: Right, names: Sequence[str]) -> Faults:
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
            "the matrix has only the embeddings' gradient: it needs the head's as well.",
            observe.gradients_of(model),
        )
        of_head = untied.weight.grad
        assert of_head is not None
        tied = next(name for name in of if name == "embedding.weight")
        halved = {**of, tied: of[tied] - of_head + of_head / case["factor"]}
        yield (
            "the matrix has the head's gradient without the factor that backward was given: "
            "multiply by it, and let autograd add the embeddings' gradient.",
            list(halved.values()),
        )


def _judge_low(case: Case, result: Result, right: Right, names: Sequence[str]) -> None:
    seen = read.tensors(result["gradients"], len(names), "the gradients")
    types = read.items(result["matmuls"], "the types of the matmuls")
    faults = {
        "in bfloat16 a matmul with the head's matrix was made in float32, which takes a copy of "
        "the matrix with twice its bytes: make softmax and sums float32, but matmuls "
        "bfloat16.": "float32" in types,
        f"in bfloat16 the loss is a {str(result['type'])[:30]}, but float32 is needed: a sum over "
        "thousands of tokens needs more digits than bfloat16 "
        "has.": result["type"] != "torch.float32",
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
