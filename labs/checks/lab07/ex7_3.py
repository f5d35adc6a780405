"""The check of 7.3, the middle stage: the loss, backward to the embeddings and no further."""

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, check, expect, read

from . import expectations, given
from .given import stages

_PASSED = "gradients of three towers, the scale's too, and no graph left"
# What the loss is, and how it came to be.
_SPOILED = {
    "nan": "an embedding was nan, so the loss is not finite",
    "inf": "every embedding was finite, and the loss inf",
}


def _cases(draw: Draw) -> Cases:
    case = {"seed": draw.randrange(10**6), "rows": draw.randint(150, 200), "features": 8}
    for spoiled in ("", *_SPOILED):
        yield {**case, "towers": 3, "dtype": "float64", "spoiled": spoiled}


@check(given.cache_gradients, _PASSED, _cases)
def cache_gradients(case: Case, result: Result) -> None:
    if case["spoiled"]:
        _judge_spoiled(case["spoiled"], result)
        return
    expect.unchanged(result)
    loss_of, leaves = stages.embedded(case)
    loss = loss_of(*[leaf.requires_grad_() for leaf in leaves])
    loss.backward()
    wanted = [leaf.grad for leaf in leaves if leaf.grad is not None]
    scale, *seen = read.tensors(result["gradients"], 1 + len(leaves), "gradients")

    def otherwise() -> str:
        if times := expectations.times_in(seen, [wanted]):
            return f"they are {times[0]:.3g} times the loss's: take them as they come, no factor."
        return (
            "every embedding is a leaf of its own that needs a gradient, and the loss's gradient "
            "for it is wanted as it comes."
        )

    faults = [("they come in another order than their embeddings.", wanted[::-1])]
    expectations.expect_gradients(seen, wanted, faults, otherwise)
    expectations.expect_scale(scale, loss_of.log_scale.grad)
    expectations.expect_loss(result, loss.item(), 1e-9)
    have_graph = read.flag(result, "have_graph")
    square, left = case["rows"] ** 2 * 8, read.integer(result["left"], "bytes left behind")
    graphs = {
        "the gradients have a graph of their own: no create_graph is needed.": have_graph,
        f"{left} bytes stayed behind, and a matrix of all pairs has {square}: what holds on to the "
        "graph of the loss?": left >= square,
    }
    expect.no_fault(graphs)


def _judge_spoiled(spoiled: str, result: Result) -> None:
    expect.refuses(result["said"], FloatingPointError, _SPOILED[spoiled], [spoiled])
    expectations.expect_told_apart(result, spoiled)
    (gradient,) = read.tensors(result["gradients"], 1, "gradients")
    expect.fact(
        gradient is not None and bool((gradient == 1).all()),
        "the loss was not finite, and its parameter's gradient was touched before the error came: "
        "look at the loss before you go backward.",
    )
