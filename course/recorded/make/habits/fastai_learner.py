"""fastai's Learner with GradientAccumulation, whose `n_acc` counts samples, not batches."""

import sys

import fastai
import torch
from experiment import (
    CLIP, ROWS, STEPS, GRADIENTS, Linear, Watched, averages, clipped, divisor, logged,
    report, short_window,
)  # fmt: skip
from fastai.callback.core import Callback
from fastai.callback.training import GradientAccumulation, GradientClip
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastai.optimizer import OptimWrapper


class Losses(Callback):
    """What the recorder is shown: the loss after each batch."""

    def __init__(self):
        self.seen = []

    def after_batch(self):
        """Keep the loss that a recorder would average."""
        self.seen.append(float(self.learn.loss))


def train(epochs, samples=1, callbacks=()):
    rows = [(row.expand(samples, -1, -1), torch.zeros(samples)) for row in ROWS]
    model, losses = Linear(), Losses()
    watched = Watched(model.parameters())
    learner = Learner(
        DataLoaders(rows, rows), model, loss_func=lambda prediction, _: prediction, lr=0.0,
        opt_func=lambda weights, **_: OptimWrapper(opt=watched), train_bn=False,
        cbs=[GradientAccumulation(STEPS), losses, *callbacks],
    )  # fmt: skip
    with learner.no_bar(), learner.no_logging():
        learner.fit(epochs)
    return watched.gradients, losses.seen


samples = int(sys.argv[1])
seen, losses = train(2, samples)
once, _ = train(1, samples)
if samples == 1:
    clip, _ = train(1, callbacks=[GradientClip(CLIP)])
    cells = {"divides_by": divisor(seen[0]), "short_window": short_window(seen),
             "clips": clipped(clip[0])}  # fmt: skip
else:
    times = float((seen[0] @ GRADIENTS[0]) / (GRADIENTS[0] @ GRADIENTS[0]))
    cells = {"divides_by": f"one batch an update, its gradient times {times:g}",
             "short_window": "", "clips": ""}  # fmt: skip
report(
    version=f"fastai {fastai.__version__}",
    **cells,
    schedule="",
    ema=averages(fastai),
    logs=logged(losses[STEPS - 1]),
    replays_dropout="",
)
