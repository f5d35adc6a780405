"""Tokens."""

import torch
from torch.nn import functional as F

from wrong_answers import right, wrong


def shifted(logits, labels):
    return logits[:, :-1], labels[:, 1:]


def targets(window):
    return sum(int((labels[:, 1:] != -100).sum()) for _, labels in window)


def with_slips(
    divisor=lambda labels, window: targets(window), shift=shifted, log=lambda s, n: s / n, zero=True
):
    """The solution, with the divisor, the shift and the log to choose."""

    def token_step(model, optimizer, window):
        if zero:
            optimizer.zero_grad()
        total = 0.0
        for tokens, labels in window:
            logits, wanted = shift(model(tokens), labels)
            loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum")
            (loss / divisor(labels, window)).backward()
            total += log(loss.item(), targets(window))
        optimizer.step()
        return total

    return token_step


def own(labels):
    return max(1, int((labels[:, 1:] != -100).sum()))


means_of_means = wrong("each micro-batch counts the same, however many targets")(
    with_slips(divisor=lambda labels, window: own(labels) * len(window))
)
adds_means_up = wrong("the micro-batches' means were added up")(
    with_slips(divisor=lambda labels, window: own(labels))
)
counts_before_the_shift = wrong("the labels were counted before the shift")(
    with_slips(divisor=lambda _, window: sum(int((y != -100).sum()) for _, y in window))
)
counts_masked_ones = wrong("masked labels were counted")(
    with_slips(divisor=lambda _, window: sum(y[:, 1:].numel() for _, y in window))
)
counts_every_position = wrong("every position was counted")(
    with_slips(divisor=lambda _, window: sum(y.numel() for _, y in window))
)
counts_rows = wrong("the unit of this loss is the token")(
    with_slips(divisor=lambda _, window: sum(len(y) for _, y in window))
)
predicts_the_same_token = wrong("each token is asked to predict itself")(
    with_slips(
        shift=lambda logits, labels: (logits, labels),
        divisor=lambda _, window: sum(int((y != -100).sum()) for _, y in window),
    )
)
shifts_the_wrong_way = wrong("guess the one before it.")(
    with_slips(
        shift=lambda logits, labels: (logits[:, 1:], labels[:, :-1]),
        divisor=lambda _, window: sum(int((y[:, :-1] != -100).sum()) for _, y in window),
    )
)


@wrong("tokens were taken for targets")
def predicts_every_token(model, optimizer, window):
    count = targets(window)
    return with_slips(divisor=lambda *_: count)(model, optimizer, [(x, x) for x, _ in window])


@right
def by_a_closure(model, optimizer, window):
    count = targets(window)

    def closure():
        optimizer.zero_grad()
        total = 0.0
        for tokens, labels in window:
            logits, wanted = shifted(model(tokens), labels)
            loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum") / count
            loss.backward()
            total += loss.item()
        return total

    return optimizer.step(closure)


@wrong("one micro-batch's graph at a time")
def one_backward(model, optimizer, window):
    pairs = [shifted(model(tokens), labels) for tokens, labels in window]
    losses = [F.cross_entropy(x.flatten(0, 1), y.flatten(), reduction="sum") for x, y in pairs]
    optimizer.zero_grad()
    loss = sum(losses) / targets(window)
    loss.backward()
    optimizer.step()
    return loss.item()


does_not_zero = wrong("what was handed over in .grad")(with_slips(zero=False))
logs_the_sum = wrong("it is the sum over all tokens")(with_slips(log=lambda s, n: s))


@wrong("shift, then flatten")
def joins_the_rows(model, optimizer, window):
    joined = [labels.flatten()[1:] for _, labels in window]
    count = sum(int((wanted != -100).sum()) for wanted in joined)
    optimizer.zero_grad()
    total = 0.0
    for (tokens, _), wanted in zip(window, joined, strict=True):
        logits = model(tokens).flatten(0, 1)[:-1]
        loss = F.cross_entropy(logits, wanted, reduction="sum") / count
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total


@wrong("is there a mean over nothing")
def takes_means(model, optimizer, window):
    """Each mean times its share: right, until a micro-batch has no target."""
    optimizer.zero_grad()
    total = 0.0
    for tokens, labels in window:
        logits, wanted = shifted(model(tokens), labels)
        loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        loss = loss * int((wanted != -100).sum()) / targets(window)
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total


@wrong("rows at once")
def pads_them_into_one(model, optimizer, window):
    return with_slips()(model, optimizer, [tuple(map(torch.cat, zip(*window, strict=True)))])


@wrong("and a window is one update")
def updates_each_time(model, optimizer, window):
    return sum(with_slips()(model, optimizer, [pair]) for pair in window if targets([pair]))


@right
def with_ignore_index_and_padding(model, optimizer, window):
    count = sum((labels[:, 1:] >= 0).sum().item() for _, labels in window)
    optimizer.zero_grad()
    losses = []
    for tokens, labels in window:
        wanted = F.pad(labels[:, 1:], (0, 1), value=-100)
        logits = model(tokens).transpose(1, 2)  # (B, V, T)
        loss = F.cross_entropy(logits, wanted, reduction="none").sum() / count
        loss.backward()
        losses.append(loss.item())
    optimizer.step()
    return sum(losses)


@right
def backwards_without_the_empty_ones(model, optimizer, window):
    """What has no target is left out; the loss is added up in float32."""
    count, total = targets(window), torch.zeros(())
    optimizer.zero_grad()
    for tokens, labels in reversed(window):
        if not targets([(tokens, labels)]):
            continue
        logits, wanted = shifted(model(tokens), labels)
        loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum") / count
        loss.backward()
        total += loss.detach()
    optimizer.step()
    return total.item()


@right
def by_picking_the_targets(model, optimizer, window):
    optimizer.zero_grad()
    total, count = 0.0, 0
    for tokens, labels in window:
        logits, wanted = shifted(model(tokens), labels)
        is_target = wanted != -100
        chosen = logits.log_softmax(-1)[is_target]
        loss = -chosen.gather(1, wanted[is_target][:, None]).sum()
        loss.backward()
        total, count = total + loss.item(), count + int(is_target.sum())
    for parameter in model.parameters():
        parameter.grad /= count
    optimizer.step()
    return total / count
