"""Case I."""

from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

from wrong_answers import right, wrong
from wrong_answers.lab09 import LAB, but

answer = partial(but, "contrastive_batch", "I")


def cached(model, optimizer, images, loss_of, num, views=(0, 1), zero=True, divide=1, logs=None):
    parts = images.chunk(num)
    turned = [parts, [part.flip(-1) for part in parts]]
    with torch.no_grad():
        leaves = [torch.cat([model(part) for part in view]).requires_grad_() for view in turned]
    loss = loss_of(*leaves)
    gradients = torch.autograd.grad(loss, leaves)
    if zero:
        optimizer.zero_grad()
    for view in views:
        for part, gradient in zip(turned[view], gradients[view].chunk(num), strict=True):
            (model(part) * gradient).sum().div(divide).backward()
    optimizer.step()
    return loss.item() if logs is None else logs(loss)


def at_once(model, optimizer, images, loss_of, num):
    return LAB.update(optimizer, loss_of(model(images), model(images.flip(-1))))


def by_checkpoints(model, optimizer, images, loss_of, num):
    """Autograd's own way: each micro-batch is a segment."""
    one, other = (
        torch.cat([checkpoint(model, part, use_reentrant=False) for part in view.chunk(num)])
        for view in (images, images.flip(-1))
    )
    return LAB.update(optimizer, loss_of(one, other))


other_cause = wrong("case I: the cause is not 'unequal weights'")(answer(cause="unequal weights"))
other_reading = wrong("case I: the cause is right, and 4 is not")(answer(reading=4))
still_broken = wrong("still compared with those of its own micro-batch")(
    answer(mended=LAB.broken_i)
)
whole_batch = wrong("rows at once, and")(answer(mended=at_once))
one_view = wrong("goes through the first view alone")(answer(mended=partial(cached, views=[0])))
other_view = wrong("goes through the second view alone")(answer(mended=partial(cached, views=[1])))
divided = wrong("it is divided by the number of micro-batches")(
    answer(mended=lambda *args: cached(*args, divide=args[-1]))
)
never_zeroes = wrong("what was in .grad before was added")(
    answer(mended=partial(cached, zero=False))
)
returns_a_tensor = wrong("the loss is a tensor")(answer(mended=partial(cached, logs=torch.clone)))


@right
def by_products():
    return {"I": ("no sum", 3, cached)}


@right
def by_segments():
    return {"I": ("no sum", 3.0, by_checkpoints)}
