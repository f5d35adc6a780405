"""Tokens."""

from types import SimpleNamespace

from solutions.answers import right, solved, wrong

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
    "you counted the labels before the shift", "labels[:, 1:] !=", "labels !="
)
counts_masked_ones = wrong(
    "you counted masked labels", "int((labels[:, 1:] != -100).sum())", "labels[:, 1:].numel()"
)
counts_every_position = wrong(
    "you counted every position", "int((labels[:, 1:] != -100).sum())", "labels.numel()"
)
counts_rows = wrong(
    "the unit of this loss is the token", "int((labels[:, 1:] != -100).sum())", "len(labels)"
)
weighs_by_labels = wrong(
    "each mean counts by its rows",
    "int((labels[:, 1:] != -100).sum())",
    "labels[:, 1:].numel()",
    "loss / num_targets",
    "loss / max(1, int((targets != -100).sum())) * (targets.numel() / num_targets)",
)
predicts_the_same_token = wrong(
    "each token is asked to predict itself",
    "labels[:, 1:] !=",
    "labels !=",
    "[:, :-1], labels[:, 1:]",
    ", labels",
)
shifts_the_wrong_way = wrong(
    "predict the one before it.",
    "labels[:, 1:] !=",
    "labels[:, :-1] !=",
    "[:, :-1], labels[:, 1:]",
    "[:, 1:], labels[:, :-1]",
)
predicts_every_token = wrong(
    "you used the tokens as targets",
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
does_not_zero = wrong("the .grad from before your call", "    optimizer.zero_grad()\n", "")
logs_the_sum = wrong("it is the whole sum", "loss.item()", "loss.item() * num_targets")
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
    "but should make one, after", "    optimizer.step", "        optimizer.step"
)


@right
def by_a_closure(model, optimizer, window):
    waits = SimpleNamespace(zero_grad=optimizer.zero_grad, step=lambda: None)
    return optimizer.step(lambda: solved("lab06").token_step(model, waits, window))


pads_the_targets = right(
    "model(tokens)[:, :-1], labels[:, 1:]",
    "model(tokens), F.pad(labels[:, 1:], (0, 1), value=-100)",
)
backwards_without_the_empty_ones = right(
    "    for tokens, labels in window:\n",
    "    for tokens, labels in reversed(window):\n"
    "        if (labels[:, 1:] == -100).all():\n"
    "            continue\n",
    "total += loss.item()",
    "total = (loss.detach() + total).item()",
)


@right
def by_picking_the_targets(model, optimizer, window):
    optimizer.zero_grad()
    total, count = 0.0, 0
    for tokens, labels in window:
        logits, wanted = model(tokens)[:, :-1], labels[:, 1:]
        is_target = wanted != -100
        chosen = logits.log_softmax(-1)[is_target]
        loss = -chosen.gather(1, wanted[is_target][:, None]).sum()
        loss.backward()
        total, count = total + loss.item(), count + int(is_target.sum())
    for parameter in model.parameters():
        parameter.grad /= count
    optimizer.step()
    return total / count
