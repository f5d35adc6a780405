"""One update's gradient, a micro-batch at a time."""

import torch

from solutions.answers import right, wrong

all_at_once = wrong("images were in the U-Net at once", "split(micro_batch)", "split(num)")
leaves_out_the_rest = wrong(
    "is the last micro-batch, a smaller one, there?",
    "    for part",
    "    micro_batch = min(micro_batch, num)\n"
    "    num -= num % micro_batch\n"
    "    drawn = [tensor[:num] for tensor in drawn]\n"
    "    for part",
)
never_divides = wrong("each micro-batch must count by its share", " * (len(part[0]) / num)", "")
mean_of_means = wrong(
    "the last has fewer images than the others", "len(part[0]) / num", "1 / -(-num // micro_batch)"
)
clears_first = wrong(
    "add to it, as backward does", "    for part", "    unet.zero_grad()\n    for part"
)
without_backward = wrong("no gradient arrived in .grad", "        loss.backward()\n", "")
draws_new_noise = wrong(
    "draw nothing again",
    "    for part",
    "    drawn = (*drawn[:2], torch.randn_like(drawn[2]))\n    for part",
)
gives_the_last_loss = wrong("but you returned", "total +=", "total =")
gives_a_tensor = wrong("the loss is a tensor", "return total", "return torch.tensor(total)")
one_backward_at_the_end = wrong(
    "whose graph is still held?",
    "        loss.backward()\n        total += loss.item()\n    return total",
    "        total = total + loss\n    total.backward()\n    return total.item()",
)
counts_the_last_as_full = wrong("the last one too", "len(part[0]) / num", "micro_batch / num")
rounds_steps_down = wrong(
    "micro-batches, and each counts as", "len(part[0]) / num", "1 / max(1, num // micro_batch)"
)
clears_each_time = wrong(
    "what the last micro-batch added", "        loss =", "        unet.zero_grad()\n        loss ="
)
backward_outside_the_loop = wrong(
    "only the last micro-batch added",
    "        loss.backward()\n",
    "",
    "    return total",
    "    loss.backward()\n    return total",
)
fills_in_nan = wrong(
    "a gradient is not finite",
    "    return total",
    "    for parameter in unet.parameters():\n"
    "        parameter.grad = torch.full_like(parameter, torch.nan)\n"
    "    return torch.nan",
)


def pieces(drawn, size):
    return list(zip(*(part.split(size) for part in drawn), strict=True))


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


@right
def by_images_and_channels(unet, drawn, micro_batch):
    num, channels, height, width = drawn[0].shape
    assert not drawn[1].is_floating_point()
    at_once, total = len(drawn[1]) * channels * height * width, 0.0
    for part in torch.arange(num).split(micro_batch):
        guess = unet(sample=drawn[0][part], timestep=drawn[1][part])["sample"]
        loss = torch.einsum("nchw,nchw->", guess - drawn[2][part], guess - drawn[2][part]) / at_once
        loss.backward()
        total += loss.item()
    return total


@right
def with_grad_and_a_table_of_times(unet, drawn, micro_batch):
    noisy, times, noise = drawn
    table, row = times.unique(return_inverse=True)
    weights, total, start = [*unet.parameters()], 0.0, 0
    while start < len(noise):
        part = slice(start, start + micro_batch)
        off = unet(noisy[part], table[row[part]]).sample.sub(noise[part])
        share = len(off) / len(noise)
        loss = off.square().mean(dim=(1, 2, 3)).mean() * share
        for weight, found in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.grad = found if weight.grad is None else weight.grad.add_(found)
        total, start = total + float(loss.detach()), part.stop
    return total
