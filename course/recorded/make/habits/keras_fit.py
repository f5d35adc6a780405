"""Keras' `fit` with `gradient_accumulation_steps`, its `use_ema`, and dropout under RematScope."""

import os
import sys

os.environ["KERAS_BACKEND"] = sys.argv[1]

import keras
import numpy as np
import torch
from experiment import CLIP, LENGTHS, ROWS, STEPS, cells, counted, logged, replayed, report

keras.config.disable_interactive_logging()
WEIGHT = np.array([[1.0], [0.5], [0.25]], dtype="float32")
averaged, rates, forwards = [], [], []


class Watched(keras.optimizers.SGD):
    """SGD that counts what it does to its average of weights."""

    def _update_model_variables_moving_average(self, variables):
        averaged.append(1)
        super()._update_model_variables_moving_average(variables)


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """A constant rate that notes the place it is asked for."""

    def __call__(self, step):
        """Return the rate at a place."""
        rates.append(int(step))
        return 1.0


class Weights(keras.callbacks.Callback):
    """The weights and the logged loss after each batch."""

    def __init__(self):
        super().__init__()
        self.weights, self.losses = [], []

    def on_train_batch_end(self, _, logs):
        """Keep what a batch leaves."""
        self.weights.append(np.concatenate([w.ravel() for w in self.model.get_weights()]))
        self.losses.append(float(logs["loss"]))


class Rows(keras.utils.PyDataset):
    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, index):
        return ROWS[index].numpy(), np.zeros((LENGTHS[index], 1), dtype="float32")


def train(epochs, **settings):
    model, kept = keras.Sequential([keras.layers.Dense(1, use_bias=False)]), Weights()
    model.build((None, 3))
    model.set_weights([WEIGHT])
    settings = {"learning_rate": 1.0, "gradient_accumulation_steps": STEPS} | settings
    model.compile(Watched(**settings), lambda _, seen: seen[:, 0], run_eagerly=True)
    for _ in range(epochs):
        model.fit(Rows(), callbacks=[kept], shuffle=False, verbose=0)
    _ = model.optimizer.learning_rate  # asks a schedule for its place after all epochs
    steps = -np.diff([WEIGHT[:, 0], *kept.weights], axis=0)
    return [torch.tensor(step) for step in steps if step.any()], kept.losses


class Dropout(keras.layers.Dropout):
    def call(self, inputs, training=False):
        forwards.append(1)
        return super().call(inputs, training=training)


def with_dropout():
    """Return the loss, the same from the gradient (equal where masks are), and runs of dropout."""
    keras.utils.set_random_seed(0)
    with keras.RematScope("full"):
        dropout = Dropout(0.5)
    model = keras.Sequential([keras.layers.Dense(1, use_bias=False), dropout])
    model(np.ones((64, 3)))
    model.set_weights([WEIGHT])
    forwards.clear()
    kept = Weights()
    model.compile(keras.optimizers.SGD(1.0), lambda _, seen: seen[:, 0], run_eagerly=True)
    model.fit(np.ones((64, 3)), np.zeros((64, 1)), batch_size=64, callbacks=[kept], verbose=0)
    gradient = WEIGHT[:, 0] - kept.weights[-1]
    return torch.tensor(kept.losses), torch.tensor([gradient @ WEIGHT[:, 0]]), len(forwards)


seen, _ = train(2)
clip, _ = train(1, global_clipnorm=CLIP)
once, _ = train(1, learning_rate=Schedule(), use_ema=True)
_, losses = train(1, learning_rate=0.0)
report(
    version=f"keras {keras.__version__} on {keras.backend.backend()}",
    **cells(seen, once, rates[-1], clip),
    ema=counted(len(averaged), len(once)),
    logs=logged(losses[STEPS - 1]),
    replays_dropout=replayed(*with_dropout()),
)
