"""The check of 6.3: the mean over a window's targets, masked and shifted."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from tutorial_lib.checks.given import observe
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, accumulation, check, expect

from . import given, right_sums
from .given import models, steps

_PASSED = "a mean over the window's targets: ragged, masked, shifted, none at all in one part"


def _cases(draw: Draw) -> Cases:
    drawn = {"seed": draw.randrange(10**6), "sizes": [draw.randint(2, 4) for _ in range(4)]}
    yield {**drawn, "masked": []}
    yield {**drawn, "masked": [draw.randrange(4)]}
    yield {**drawn, "masked": [], "sizes": models.MANY}


@check(given.token_step, _PASSED, _cases, sits=right_sums.train_on_tokens)
def token_step(case: Case, result: Result) -> None:
    model, window = models.tiny_gpt(case["seed"]), steps.tokens_of(case)
    start = observe.parameter_vector(model)
    words = (
        "the optimizer made {} updates, and a window is one update, made after its last "
        "micro-batch."
    )
    update = right_sums.only_update(result, len(start), words)
    gradients, losses = right_sums.token_sums(model, window)
    is_large = case["sizes"] == models.MANY
    accumulation.expect_window(
        result,
        update,
        gradients=gradients,
        losses=losses,
        sizes=case["sizes"],
        faults=_faults(model, window, gradients),
        loss_faults=_loss_faults(losses),
        optional=right_sums.without_targets(window),
        allowed=right_sums.peak_allowed(model, window, models.token_loss_sum) if is_large else None,
    )
    words = "the gradient is right, and something else changed the parameters."
    right_sums.expect_parameters(result, start - models.RATE * gradients.mean, words)


def _loss_faults(losses: accumulation.Window) -> expect.Faults:
    yield accumulation.MEAN_OF_MEANS, losses.mean_of_means
    yield "it is the sum over all tokens, and the mean is wanted.", losses.total
    yield "it is the last micro-batch's alone.", losses.last_alone


def _faults(
    model: nn.Module, window: Sequence[models.MicroBatch], gradients: accumulation.Window
) -> expect.Faults:
    labels = [labels for _, labels in window]
    yield from accumulation.faults(gradients, "targets")
    counts = {
        "the labels were counted before the shift. No token stands before the first of a row, so "
        "its label is nobody's target.": sum(int((part != -100).sum()) for part in labels),
        "masked labels were counted: padding and prompts are tokens, and no targets.": sum(
            part[:, 1:].numel() for part in labels
        ),
        "every position was counted, masked or not, the first of each row too.": sum(
            part.numel() for part in labels
        ),
        "the sum was divided by rows: the unit of this loss is the token.": sum(map(len, labels)),
    }
    for words, count in counts.items():
        yield words, gradients.total / count
    for words, pair in _OTHER_TARGETS.items():
        pairs = [pair(model(tokens), tokens, labels) for tokens, labels in window]
        total = sum(observe.gradient(_summed(*of_part), model) for of_part in pairs)
        own_count = sum(int((targets != -100).sum()) for _, targets in pairs)
        yield words, total / own_count
        yield f"{words} The count is right.", total / gradients.count


def _summed(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.reshape(-1, logits.size(-1)), targets.flatten(), reduction="sum")


# What to say, and which logits are then compared with which targets.
_OTHER_TARGETS: dict[str, Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "the shift goes the wrong way, and each token has to guess the one before "
    "it.": lambda logits, tokens, labels: (logits[:, 1:], labels[:, :-1]),
    "tokens were taken for targets: the labels are those tokens that count, and "
    "-100.": lambda logits, tokens, labels: (logits[:, :-1], tokens[:, 1:]),
    "each token is asked to predict itself: the logits at a position are for the label one further "
    "on.": lambda logits, tokens, labels: (logits, labels),
    "the rows were put end to end before the shift, so the last token of each has to guess the "
    "first of the next: shift, then "
    "flatten.": lambda logits, tokens, labels: (logits.flatten(0, 1)[:-1], labels.flatten()[1:]),
}
