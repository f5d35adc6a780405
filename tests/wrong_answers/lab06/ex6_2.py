"""Windows."""

from itertools import islice

import torch
from torch.nn import functional as F

from wrong_answers import right, wrong


def with_slips(
    weight=lambda y, window, num: len(y) / sum(len(t) for _, t in window),
    zero="window",
    log=float,
    short=True,
    read=islice,
    graphs=False,
):
    """The solution, with the weight, the zeroing, the reading and the log to choose."""

    def train_epoch(model, optimizer, micro_batches, num):
        micro_batches, losses = iter(micro_batches), []
        if zero == "epoch":
            optimizer.zero_grad()
        while window := list(read(micro_batches, num)):
            if len(window) < num and not short:
                break
            if zero == "window":
                optimizer.zero_grad()
            total = 0.0
            for x, y in window:
                if zero == "micro-batch":
                    optimizer.zero_grad()
                loss = model.loss(x, y) * weight(y, window, num)
                if not graphs:
                    loss.backward()
                    loss = log(loss)
                total = total + loss
            if graphs:
                total.backward()
                total = total.item()
            optimizer.step()
            losses.append(total)
        return losses

    return train_epoch


divides_by_nothing = wrong("the micro-batches' means were added up")(
    with_slips(weight=lambda y, window, num: 1)
)
divides_by_num = wrong("micro-batches that were asked for")(
    with_slips(weight=lambda y, window, num: 1 / num)
)
means_of_means = wrong("each micro-batch counts the same")(
    with_slips(weight=lambda y, window, num: 1 / len(window))
)
weighs_in_float32 = wrong("which is float32's rounding")(
    with_slips(weight=lambda y, w, num: torch.tensor(len(y)) / sum(len(t) for _, t in w))
)
zeroes_in_the_loop = wrong("only the last micro-batch is in the gradient")(
    with_slips(zero="micro-batch")
)
never_zeroes = wrong("what was handed over in .grad")(with_slips(zero="never"))
zeroes_once_an_epoch = wrong("what the window before left in .grad")(with_slips(zero="epoch"))
drops_the_last = wrong("micro-batches, and counts.")(with_slips(short=False))
keeps_all_graphs = wrong("Added losses keep all their graphs")(with_slips(graphs=True))
returns_tensors = wrong("is a tensor, and should be a float")(with_slips(log=torch.Tensor.detach))


reads_seven = wrong("the first update has 7 of the micro-batches in it")(
    with_slips(read=lambda micro_batches, num: islice(micro_batches, 7))
)


@wrong("call iter once, before the loop")
def begins_anew(model, optimizer, micro_batches, num):
    losses = []
    while window := list(islice(micro_batches, num)):
        losses += with_slips()(model, optimizer, window, num)
    return losses


@wrong("write model(x), and not model.forward(x)")
def goes_past_the_hooks(model, optimizer, micro_batches, num):
    micro_batches, losses = iter(micro_batches), []
    while window := list(islice(micro_batches, num)):
        count = sum(len(y) for _, y in window)
        optimizer.zero_grad()
        losses.append(0.0)
        for x, y in window:
            loss = F.cross_entropy(model.forward(x), y, reduction="sum") / count
            loss.backward()
            losses[-1] += loss.item()
        optimizer.step()
    return losses


@wrong("updates, and there are 1 windows")
def updates_with_an_empty_window(model, optimizer, micro_batches, num):
    losses = with_slips()(model, optimizer, micro_batches, num)
    optimizer.zero_grad()
    if len(losses) == 1:
        optimizer.step()
    return losses


@wrong("the first update has 1 of the micro-batches in it")
def updates_each_time(model, optimizer, micro_batches, num):
    losses = []
    for x, y in micro_batches:
        optimizer.zero_grad()
        loss = model.loss(x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@wrong("rows at once, and the largest micro-batch")
def puts_them_together(model, optimizer, micro_batches, num):
    losses, micro_batches = [], iter(micro_batches)
    while window := list(islice(micro_batches, num)):
        optimizer.zero_grad()
        loss = model.loss(*(torch.cat(parts) for parts in zip(*window, strict=True)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@wrong("an epoch does not fit into memory")
def reads_the_epoch(model, optimizer, micro_batches, num):
    return with_slips()(model, optimizer, list(micro_batches), num)


@wrong("it is the mean of the micro-batches' means")
def logs_a_mean_of_means(model, optimizer, micro_batches, num):
    losses, micro_batches = [], iter(micro_batches)
    while window := list(islice(micro_batches, num)):
        count = sum(len(y) for _, y in window)
        optimizer.zero_grad()
        means = []
        for x, y in window:
            loss = model.loss(x, y)
            (loss * len(y) / count).backward()
            means.append(loss.item())
        optimizer.step()
        losses.append(sum(means) / len(means))
    return losses


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


@right
def backwards(model, optimizer, micro_batches, num):
    """Each window from its end, its loss added up in float32."""
    micro_batches, losses = iter(micro_batches), []
    while window := list(islice(micro_batches, num)):
        count, total = sum(len(y) for _, y in window), torch.zeros(())
        optimizer.zero_grad()
        for x, y in reversed(window):
            loss = model.loss(x, y) * len(y) / count
            loss.backward()
            total += loss.detach()
        optimizer.step()
        losses.append(total.item())
    return losses


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
