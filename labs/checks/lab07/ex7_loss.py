"""The checks of 7.1 and 7.3: the contrastive loss, and its gradients by embedding."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read

from . import expectations, given
from .given import stages, towers

_PASSED_7_1 = "right loss and gradients, also at a scale of 100; refuses two bad inputs"
_PASSED_7_3 = "right gradients for three towers and the scale, and no graph is left"
# What the loss is, and how it came to be.
_SPOILED = {
    "nan": "an embedding was nan, so the loss is not finite",
    "inf": "every embedding was finite, but the loss was inf",
}


def _cases_7_1(draw: Draw) -> Cases:
    seed, features, rows = draw.randrange(10**6), draw.randint(4, 8), draw.randint(6, 12)
    few = draw.randint(2, 5)
    case = {"seed": seed, "features": features, "rows": [rows] * 2, "has_twins": False}
    case |= {"dtype": "float64", "scale": 1 / 0.07}
    yield case
    # CLIP clips at 100. Not 100 itself, which float32 rounds up: an answer may clip as well.
    yield {**case, "seed": seed + 1, "has_twins": True, "dtype": "float32", "scale": 99.9}
    yield {**case, "elsewhere": True}
    alone = "a batch of one pair has no other pair to tell it from, so its loss is always 0"
    yield {**case, "rows": [1, 1], "refused": alone}
    uneven = f"{few + 1} images and {few} texts came, so some have no partner"
    yield {**case, "rows": [few + 1, few], "refused": uneven}


@check(given.contrastive_loss, _PASSED_7_1, _cases_7_1)
def contrastive_loss(case: Case, result: Result) -> None:
    if "refused" in case:
        expect.refuses(result["said"], ValueError, case["refused"], case["rows"])
        return
    if case.get("elsewhere"):
        expect.fact(
            result["mixed"] == "",
            f"with embeddings on another device, as a GPU is, this came: {result['mixed']!r}. Make "
            "your tensors where the embeddings are: device=images.device.",
        )
        return
    images, texts, log_scale = inputs = stages.pairs_of(case)
    wanted = towers.in_batch_loss(images, texts, log_scale.exp())
    wanted.backward()  # type: ignore[no-untyped-call]
    loss = read.number(result["loss"], "the loss")
    expect.fact(
        math.isfinite(loss),
        f"the loss is {loss} at a scale of {case['scale']:.0f}: the exponential of a similarity of "
        f"{case['scale']:.0f} overflows float32. Take log_softmax, logsumexp or cross_entropy, "
        "which subtract the largest first.",
    )
    tolerance = 1e-9 if case["dtype"] == "float64" else 1e-4
    expect.close(
        torch.tensor(loss, dtype=torch.float64),
        wanted.detach(),
        _faults(*[x.detach() for x in inputs]),
        otherwise="it is none of the usual faults, or two of them at once: is each row divided by "
        "its length, is its label its own number, are both directions there?",
        tolerance=tolerance,
        fault_tolerance=1e-4,
        where=f"the loss is {loss:.4f}, and ",
    )
    gradients = read.tensors(result["gradients"], 3, "gradients")
    for name, seen, leaf in zip(("images'", "texts'", "scale's"), gradients, inputs, strict=True):
        is_close = expect.is_close(seen, leaf.grad, 100 * tolerance)
        faults = {
            f"the loss is right, but the {name} gradient is missing: use no detach, no item() and "
            "no no_grad on the way.": seen is None or not seen.any(),
            f"the loss is right, but the {name} gradient is not: what was detached?": not is_close,
        }
        expect.no_fault(faults)


def _faults(images: Tensor, texts: Tensor, log_scale: Tensor) -> Faults:
    scale, pairs = log_scale.exp(), len(images)
    logits = scale * F.normalize(images, dim=1) @ F.normalize(texts, dim=1).T
    raw, hits = scale * images @ texts.T, logits.diagonal()
    there, back = ((torch.logsumexp(logits, d) - hits).mean() for d in (1, 0))
    both = there + back

    def mean(logits: Tensor, hits: Tensor) -> Tensor:
        return (torch.logsumexp(logits, 1) + torch.logsumexp(logits, 0) - 2 * hits).mean() / 2

    unscaled, inverse = mean(raw, raw.diagonal()), towers.in_batch_loss(images, texts, 1 / scale)
    by_logarithm = towers.in_batch_loss(images, texts, log_scale)
    columns = scale * F.normalize(images, dim=0) @ F.normalize(texts, dim=0).T
    columns = mean(columns, columns.diagonal())
    alone = mean(logits - torch.diag_embed(torch.full_like(hits, math.inf)), hits)
    yield from {
        "it's only the direction from images to texts. Add the other and halve.": there,
        "it's only the direction from texts to images. Add the other and halve.": back,
        "it is twice the right loss: take the mean of the two directions, not their sum.": both,
        "it is a sum over the pairs: a batch twice as large would count twice.": both * pairs / 2,
        "embeddings are compared by their cosine: give each row length 1 first.": unscaled,
        "you gave each column length 1: an embedding is a row, so use dim=1.": columns,
        "log_scale is the logarithm of the scale: take its exponential.": by_logarithm,
        "multiply the similarities by the scale, don't divide: the scale is one over a "
        "temperature.": inverse,
        "a pair's own similarity is missing in the sum: it is one of the candidates.": alone,
    }.items()


def _cases_7_3(draw: Draw) -> Cases:
    case = {"seed": draw.randrange(10**6), "rows": draw.randint(150, 200), "features": 8}
    for spoiled in ("", *_SPOILED):
        yield {**case, "towers": 3, "dtype": "float64", "spoiled": spoiled}


@check(given.cache_gradients, _PASSED_7_3, _cases_7_3)
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
            return f"they are {times[0]:.3g} times the loss's: return them with no factor."
        return (
            "make every embedding its own leaf that requires a gradient, and return the loss's "
            "gradient for it unchanged."
        )

    faults = [("they come in a different order than their embeddings.", wanted[::-1])]
    expectations.expect_gradients(seen, wanted, faults, otherwise)
    expectations.expect_scale(scale, loss_of.log_scale.grad)
    expectations.expect_loss(result, loss.item(), 1e-9)
    have_graph = read.flag(result, "have_graph")
    square, left = case["rows"] ** 2 * 8, read.integer(result["left"], "bytes left behind")
    graphs = {
        "the gradients have a graph of their own: no create_graph is needed.": have_graph,
        f"{left} bytes stayed behind, and a matrix of all pairs has {square}: what still holds the "
        "loss's graph?": left >= square,
    }
    expect.no_fault(graphs)


def _judge_spoiled(spoiled: str, result: Result) -> None:
    expect.refuses(result["said"], FloatingPointError, _SPOILED[spoiled], [spoiled])
    expectations.expect_told_apart(result, spoiled)
    (gradient,) = read.tensors(result["gradients"], 1, "gradients")
    expect.fact(
        gradient is not None and bool((gradient == 1).all()),
        "the loss was not finite, but its parameter's gradient changed before the error came: "
        "check the loss before you go backward.",
    )
