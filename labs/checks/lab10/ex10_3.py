"""The check of 10.3: gradients that are made in forward, once."""

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read

from . import given, losses
from .given.half_squares import squares

_PASSED = "each chunk made once, in forward, and a second gradient refused"
_SMALL = 64  # bytes: a loss or two
_ADVICE = (
    "have chunk_of give numbers that you know, and follow them. The rows' gradients are side by "
    "side, in the order of the chunks; a weight's are added to zeros; neither is divided."
)
_NAMES = ["hidden", "weight", "bias"]


def _cases(draw: Draw) -> Cases:
    case = {**losses.draw_sizes(draw), "factor": 3, "kind": "once"}
    yield case
    yield {**case, "frozen": True}
    yield {**case, "kind": "twice"}
    yield {**case, "kind": "penalised"}
    yield {**losses.draw_large(draw), "factor": 1, "kind": "once"}


@check(
    given.fused_loss,
    _PASSED,
    _cases,
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
        result["loss"], right.loss, _loss_faults(case, right), near, "the sum of chunk_of's"
    )
    losses.expect_late(result)
    times = case["factor"] * (2 if is_twice else 1)
    wanted = [1 + times * gradient for gradient in right.gradients]
    if case.get("frozen"):
        wanted[2] = 1 + 0 * wanted[2]
    faults = _faults(case, right, is_twice)
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
        "chunk_of was not called, and it alone knows the loss.": not in_forward + in_backward,
        f"chunk_of was called {in_backward} times in backward: the gradients of a chunk are made "
        "with its loss, so add them up in forward and keep the sums.": in_backward > 0,
        f"chunk_of was given {most} rows, and chunk is {size}.": most > size,
        f"chunk_of was called {in_forward} times, and the {tokens} tokens are {chunks} chunks of "
        f"at most {size}.": in_forward != chunks or sum(sizes) != tokens,
    }
    expect.no_fault(faults)


def _judge_second(result: Result) -> None:
    said = str(result["said"])
    faults = {
        "a loss that asks for the gradient of a gradient went through, and backward returns sums "
        "that have no graph: that part of the loss is lost in silence. In backward "
        "torch.is_grad_enabled() is true where somebody asks for create_graph, also where "
        "once_differentiable stays silent: raise a RuntimeError.": not said,
        f"the error of a second gradient is {said[:200]!r}, and a RuntimeError is wanted that "
        "names create_graph: say what was asked for.": (
            not said.startswith("RuntimeError") or "create_graph" not in said
        ),
    }
    expect.no_fault(faults)


def _loss_faults(case: Case, right: losses.Right) -> Faults:
    tokens, size = case["tokens"], case["chunk"]
    yield "it is the mean over the tokens: the sum is wanted.", right.loss / tokens
    yield "it is the last chunk's alone: add them up.", right.of(slice(-(tokens % size), None))[0]
    yield "it is divided by the chunks: the sum is wanted.", right.loss / -(-tokens // size)


def _faults(case: Case, right: losses.Right, is_twice: bool) -> Faults:
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
        "the weights have the gradients of the last chunk alone: add them up.": held(
            of_hidden, *(1 + factor * g for g in last[1:])
        ),
        "the weights got none: backward returns a gradient for each tensor that apply was "
        "given.": held(of_hidden, *(1 + 0 * g for g in gradients[1:])),
        "hidden got none: its rows' gradients, chunk by chunk, are the whole one.": held(
            1 + 0 * gradients[0], *of_weights
        ),
    }.items()


def _judge_memory(case: Case, result: Result) -> None:
    peak, left = (read.integer(result[key], f"bytes ({key})") for key in ("peak", "left"))
    allowed = losses.allowed_bytes(case, chunks=4, matrices=4)
    faults = {
        f"{peak} bytes were there at once, and {allowed} are enough for the sums and one chunk: "
        "add each chunk's gradients to the sum at once, and keep none.": peak > allowed,
        f"backward is over, the loss is still there, as in a list of losses, and with it {left} "
        "bytes: the sums. What is set on ctx as an attribute, or held by a function, lives as long "
        "as the loss; what save_for_backward was given is freed when backward is over.": (
            left > _SMALL
        ),
    }
    expect.no_fault(faults)
