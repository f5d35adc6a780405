"""The checks of 6.2 and 6.3: an epoch of windows, and the mean over a window's targets."""

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tutorial_lib.checks.given import observe
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, accumulation, check, expect
from tutorial_lib.checks.vocabulary.read import integer, items

from . import given, right_sums
from .given import models, steps

_PASSED_6_2 = "each window, ragged or short, trains like one batch, with one micro-batch in memory"
_PASSED_6_3 = "the right mean over a window's targets: ragged, masked, shifted, or none in one part"


def _cases_6_2(draw: Draw) -> Cases:
    size, num = draw.randint(3, 5), draw.randint(3, 4)
    equal = [size] * (2 * num + 1) + [draw.randint(1, size - 1)]  # two short of a window
    ragged = [draw.randint(1, 7) for _ in range(5)] + [9, 2]
    drawn = {"seed": draw.randrange(10**6), "kind": "gradients", "again": False}
    yield {**drawn, "sizes": equal, "num": num}
    yield {**drawn, "sizes": ragged, "num": 3}
    yield {**drawn, "sizes": [6] * 6, "num": 6, "kind": "peak"}
    yield {**drawn, "sizes": [4, 2], "num": 5, "again": True}  # less than one window


class _Oracle:
    def __init__(self, case: Case) -> None:
        self.case, items, num = case, steps.images_of(case), case["num"]
        self.windows = [items[at : at + num] for at in range(0, len(items), num)]

    @cached_property
    def updates(self) -> tuple[list[accumulation.Window], list[accumulation.Window], Tensor]:
        """Gradients and losses of each window, and the parameters after the last update."""
        model, gradients, losses = models.tiny_vit(self.case["seed"]), [], []
        for window in self.windows:
            of_gradients, of_losses = right_sums.image_sums(model, window)
            gradients.append(of_gradients)
            losses.append(of_losses)
            right_sums.add_to_parameters(model, -models.RATE * of_gradients.mean)
        return gradients, losses, observe.parameter_vector(model)


@check(given.train_epoch, _PASSED_6_2, _cases_6_2, oracle=_Oracle)
def train_epoch(case: Case, result: Result, oracle: _Oracle) -> None:
    accumulation.expect_rows_at_most(result, case["sizes"])
    _judge_updates(case, result, oracle)
    accumulation.expect_each_once(result, case["sizes"])
    losses = oracle.updates[1]
    seen, number = items(result["returned"], "the losses"), len(losses)
    expect.fact(len(seen) == number, f"return a list of {number} losses, one for each update.")
    for turn, (loss, window) in enumerate(zip(seen, losses, strict=True), start=1):
        with expect.about(f"update {turn}: "):
            expect.loss(loss, window.mean, right_sums.loss_faults(window))
    expect.unchanged(result)
    ahead = integer(result["ahead"], "ahead")
    expect.fact(
        ahead <= case["num"],
        f"{ahead} micro-batches were read before the model had seen the first of them, and a "
        f"window has {case['num']}: an epoch does not fit into memory: read one window at a time.",
    )
    if case["kind"] == "peak":
        model, first = models.tiny_vit(case["seed"]), oracle.windows[0]
        allowed = right_sums.peak_allowed(model, first, models.image_loss_sum)
        accumulation.expect_one_graph(result, allowed)


def _judge_updates(case: Case, result: Result, oracle: _Oracle) -> None:
    gradients, _, parameters = oracle.updates
    seen = right_sums.read_updates(result, len(parameters))
    if seen and not expect.is_close(seen[0], gradients[0].mean):
        _judge_length(case, seen[0], gradients[0])
    advice, number = "update once per window, after its last micro-batch.", len(gradients)
    if len(seen) == number - 1 > 0:
        last = len(gradients[-1].counts)
        advice = f"the last one has {last} of {case['num']} micro-batches, but counts too."
    words = f"the optimizer made {len(seen)} updates, and there are {number} windows: {advice}"
    expect.fact(len(seen) == number, words)
    old = torch.ones_like(parameters)
    for turn, (window, update) in enumerate(zip(gradients, seen, strict=True), start=1):
        with expect.about(f"window {turn} of {number}: "):
            accumulation.expect_gradient(update, window.mean, _faults_6_2(case, window, old))
        old = window.mean
    words = "the gradients are right, but something else changed the parameters."
    right_sums.expect_parameters(result, parameters, words)


def _faults_6_2(case: Case, window: accumulation.Window, old: Tensor) -> expect.Faults:
    yield from accumulation.faults(window, "images")
    by_num = window.sum_of_means / case["num"]
    yield from {
        f"the sum was divided by the {case['num']} micro-batches that were asked for, but this "
        f"window has {len(window.counts)} of {window.counts} images.": by_num,
        "the .grad that the window before left was added to this window: zero the gradients before "
        "its first backward.": window.mean + old,
    }.items()


def _judge_length(case: Case, seen: Tensor, right: accumulation.Window) -> None:
    """Tell from the first update how many micro-batches were taken for a window."""
    model, items = models.tiny_vit(case["seed"]), steps.images_of(case)
    each, _ = right_sums.image_sums(model, items)
    for num in range(1, len(items) + 1):
        taken = accumulation.Window(each.sums[:num], each.counts[:num])
        expect.fact(
            num == len(right.sums) or not expect.is_close(seen, taken.mean),
            f"the first update has {num} of the micro-batches in it, but a window has "
            f"{case['num']}: update once per window, after its last micro-batch.",
        )


def _cases_6_3(draw: Draw) -> Cases:
    drawn = {"seed": draw.randrange(10**6), "sizes": [draw.randint(2, 4) for _ in range(4)]}
    yield {**drawn, "masked": []}
    yield {**drawn, "masked": [draw.randrange(4)]}
    yield {**drawn, "masked": [], "sizes": models.MANY}


@check(given.token_step, _PASSED_6_3, _cases_6_3, sits=right_sums.train_on_tokens)
def token_step(case: Case, result: Result) -> None:
    model, window = models.tiny_gpt(case["seed"]), steps.tokens_of(case)
    start = observe.parameter_vector(model)
    words = "the optimizer made {} updates, but should make one, after the last micro-batch."
    update = right_sums.only_update(result, len(start), words)
    gradients, losses = right_sums.token_sums(model, window)
    is_large = case["sizes"] == models.MANY
    accumulation.expect_window(
        result,
        update,
        gradients=gradients,
        losses=losses,
        sizes=case["sizes"],
        faults=_faults_6_3(model, window, gradients),
        loss_faults=right_sums.loss_faults(losses),
        optional=right_sums.without_targets(window),
        allowed=right_sums.peak_allowed(model, window, models.token_loss_sum) if is_large else None,
    )
    words = "the gradient is right, but something else changed the parameters."
    right_sums.expect_parameters(result, start - models.RATE * gradients.mean, words)


def _faults_6_3(
    model: nn.Module, window: Sequence[models.MicroBatch], gradients: accumulation.Window
) -> expect.Faults:
    yield from accumulation.faults(gradients, "targets")
    yield from right_sums.count_faults(gradients, [labels for _, labels in window])
    for words, pair in _OTHER_TARGETS.items():
        pairs = [pair(model(tokens), tokens, labels) for tokens, labels in window]
        sums = (F.cross_entropy(x.flatten(0, -2), y.flatten(), reduction="sum") for x, y in pairs)
        total = sum(observe.gradient(loss, model) for loss in sums)
        own_count = sum(int((targets != -100).sum()) for _, targets in pairs)
        yield words, total / own_count
        yield f"{words} The count is right.", total / gradients.count


# What to say, and which logits are then compared with which targets.
_OTHER_TARGETS: dict[str, Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "the shift goes the wrong way, so each token has to predict the one before "
    "it.": lambda logits, tokens, labels: (logits[:, 1:], labels[:, :-1]),
    "you used the tokens as targets: use the labels, which are -100 where a token doesn't "
    "count.": lambda logits, tokens, labels: (logits[:, :-1], tokens[:, 1:]),
    "each token is asked to predict itself: the logits at a position are for the next position's "
    "label.": lambda logits, tokens, labels: (logits, labels),
    "the rows were put end to end before the shift, so the last token of each has to predict the "
    "first of the next: shift, then "
    "flatten.": lambda logits, tokens, labels: (logits.flatten(0, 1)[:-1], labels.flatten()[1:]),
}
