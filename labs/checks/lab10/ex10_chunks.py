"""The checks of 10.1 to 10.3: the loss of a chunk, and of all, chunk by chunk."""

import math

from torch import Tensor

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read

from . import given, losses
from .given.tools import squares
from .losses import Right, draw_sizes, expect_gradients, expect_loss

_PASSED_10_1 = "same loss and gradients as autograd, even where exp would overflow"
_PASSED_10_2 = "right loss and gradients, with only one chunk's logits in memory"
_PASSED_10_3 = "computes each chunk once, in forward, and refuses a second gradient"
_SMALL = 64  # bytes: a loss or two
_ADVICE = (
    "let chunk_of return numbers that you know, and follow them. The rows' gradients are side by "
    "side, in the order of the chunks; a weight's are added to zeros; neither is divided."
)
_NAMES = ["hidden", "weight", "bias"]


def _cases_10_1(draw: Draw) -> Cases:
    case = draw_sizes(draw)
    yield case
    yield {**case, "tokens": 1}
    yield {**case, "scale": 1e4}  # exp overflows


@check(given.chunk_gradients, _PASSED_10_1, _cases_10_1, oracle=Right)
def chunk_gradients(case: Case, result: Result, right: Right) -> None:
    expect.unchanged(result)
    loss, gradients = result["loss"], read.tensors(result["gradients"], 2, "the gradients")
    if isinstance(loss, Tensor):
        shape = tuple(loss.shape)
        expect.fact(not shape, f"the loss should be a scalar, the tokens' sum, but {shape} came.")
        loss = loss.item()
    loss = read.number(loss, "the value")
    expect.fact(
        math.isfinite(loss) and all(g is None or bool(g.isfinite().all()) for g in gradients),
        "with large logits something is not finite: exp of a large number is infinite. log_softmax "
        "subtracts the largest logit of each token first.",
    )
    expect_loss(loss, right.loss, _loss_faults_10_1(right, case["tokens"]))
    of_hidden, of_weight, _ = right.gradients
    faults = _faults_10_1(right.scene, of_hidden, of_weight)
    expect_gradients(result, [of_hidden, of_weight], ["hidden", "weight"], faults)


def _loss_faults_10_1(right: Right, tokens: int) -> Faults:
    scene = right.scene
    picked = (scene.hidden @ scene.weight.T).gather(1, scene.targets[:, None]).sum()
    yield from {
        "it is the mean over the tokens instead of the sum.": right.loss / tokens,
        "its sign is wrong: the loss is minus a logarithm.": -right.loss,
        "it is the targets' logits: sum their negative log-probabilities.": -picked.item(),
    }.items()


def _faults_10_1(scene: given.Scene, of_hidden: Tensor, of_weight: Tensor) -> Faults:
    hidden, weight = scene.hidden.detach(), scene.weight.detach()
    chances = (hidden @ weight.T).softmax(1)
    right, n = [of_hidden, of_weight], len(hidden)
    yield from {
        "the gradients are made from the probabilities alone: subtract 1 at each token's target.": [
            chances @ weight,
            chances.T @ hidden,
        ],
        "both have the wrong sign: take probabilities minus the target.": [-g for g in right],
        "both are divided by the tokens: return those of the sum.": [g / n for g in right],
    }.items()


def _cases_10_2(draw: Draw) -> Cases:
    case = {**losses.draw_sizes(draw), "factor": 3}
    yield case
    yield {**case, "chunk": case["tokens"] + 1}
    yield {**case, "frozen": True}
    large = {**losses.draw_large(draw), "factor": 1}
    yield from (large, {**large, "chunk": 40})


@check(given.checkpointed_loss, _PASSED_10_2, _cases_10_2, oracle=Right, sits=losses.by_chunks)
def checkpointed_loss(case: Case, result: Result, right: losses.Right) -> None:
    exact = case.get("dtype") == "float64"
    tokens, size = case["tokens"], case["chunk"]
    losses.expect_late(result)
    faults = _loss_faults_10_2(right, size)
    losses.expect_loss(result["loss"], right.loss, faults, 1e-9 if exact else 1e-5)
    of_hidden, of_weight, _ = right.gradients
    of_hidden = 0 * of_hidden if case.get("frozen") else of_hidden
    wanted = [1 + case["factor"] * g for g in (of_hidden, of_weight)]
    faults = _faults_10_2(case, right)
    losses.expect_gradients(result, wanted, ["hidden", "weight"], faults, 1e-12 if exact else 1e-5)
    expect.unchanged(result)
    if not exact:
        losses.expect_no_whole(result, case, tokens, losses.allowed_bytes(case))


def _loss_faults_10_2(right: losses.Right, size: int) -> Faults:
    tokens = len(right.scene.targets)
    starts = range(0, tokens, size)
    parts = [right.of(slice(start, start + size))[0] for start in starts]
    full = [part for start, part in zip(starts, parts, strict=True) if start + size <= tokens]
    yield "it is the mean over the tokens: return the sum.", right.loss / tokens
    yield "the last chunk, smaller than the others, is missing.", sum(full)
    means = [part / min(size, tokens - s) for s, part in zip(starts, parts, strict=True)]
    yield "the means of the chunks are added up: take the sum in each.", sum(means)
    yield "it is the mean of the chunks' means: take the sum in each.", sum(means) / len(means)
    yield "it is only the last chunk's: add them up.", parts[-1]


def _faults_10_2(case: Case, right: losses.Right) -> Faults:
    factor = case["factor"]
    of_hidden, of_weight, _ = right.gradients
    why = "got none: a tensor detached from the graph carries no gradient back."
    yield f"hidden {why}", [1 + 0 * of_hidden, 1 + factor * of_weight]
    yield f"the matrix {why}", [1 + factor * of_hidden, 1 + 0 * of_weight]


def _cases_10_3(draw: Draw) -> Cases:
    case = {**losses.draw_sizes(draw), "factor": 3, "kind": "once"}
    yield case
    yield {**case, "frozen": True}
    yield {**case, "kind": "twice"}
    yield {**case, "kind": "penalised"}
    yield {**losses.draw_large(draw), "factor": 1, "kind": "once"}


@check(
    given.fused_loss,
    _PASSED_10_3,
    _cases_10_3,
    oracle=lambda case: losses.Right(case, squares),
    sits=lambda chunk_of, chunk, hidden, targets, *weights: squares(hidden, targets, *weights),
)
def fused_loss(case: Case, result: Result, right: losses.Right) -> None:
    exact = case.get("dtype") == "float64"
    if case["kind"] == "penalised":
        _judge_second(result)
        return
    said, is_twice = str(result["said"]), case["kind"] == "twice"
    if is_twice and said.startswith("RuntimeError"):
        return  # PyTorch's own form of this loss refuses that as well
    expect.no_fault({f"this came: {said[:300]}": bool(said)})
    _judge_calls(case, result)
    near = 1e-9 if exact else 1e-5
    losses.expect_loss(
        result["loss"], right.loss, _loss_faults_10_3(case, right), near, "the sum of chunk_of's"
    )
    losses.expect_late(result)
    times = case["factor"] * (2 if is_twice else 1)
    wanted = [1 + times * gradient for gradient in right.gradients]
    if case.get("frozen"):
        wanted[2] = 1 + 0 * wanted[2]
    faults = _faults_10_3(case, right, is_twice)
    losses.expect_gradients(result, wanted, _NAMES, faults, 1e-12 if exact else 1e-5, _ADVICE)
    expect.unchanged(result)
    if not exact:
        _judge_memory(case, result)


def _judge_calls(case: Case, result: Result) -> None:
    in_forward, in_backward = read.counts(result, "made", 2, "calls of chunk_of")
    tokens, size = case["tokens"], case["chunk"]
    sizes = read.integers(result["sizes"], "rows of each chunk")
    chunks, most = -(-tokens // size), max(sizes, default=0)
    faults = {
        "chunk_of was not called, but only it knows the loss.": not in_forward + in_backward,
        f"chunk_of was called {in_backward} times in backward: the gradients of a chunk are made "
        "with its loss, so add them up in forward and keep the sums.": in_backward > 0,
        f"chunk_of was given {most} rows, but chunk is {size}.": most > size,
        f"chunk_of was called {in_forward} times, but the {tokens} tokens make {chunks} chunks of "
        f"at most {size}.": in_forward != chunks or sum(sizes) != tokens,
    }
    expect.no_fault(faults)


def _judge_second(result: Result) -> None:
    said = str(result["said"])
    faults = {
        "a loss that asks for the gradient of a gradient went through, and backward returns sums "
        "that have no graph: that part of the loss is lost without an error. In backward "
        "torch.is_grad_enabled() is true if somebody asks for create_graph, even if "
        "once_differentiable stays silent: raise a RuntimeError.": not said,
        f"the error of a second gradient is {said[:200]!r}, but it should be a RuntimeError that "
        "names create_graph: say what was asked for.": (
            not said.startswith("RuntimeError") or "create_graph" not in said
        ),
    }
    expect.no_fault(faults)


def _loss_faults_10_3(case: Case, right: losses.Right) -> Faults:
    tokens, size = case["tokens"], case["chunk"]
    yield "it is the mean over the tokens: return the sum.", right.loss / tokens
    yield "it is only the last chunk's: add them up.", right.of(slice(-(tokens % size), None))[0]
    yield "it is divided by the number of chunks: return the sum.", right.loss / -(-tokens // size)


def _faults_10_3(case: Case, right: losses.Right, is_twice: bool) -> Faults:
    factor, gradients = case["factor"], right.gradients
    last = right.of(slice(-(case["tokens"] % case["chunk"]), None))[1]
    frozen = case.get("frozen")

    def held(of_hidden: object, *others: object) -> list[object]:
        values = [of_hidden, *others]
        return [*values[:2], 1 + 0 * gradients[2]] if frozen else values

    of_hidden, *of_weights = (1 + factor * g for g in gradients)
    yield from {
        "backward leaves out the gradient that arrives: loss * 3 has three times the "
        "gradients.": held(*(1 + (2 if is_twice else 1) * g for g in gradients)),
        "the sums were multiplied in place, so the second backward finds them multiplied "
        "already: make new tensors, or refuse to go backward twice.": held(
            *(1 + (factor + factor**2) * g for g in gradients)
        ),
        "the weights have only the last chunk's gradients: add them up.": held(
            of_hidden, *(1 + factor * g for g in last[1:])
        ),
        "the weights got none: backward returns a gradient for each tensor that apply was "
        "given.": held(of_hidden, *(1 + 0 * g for g in gradients[1:])),
        "hidden got none: concatenate its rows' gradients, chunk by chunk.": held(
            1 + 0 * gradients[0], *of_weights
        ),
    }.items()


def _judge_memory(case: Case, result: Result) -> None:
    peak, left = (read.integer(result[key], f"bytes ({key})") for key in ("peak", "left"))
    allowed = losses.allowed_bytes(case, chunks=4, matrices=4)
    faults = {
        f"{peak} bytes were held at once, but {allowed} are enough for the sums and one chunk: "
        "add each chunk's gradients to the sum at once, and keep none.": peak > allowed,
        f"backward is over, and the loss, kept as in a list of losses, still holds {left} "
        "bytes: the sums. What is set on ctx as an attribute, or held by a function, lives as long "
        "as the loss; what you pass to save_for_backward is freed after backward.": left > _SMALL,
    }
    expect.no_fault(faults)
