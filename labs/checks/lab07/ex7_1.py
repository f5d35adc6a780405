"""The check of 7.1: the contrastive loss, its gradients, and batches without pairs."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read

from . import given
from .given import stages, towers

_PASSED = "the loss and its three gradients, at a scale of 100 and elsewhere, and two refusals"


def _cases(draw: Draw) -> Cases:
    seed, features, rows = draw.randrange(10**6), draw.randint(4, 8), draw.randint(6, 12)
    few = draw.randint(2, 5)
    case = {"seed": seed, "features": features, "rows": [rows] * 2, "has_twins": False}
    case |= {"dtype": "float64", "scale": 1 / 0.07}
    yield case
    # CLIP clips at 100. Not 100 itself, which float32 rounds up: an answer may clip as well.
    yield {**case, "seed": seed + 1, "has_twins": True, "dtype": "float32", "scale": 99.9}
    yield {**case, "elsewhere": True}
    alone = (
        "a batch of one pair has no other pair to tell it from, so its loss is 0 whatever the "
        "embeddings are"
    )
    yield {**case, "rows": [1, 1], "refused": alone}
    uneven = f"{few + 1} images and {few} texts came, so some have no partner"
    yield {**case, "rows": [few + 1, few], "refused": uneven}


@check(given.contrastive_loss, _PASSED, _cases)
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
        f"{case['scale']:.0f} is no float32 any more. Take log_softmax, logsumexp or "
        "cross_entropy, which subtract the largest first.",
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
            f"the loss is right, and the {name} gradient is missing: no detach, no item(), and no "
            "with no_grad on the way.": seen is None or not seen.any(),
            f"the loss is right, and the {name} gradient is not: what was detached?": not is_close,
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
        "that is one direction, in which an image looks for its text. Add the other and "
        "halve.": there,
        "that is one direction, in which a text looks for its image. Add the other and "
        "halve.": back,
        "it is twice what is wanted: the mean of the two directions, not their sum.": both,
        "it is a sum over the pairs: a batch twice as large would count twice.": both * pairs / 2,
        "embeddings are compared by their cosine: give each row length 1 first.": unscaled,
        "each column was given length 1: a row is an embedding, and dim=1 goes along it.": columns,
        "log_scale is the logarithm of the scale: take its exponential.": by_logarithm,
        "the similarities are multiplied by the scale, not divided: it is one over a "
        "temperature.": inverse,
        "a pair's own similarity is missing below the line: it is one of the candidates.": alone,
    }.items()
