"""Hugging Face's Trainer, with a model that takes `num_items_in_batch`, and one that doesn't."""

import sys
import tempfile

import torch
import transformers
from experiment import (
    CLIP,
    ROWS,
    STEPS,
    Linear,
    Watched,
    averages,
    cells,
    flat,
    logged,
    replayed,
    report,
)
from torch.utils.data import SequentialSampler

transformers.logging.set_verbosity_error()


class Alone(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Linear()

    def forward(self, x, labels):
        return {"loss": self.body(x)}


class Told(Alone):
    def forward(self, x, labels, num_items_in_batch=None, **_):
        return {"loss": (x @ self.body.weight).sum() / num_items_in_batch}


class InOrder(transformers.Trainer):
    def _get_train_sampler(self, *_):
        return SequentialSampler(self.train_dataset)


def train(model, **changed):
    data = [{"x": row, "labels": torch.zeros(len(row), dtype=torch.long)} for row in ROWS]
    optimizer = Watched(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    settings = {"num_train_epochs": 2, "max_grad_norm": 0.0} | changed
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, per_device_train_batch_size=1, gradient_accumulation_steps=STEPS,
            logging_steps=1, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
            remove_unused_columns=False, dataloader_pin_memory=False, **settings,
        )  # fmt: skip
        trainer = InOrder(
            model, arguments, train_dataset=data, optimizers=(optimizer, schedule),
            data_collator=lambda rows: {key: rows[0][key] for key in rows[0]},
        )  # fmt: skip
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return optimizer.gradients, trainer.state.log_history[0]["loss"], schedule.last_epoch


def of_gpt2(checkpointing):
    config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=32, n_positions=16)
    torch.manual_seed(0)
    model, runs = transformers.GPT2LMHeadModel(config), []
    if checkpointing:
        model.gradient_checkpointing_enable()
    model.transformer.h[0].mlp.register_forward_pre_hook(lambda *_: runs.append(1))
    ids = torch.arange(16)[None]
    model.train()(ids, labels=ids).loss.backward()
    return flat([weight.grad for weight in model.parameters()]), len(runs)


kind = {"told": Told, "alone": Alone}[sys.argv[1]]
seen, loss, _ = train(kind())
clip, _, _ = train(kind(), num_train_epochs=1, max_grad_norm=CLIP)
once, _, schedule = train(kind(), num_train_epochs=1)
report(
    version=f"transformers {transformers.__version__}",
    **cells(seen, once, schedule, clip),
    ema=averages(transformers, "train*.py"),
    logs=logged(loss),
    replays_dropout=replayed(of_gpt2(False)[0], *of_gpt2(True)),
)
