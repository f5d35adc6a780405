"""MosaicML's Composer, which splits each batch by `device_train_microbatch_size`, and its EMA."""

import logging
import warnings

import composer
import torch
from composer.algorithms import EMA, GradientClipping
from composer.core import Callback, DataSpec
from experiment import CLIP, ROWS, STEPS, Linear, Watched, cells, counted, logged, report

warnings.simplefilter("ignore")
logging.disable()


class Model(composer.ComposerModel):
    def __init__(self):
        super().__init__()
        self.body = Linear()

    def forward(self, batch):
        return torch.stack([self.body(row) for row in batch]).mean()

    def loss(self, outputs, _):
        return outputs


class Average(EMA):
    """The library's average, counting how often it takes weights in."""

    times = 0

    def apply(self, event, state, logger):
        """Count the batch ends at which the average may move."""
        self.times += event.value == "batch_end"
        super().apply(event, state, logger)


class Losses(Callback):
    def __init__(self):
        self.seen = []

    def batch_end(self, state, logger):
        """Keep the loss that is logged."""
        self.seen.append(float(state.total_loss_dict["loss/train/total"]))


def train(epochs, algorithms=()):
    model, losses = Model(), Losses()
    optimizer = Watched(model.parameters())
    loader = torch.utils.data.DataLoader(ROWS, batch_size=STEPS, collate_fn=list)
    data = DataSpec(
        loader,
        split_batch=lambda rows, size: [
            rows[start : start + size] for start in range(0, len(rows), size)
        ],
        get_num_samples_in_batch=len,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    trainer = composer.Trainer(
        model=model, train_dataloader=data, optimizers=optimizer, schedulers=schedule,
        max_duration=f"{epochs}ep", device="cpu", device_train_microbatch_size=1,
        algorithms=list(algorithms), callbacks=[losses], progress_bar=False,
        step_schedulers_every_batch=True,
    )  # fmt: skip
    trainer.fit()
    trainer.close()
    return optimizer.gradients, losses.seen, schedule.last_epoch


seen, losses, _ = train(2)
average = Average(half_life="2ba", update_interval="1ba")
once, _, schedule = train(1, [average])
clip, _, _ = train(1, [GradientClipping(clipping_type="norm", clipping_threshold=CLIP)])
report(
    version=f"composer {composer.__version__}",
    **cells(seen, once, schedule, clip),
    ema=counted(average.times, len(once)),
    logs=logged(losses[0]),
    replays_dropout="",
)
