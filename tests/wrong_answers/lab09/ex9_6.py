"""Case J."""

import contextlib
from functools import partial

import torch.distributed as dist
from torch.nn import functional as F

from wrong_answers import right, wrong
from wrong_answers.lab09 import LAB, but

answer = partial(but, "rank_traffic", "J")


def rank_step(model, optimizer, window, *, skipped=None, divide=True, zero=True, through=None):
    skipped = len(window) - 1 if skipped is None else skipped
    if zero:
        optimizer.zero_grad()
    logged = 0.0
    for place, (images, labels) in enumerate(window):
        with contextlib.ExitStack() as stack:
            if place < skipped:
                stack.enter_context(model.no_sync())
            forward = model if through is None else through(model)
            loss = F.cross_entropy(forward(images), labels) / (len(window) if divide else 1)
            loss.backward()
        logged += loss.item()
    optimizer.step()
    return logged


def by_hand(model, optimizer, window):
    """Without DDP's exchange: one all-reduce of each gradient at the end."""
    optimizer.zero_grad()
    logged = 0.0
    for images, labels in window:
        loss = F.cross_entropy(model.module(images), labels) / len(window)
        loss.backward()
        logged += loss.item()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    optimizer.step()
    return logged


other_cause = wrong("case J: the cause is not 'not divided'")(answer(cause="not divided"))
other_reading = wrong("case J: the cause is right, and 2 is not")(answer(reading=2))
still_broken = wrong("micro-batches it is exchanged")(answer(mended=LAB.broken_j))
never_exchanged = wrong("that of this rank alone: nothing was exchanged")(
    answer(mended=partial(rank_step, skipped=99))
)
not_divided = wrong("times too long: the loss is divided by nothing")(
    answer(mended=partial(rank_step, divide=False))
)
never_zeroes = wrong("what was in .grad before was added")(
    answer(mended=partial(rank_step, zero=False))
)


@right
def with_an_exit_stack():
    return {"J": ("more traffic", 4.0, rank_step)}


@right
def reduced_by_hand():
    return {"J": ["more traffic", 4, by_hand]}
