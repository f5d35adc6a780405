"""Tokens."""

import torch
from torch.nn import functional as F

from wrong_answers import right, wrong

means_of_means = wrong(
    "each micro-batch counts the same, however many targets",
    "loss / num_targets",
    "loss / max(1, int((targets != -100).sum())) / len(window)",
)
adds_means_up = wrong(
    "the micro-batches' means were added up",
    "loss / num_targets",
    "loss / max(1, int((targets != -100).sum()))",
)
counts_before_the_shift = wrong(
    "the labels were counted before the shift", "labels[:, 1:] !=", "labels !="
)
counts_masked_ones = wrong(
    "masked labels were counted", "int((labels[:, 1:] != -100).sum())", "labels[:, 1:].numel()"
)
counts_every_position = wrong(
    "every position was counted", "int((labels[:, 1:] != -100).sum())", "labels.numel()"
)
counts_rows = wrong(
    "the unit of this loss is the token", "int((labels[:, 1:] != -100).sum())", "len(labels)"
)
predicts_the_same_token = wrong(
    "each token is asked to predict itself",
    "labels[:, 1:] !=",
    "labels !=",
    "[:, :-1], labels[:, 1:]",
    ", labels",
)
shifts_the_wrong_way = wrong(
    "guess the one before it.",
    "labels[:, 1:] !=",
    "labels[:, :-1] !=",
    "[:, :-1], labels[:, 1:]",
    "[:, 1:], labels[:, :-1]",
)
predicts_every_token = wrong(
    "tokens were taken for targets",
    "    optimizer.zero",
    "    window = [(tokens, tokens) for tokens, _ in window]\n    optimizer.zero",
)
one_backward = wrong(
    "one micro-batch's graph at a time",
    "        loss.backward()\n        total += loss.item()\n",
    "        total = total + loss\n    total.backward()\n",
    "return total",
    "return total.item()",
)
does_not_zero = wrong("what was handed over in .grad", "    optimizer.zero_grad()\n", "")
logs_the_sum = wrong("it is the sum over all tokens", "loss.item()", "loss.item() * num_targets")
joins_the_rows = wrong(
    "shift, then flatten",
    "(labels[:, 1:] !=",
    "(labels.flatten()[1:] !=",
    "[:, :-1], labels[:, 1:]",
    ".flatten(0, 1)[:-1], labels.flatten()[1:]",
    "logits.flatten(0, 1)",
    "logits",
)
takes_means = wrong(
    "is there a mean over nothing",
    ', reduction="sum"',
    "",
    "loss / num_targets",
    "loss * int((targets != -100).sum()) / num_targets",
)
pads_them_into_one = wrong(
    "rows at once",
    "    optimizer.zero",
    "    window = [tuple(map(torch.cat, zip(*window, strict=True)))]\n    optimizer.zero",
)
updates_each_time = wrong(
    "and a window is one update", "    optimizer.step", "        optimizer.step"
)


def shifted(logits, labels):
    return logits[:, :-1], labels[:, 1:]


def targets(window):
    return sum(int((labels[:, 1:] != -100).sum()) for _, labels in window)


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
