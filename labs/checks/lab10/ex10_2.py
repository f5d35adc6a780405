"""The check of 10.2: a loss in checkpointed chunks."""

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect

from . import given, losses

_PASSED = "the whole loss and its gradients, with the logits of one chunk at a time"


def _cases(draw: Draw) -> Cases:
    case = {**losses.draw_sizes(draw), "factor": 3}
    yield case
    yield {**case, "chunk": case["tokens"] + 1}
    yield {**case, "frozen": True}
    large = {**losses.draw_large(draw), "factor": 1}
    yield from (large, {**large, "chunk": 40})


@check(given.checkpointed_loss, _PASSED, _cases, oracle=losses.Right, sits=losses.by_chunks)
def checkpointed_loss(case: Case, result: Result, right: losses.Right) -> None:
    exact = case.get("dtype") == "float64"
    tokens, size = case["tokens"], case["chunk"]
    losses.expect_late(result)
    losses.expect_loss(
        result["loss"], right.loss, _loss_faults(right, size), 1e-9 if exact else 1e-5
    )
    of_hidden, of_weight, _ = right.gradients
    of_hidden = 0 * of_hidden if case.get("frozen") else of_hidden
    wanted = [1 + case["factor"] * g for g in (of_hidden, of_weight)]
    faults = _faults(case, right)
    losses.expect_gradients(result, wanted, ["hidden", "weight"], faults, 1e-12 if exact else 1e-5)
    expect.unchanged(result)
    if not exact:
        losses.expect_no_whole(result, case, tokens, losses.allowed_bytes(case))


def _loss_faults(right: losses.Right, size: int) -> Faults:
    tokens = len(right.scene.targets)
    starts = range(0, tokens, size)
    parts = [right.of(slice(start, start + size))[0] for start in starts]
    full = [part for start, part in zip(starts, parts, strict=True) if start + size <= tokens]
    yield "it is the mean over the tokens: the sum is wanted.", right.loss / tokens
    yield "the last chunk, smaller than the others, is missing.", sum(full)
    means = [part / min(size, tokens - s) for s, part in zip(starts, parts, strict=True)]
    yield "the means of the chunks are added up: take the sum in each.", sum(means)
    yield "it is the mean of the chunks' means: take the sum in each.", sum(means) / len(means)
    yield "it is the last chunk's alone: add them up.", parts[-1]


def _faults(case: Case, right: losses.Right) -> Faults:
    factor = case["factor"]
    of_hidden, of_weight, _ = right.gradients
    why = "got none: what is detached from the graph carries no gradient back."
    yield f"hidden {why}", [1 + 0 * of_hidden, 1 + factor * of_weight]
    yield f"the matrix {why}", [1 + factor * of_hidden, 1 + 0 * of_weight]
