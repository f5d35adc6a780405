"""Case J."""

from functools import partial

import torch
from torch.nn import functional as F
from torch.optim import SGD, AdamW

from solutions.answers import right, wrong
from solutions.answers.lab09 import LAB, but

answer = partial(but, "died_in_update", "J")


def train(model, batches, *, of=lambda model: model.head, make=AdamW, freeze=False, rate=0.01):
    for parameter in model.parameters() if freeze else ():
        parameter.requires_grad_(False)
    for parameter in of(model).parameters():
        parameter.requires_grad_(True)
    optimizer = make(of(model).parameters(), lr=rate)
    return [LAB.update(optimizer, model.loss(*batch)) for batch in batches]


def on_features(model, batches):
    """The body without a graph."""
    optimizer, losses = AdamW(model.head.parameters(), lr=0.01), []
    features = []
    model.head.register_forward_pre_hook(lambda _, args: features.append(args[0].detach()))
    for images, labels in batches:
        with torch.no_grad():
            model(images)
        loss = F.cross_entropy(model.head(features[-1]), labels)
        losses.append(LAB.update(optimizer, loss))
    return losses


other_cause = wrong("case J: the cause is not 'frozen input'")(answer(cause="frozen input"))
other_reading = wrong("case J: the cause is right, but 2 is not")(answer(reading=2))
still_broken = wrong("for which weights does the first update create state?")(
    answer(mended=LAB.broken_j)
)
all_learn = wrong("weights other than the head's have changed")(
    answer(mended=partial(train, of=lambda model: model))
)
sgd = wrong("the head's weights are not those")(answer(mended=partial(train, make=SGD)))
one_loss = wrong("3 losses are needed, one per update")(
    answer(mended=lambda *args: train(*args)[-1:])
)


@right
def frozen_and_fused():
    mended = partial(train, freeze=True, make=partial(AdamW, fused=True))
    return {"J": ("optimizer states", 157.0, mended)}


@right
def features_first():
    return {"J": ("optimizer states", 157, on_features)}


@right
def gradients_stay():
    return {"J": ["optimizer states", 157, train]}
