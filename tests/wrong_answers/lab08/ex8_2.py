"""One update's gradient, a micro-batch at a time."""

import torch
from torch.nn import functional as F

from wrong_answers import right, wrong


def pieces(drawn, size):
    return list(zip(*(part.split(size) for part in drawn), strict=True))


def loss_of(unet, noisy, times, noise):
    return F.mse_loss(unet(noisy, times).sample, noise)


@wrong("images were in the U-Net at once")
def all_at_once(unet, drawn, micro_batch):
    loss = loss_of(unet, *drawn)
    loss.backward()
    return loss.item()


@wrong("is the last micro-batch, a smaller one, there?")
def leaves_out_the_rest(unet, drawn, micro_batch):
    size, total = min(micro_batch, len(drawn[0])), 0.0
    whole = len(drawn[0]) // size
    for part in pieces(drawn, size)[:whole]:
        loss = loss_of(unet, *part) / whole
        loss.backward()
        total += loss.item()
    return total


@wrong("each micro-batch must count by its share")
def never_divides(unet, drawn, micro_batch):
    total = 0.0
    for part in pieces(drawn, micro_batch):
        loss = loss_of(unet, *part)
        loss.backward()
        total += loss.item()
    return total


@wrong("the last has fewer images than the others")
def mean_of_means(unet, drawn, micro_batch):
    parts, total = pieces(drawn, micro_batch), 0.0
    for part in parts:
        loss = loss_of(unet, *part) / len(parts)
        loss.backward()
        total += loss.item()
    return total


@wrong("like backward, add to it")
def clears_first(unet, drawn, micro_batch):
    unet.zero_grad()
    return right_one(unet, drawn, micro_batch)


@wrong("no gradient arrived in .grad")
@torch.no_grad()
def without_backward(unet, drawn, micro_batch):
    num = len(drawn[0])
    parts = pieces(drawn, micro_batch)
    return sum(loss_of(unet, *part).item() * len(part[0]) / num for part in parts)


@wrong("nothing drawn anew")
def draws_new_noise(unet, drawn, micro_batch):
    noisy, times, noise = drawn
    return right_one(unet, (noisy, times, torch.randn_like(noise)), micro_batch)


@wrong("the loss is given as")
def gives_the_last_loss(unet, drawn, micro_batch):
    num = len(drawn[0])
    for part in pieces(drawn, micro_batch):
        loss = loss_of(unet, *part)
        (loss * len(part[0]) / num).backward()
    return loss.item() / 2


@wrong("the loss is a tensor")
def gives_a_tensor(unet, drawn, micro_batch):
    return torch.tensor(right_one(unet, drawn, micro_batch))


@wrong("whose graph lives on?")
def one_backward_at_the_end(unet, drawn, micro_batch):
    num = len(drawn[0])
    losses = [loss_of(unet, *p) * (len(p[0]) / num) for p in pieces(drawn, micro_batch)]
    total = sum(losses)
    total.backward()
    return total.item()


def weighted(weight):
    def backward_in_pieces(unet, drawn, micro_batch):
        total, num = 0.0, len(drawn[0])
        for part in pieces(drawn, micro_batch):
            loss = loss_of(unet, *part) * weight(num, micro_batch)
            loss.backward()
            total += loss.item()
        return total

    return backward_in_pieces


counts_the_last_as_full = wrong("the last one too")(weighted(lambda num, size: size / num))
rounds_steps_down = wrong("micro-batches, and each counts as")(
    weighted(lambda num, size: 1 / max(1, num // size))
)


@wrong("brought, and nothing else")
def clears_each_time(unet, drawn, micro_batch):
    num, total = len(drawn[0]), 0.0
    for part in pieces(drawn, micro_batch):
        unet.zero_grad()
        loss = loss_of(unet, *part) * (len(part[0]) / num)
        loss.backward()
        total += loss.item()
    return total


@wrong("the last one alone brought a gradient")
def backward_outside_the_loop(unet, drawn, micro_batch):
    num, total = len(drawn[0]), 0.0
    for part in pieces(drawn, micro_batch):
        loss = loss_of(unet, *part) * (len(part[0]) / num)
        total += loss.item()
    loss.backward()
    return total


@right
def right_one(unet, drawn, micro_batch):
    num, total = len(drawn[0]), 0.0
    for start in range(0, num, micro_batch):
        noisy, times, noise = (part[start : start + micro_batch] for part in drawn)
        loss = ((unet(noisy, times).sample - noise) ** 2).sum() / drawn[2].numel()
        loss.backward()
        total += loss.item()
    return total


@right
def with_gradients_handed_over(unet, drawn, micro_batch):
    total = 0.0
    for noisy, times, noise in pieces(drawn, micro_batch):
        off = unet(noisy, times, return_dict=False)[0] - noise
        total += float(off.detach().square().sum()) / drawn[0].numel()
        off.backward(2 * off.detach() / drawn[0].numel())
    return total


@wrong("a gradient is not finite")
def fills_in_nan(unet, drawn, micro_batch):
    for noisy, times, _ in pieces(drawn, micro_batch):
        with torch.no_grad():
            unet(noisy, times)
    for parameter in unet.parameters():
        parameter.grad = torch.full_like(parameter, float("nan"))
    return float("nan")
