"""Windows."""

import torch

from solutions.answers import right, wrong

divides_by_nothing = wrong("the micro-batches' means were added up", " * (len(y) / num_images)", "")
divides_by_num = wrong("micro-batches that were asked for", "len(y) / num_images", "1 / num")
means_of_means = wrong("each micro-batch counts the same", "len(y) / num_images", "1 / len(window)")
weighs_in_float32 = wrong("which is float32's rounding", "(len(y) /", "(torch.tensor(len(y)) /")
zeroes_in_the_loop = wrong(
    "only the last micro-batch is in the gradient",
    "            loss =",
    "            optimizer.zero_grad()\n            loss =",
)
never_zeroes = wrong("the .grad from before your call", "        optimizer.zero_grad()\n", "")
zeroes_once_an_epoch = wrong(
    "the .grad that the window before left",
    "        optimizer.zero_grad()\n",
    "",
    "    while",
    "    optimizer.zero_grad()\n    while",
)
drops_the_last = wrong(
    "micro-batches, but counts too.",
    "        num_images",
    "        if len(window) < num:\n            break\n        num_images",
)
keeps_all_graphs = wrong(
    "Added losses keep all graphs",
    "            loss.backward()\n            losses[-1] += loss.item()",
    "            losses[-1] += loss\n"
    "        losses[-1].backward()\n"
    "        losses[-1] = losses[-1].item()",
)
returns_tensors = wrong("is a tensor, but should be a float", "loss.item()", "loss.detach()")
reads_seven = wrong(
    "the first update has 7 of the micro-batches in it",
    "(micro_batches, num)",
    "(micro_batches, 7)",
)
begins_anew = wrong("call iter once, before the loop", "iter(micro_batches)", "micro_batches")
updates_with_an_empty_window = wrong(
    "updates, and there are 1 windows",
    "    return losses",
    "    optimizer.zero_grad()\n"
    "    if len(losses) == 1:\n"
    "        optimizer.step()\n"
    "    return losses",
)
updates_each_time = wrong(
    "the first update has 1 of the micro-batches in it",
    "(micro_batches, num)",
    "(micro_batches, 1)",
)
puts_them_together = wrong(
    "rows at once, but the largest micro-batch",
    "        num_images",
    "        window = [tuple(map(torch.cat, zip(*window, strict=True)))]\n        num_images",
)
reads_the_epoch = wrong(
    "an epoch does not fit into memory", "iter(micro_batches)", "iter(list(micro_batches))"
)
logs_a_mean_of_means = wrong(
    "it is the mean of the micro-batches' means",
    "loss.item()",
    "loss.item() * num_images / len(y) / len(window)",
)


@right
def with_a_weight_for_later(model, optimizer, micro_batches, num):
    """Adds sums up, and divides the gradients at the end of the window."""
    losses, count, place, total = [], 0, 0, 0.0

    def update():
        for parameter in model.parameters():
            parameter.grad /= count
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total / count)

    optimizer.zero_grad()
    for x, y in micro_batches:
        loss = model.loss(x, y) * len(y)
        loss.backward()
        count, place, total = count + len(y), place + 1, total + loss.item()
        if place == num:
            update()
            count, place, total = 0, 0, 0.0
    if place:
        update()
    return losses


backwards_and_in_float32 = right(
    "for x, y in window:",
    "for x, y in reversed(window):",
    "losses[-1] += loss.item()",
    "losses[-1] = (loss.detach() + losses[-1]).item()",
)


@right
def by_hand(model, optimizer, micro_batches, num):
    micro_batches, losses = iter(micro_batches), []
    parameters = list(model.parameters())
    while True:
        window = [pair for _, pair in zip(range(num), micro_batches, strict=False)]
        if not window:
            return losses
        count = sum(len(y) for _, y in window)
        sums, total = [torch.zeros_like(p) for p in parameters], 0.0
        for x, y in window:
            loss = model.loss(x, y) * len(y) / count
            for s, gradient in zip(sums, torch.autograd.grad(loss, parameters), strict=True):
                s += gradient
            total += loss.item()
        for p, s in zip(parameters, sums, strict=True):
            p.grad = s
        optimizer.step()
        losses.append(total)
