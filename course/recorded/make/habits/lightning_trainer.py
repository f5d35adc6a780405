"""Lightning's Trainer with `accumulate_grad_batches`, and its average of weights."""

import logging
import tempfile
import warnings

import lightning
import torch
from experiment import CLIP, ROWS, STEPS, Linear, Watched, cells, counted, logged, report
from lightning.pytorch.callbacks import EMAWeightAveraging

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.body, self.logged = Linear(), []

    def training_step(self, x, _):
        loss = self.body(x)
        self.log("loss", loss, on_step=True)
        return loss

    def on_train_batch_end(self, *_):
        self.logged.append(float(self.trainer.callback_metrics["loss"]))

    def configure_optimizers(self):
        self.watched = Watched(self.parameters())
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.watched, lambda _: 1.0)
        return [self.watched], [{"scheduler": self.schedule, "interval": "step"}]


class Average(EMAWeightAveraging):
    """The library's callback, counting how often it takes weights into its average."""

    times = 0

    def should_update(self, *place, **places):
        due = super().should_update(*place, **places)
        self.times += due
        return due


def train(**changed):
    module = Module()
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu", devices=1, accumulate_grad_batches=STEPS, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=folder, log_every_n_steps=1, **changed,
        )  # fmt: skip
        trainer.fit(module, torch.utils.data.DataLoader(ROWS, batch_size=1))
    return module


average = Average()
seen, once = train(max_epochs=2), train(max_epochs=1, callbacks=[average])
clip = train(max_epochs=1, gradient_clip_val=CLIP)
report(
    version=f"lightning {lightning.__version__}",
    **cells(
        seen.watched.gradients,
        once.watched.gradients,
        once.schedule.last_epoch,
        clip.watched.gradients,
    ),
    ema=counted(average.times, len(once.watched.gradients)),
    logs=logged(seen.logged[STEPS - 1]),
    replays_dropout="",
)
