"""The check of 10.1: loss and gradients of a chunk."""

import math

from torch import Tensor

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read

from . import given
from .losses import Right, draw_sizes, expect_gradients, expect_loss

_PASSED = "loss and both gradients as autograd's, also where exp would overflow"


def _cases(draw: Draw) -> Cases:
    case = draw_sizes(draw)
    yield case
    yield {**case, "tokens": 1}
    yield {**case, "scale": 1e4}  # exp overflows


@check(given.chunk_gradients, _PASSED, _cases, oracle=Right)
def chunk_gradients(case: Case, result: Result, right: Right) -> None:
    expect.unchanged(result)
    loss, gradients = result["loss"], read.tensors(result["gradients"], 2, "the gradients")
    if isinstance(loss, Tensor):
        shape = tuple(loss.shape)
        expect.fact(not shape, f"the loss is a scalar, the sum over the tokens, and {shape} came.")
        loss = loss.item()
    loss = read.number(loss, "the value")
    expect.fact(
        math.isfinite(loss) and all(g is None or bool(g.isfinite().all()) for g in gradients),
        "with large logits something is not finite: exp of a large number is infinite. log_softmax "
        "takes the largest logit of each token away first.",
    )
    expect_loss(loss, right.loss, _loss_faults(right, case["tokens"]))
    of_hidden, of_weight, _ = right.gradients
    faults = _faults(right.scene, of_hidden, of_weight)
    expect_gradients(result, [of_hidden, of_weight], ["hidden", "weight"], faults)


def _loss_faults(right: Right, tokens: int) -> Faults:
    scene = right.scene
    picked = (scene.hidden @ scene.weight.T).gather(1, scene.targets[:, None]).sum()
    yield from {
        "it is the mean over the tokens: the sum is wanted.": right.loss / tokens,
        "its sign is the other one: the loss is minus a logarithm.": -right.loss,
        "it is the targets' logits alone: their log-probabilities are wanted.": -picked.item(),
    }.items()


def _faults(scene: given.Scene, of_hidden: Tensor, of_weight: Tensor) -> Faults:
    hidden, weight = scene.hidden.detach(), scene.weight.detach()
    chances = (hidden @ weight.T).softmax(1)
    right, n = [of_hidden, of_weight], len(hidden)
    yield from {
        "the gradients are those of the probabilities: at each token's target, 1 is taken away.": [
            chances @ weight,
            chances.T @ hidden,
        ],
        "both have the other sign: probabilities minus the target.": [-g for g in right],
        "both are divided by the tokens: that of the sum is wanted.": [g / n for g in right],
    }.items()
