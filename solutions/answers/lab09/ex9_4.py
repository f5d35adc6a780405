"""Cases G and H."""

from functools import partial

import torch
from torch.nn import functional as F

from solutions.answers import right, wrong
from solutions.answers.lab09 import LAB, but

answer = partial(but, "memory_and_windows")


def validate(model, batches, grad=False, divide=True):
    with torch.set_grad_enabled(grad):
        total = sum(model.loss(tokens).item() for tokens in batches)
    return total / len(batches) if divide else total


def keeps_a_history(model, batches):
    model.history = [model.loss(tokens) for tokens in batches]
    return torch.stack(model.history).mean().item()


def under_inference(model, batches):
    losses = []
    with torch.inference_mode():
        for tokens in batches:
            losses.append(float(model.loss(tokens)))
    return sum(losses) / len(losses)


def weighted(model, batches, weight):
    with torch.no_grad():
        total = sum(weight(tokens) * model.loss(tokens).item() for tokens in batches)
    return total / sum(map(weight, batches))


def all_losses_before_the_mean(model, batches):
    with torch.no_grad():
        held = [(model(tokens), model.loss(tokens)) for tokens in batches]
    return sum(loss.item() for _, loss in held) / len(held)


def loss_sum(model, tokens, labels):
    logits, targets = model(tokens)[:, :-1], labels[:, 1:]
    return F.cross_entropy(logits.transpose(1, 2), targets, reduction="sum")


def accumulate(model, optimizer, micro_batches, count, zero=True):
    if zero:
        optimizer.zero_grad()
    logged = 0.0
    for tokens, labels in micro_batches:
        loss = loss_sum(model, tokens, labels) / count(micro_batches)
        loss.backward()
        logged += loss.item()
    optimizer.step()
    return logged


def targets(micro_batches):
    return sum((labels[:, 1:] != -100).sum().item() for _, labels in micro_batches)


def labels_unshifted(micro_batches):
    return sum((labels != -100).sum().item() for _, labels in micro_batches)


def at_once(model, optimizer, micro_batches):
    tokens, labels = (torch.cat(parts) for parts in zip(*micro_batches, strict=True))
    return LAB.update(optimizer, loss_sum(model, tokens, labels) / targets(micro_batches))


def one_backward(model, optimizer, micro_batches):
    losses = [loss_sum(model, *pair) for pair in micro_batches]
    return LAB.update(optimizer, sum(losses) / targets(micro_batches))


def divided_later(model, optimizer, micro_batches):
    optimizer.zero_grad()
    total, count = 0.0, targets(micro_batches)
    for tokens, labels in micro_batches:
        loss = loss_sum(model, tokens, labels)
        loss.backward()
        total += loss.item()
    for parameter in model.parameters():
        parameter.grad /= count
    optimizer.step()
    return total / count


def by_shares(model, optimizer, micro_batches, skips=True, size=lambda pair: targets([pair])):
    count = sum(map(size, micro_batches))
    optimizer.zero_grad()
    total = 0.0
    for pair in micro_batches:
        if skips and not targets([pair]):
            continue
        mean = loss_sum(model, *pair) / targets([pair])
        loss = mean * (size(pair) / count)
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total


g_other_cause = wrong("case G: the cause is not 'one segment'")(answer("G", cause="one segment"))
g_other_reading = wrong("case G: the cause is right, but 1 is not")(answer("G", reading=1))
g_still_broken = wrong("case G: the loss is a tensor")(answer("G", mended=LAB.broken_g))
g_with_graph = wrong("not even for one batch")(answer("G", mended=partial(validate, grad=True)))
g_sum = wrong("case G: it is the sum: return the mean")(
    answer("G", mended=partial(validate, divide=False))
)
g_by_targets = wrong("each batch counts by its targets")(
    answer("G", mended=partial(weighted, weight=lambda tokens: tokens[:, 1:].numel()))
)
g_by_tokens = wrong("each batch counts by its tokens")(
    answer("G", mended=partial(weighted, weight=torch.numel))
)
g_by_rows = wrong("each batch counts by its rows")(
    answer("G", mended=partial(weighted, weight=len))
)
g_holds_all = wrong("what else do you hold?")(answer("G", mended=all_losses_before_the_mean))
g_history = wrong("bytes stay behind when it is over")(answer("G", mended=keeps_a_history))

h_other_cause = wrong("case H: the cause is not 'not divided'")(answer("H", cause="not divided"))
h_other_reading = wrong("case H: the cause is right, but 4 is not")(answer("H", reading=4))
h_still_broken = wrong("case H: it is the mean of the micro-batches' means")(
    answer("H", mended=LAB.broken_h)
)
h_not_divided = wrong("case H: nothing is divided")(
    answer("H", mended=partial(accumulate, count=lambda _: 1))
)
h_unshifted = wrong("you counted the labels before the shift")(
    answer("H", mended=partial(accumulate, count=labels_unshifted))
)
h_padding = wrong("you counted masked labels")(
    answer("H", mended=partial(accumulate, count=lambda m: sum(y[:, 1:].numel() for _, y in m)))
)
h_never_zeroes = wrong("the .grad from before your call")(
    answer("H", mended=partial(accumulate, count=targets, zero=False))
)
h_at_once = wrong("rows at once, but the largest micro-batch")(answer("H", mended=at_once))

h_shares_by_labels = wrong("each mean counts by its rows")(
    answer("H", mended=partial(by_shares, size=lambda pair: pair[1][:, 1:].numel()))
)
h_without_targets = wrong("is there a mean over nothing?")(
    answer("H", mended=partial(by_shares, skips=False))
)
h_one_backward = wrong("one micro-batch's graph at a time")(answer("H", mended=one_backward))


@right
def later():
    found = {"G": ("kept graphs", 6.0, under_inference)}
    return {**found, "H": ("unequal weights", 8.0, divided_later)}


@right
def shares():
    return {"G": ("kept graphs", 6, validate), "H": ("unequal weights", 8, by_shares)}
