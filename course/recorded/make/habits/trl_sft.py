"""TRL's SFTTrainer on a Llama of one layer, rows of 2 to 10 tokens."""

import tempfile

import datasets
import tokenizers
import torch
import transformers
import trl
from experiment import (
    CLIP, LENGTHS, STEPS, Watched, averages, counted, divided, divisor, flat, logged, named,
    replayed, report, short_window,
)  # fmt: skip
from torch import nn
from torch.utils.data import SequentialSampler

transformers.logging.set_verbosity_error()
datasets.disable_progress_bars()
WORDS = {f"w{index}": index for index in range(32)}
TOKENIZER = transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel(WORDS, unk_token="w0")),
    pad_token="w0", eos_token="w1",
)  # fmt: skip
draw = torch.Generator().manual_seed(0)
ROWS = [torch.randint(2, 32, (length + 1,), generator=draw).tolist() for length in LENGTHS]


class InOrder(trl.SFTTrainer):
    def _get_train_sampler(self, *_):
        return SequentialSampler(self.train_dataset)


def make_model(dropout=0.0):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, pad_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    model.runs = []
    mlp = model.model.layers[0].mlp
    mlp.act_fn = nn.Sequential(nn.SiLU(), nn.Dropout(dropout))
    mlp.register_forward_pre_hook(lambda *_: model.runs.append(1))
    return model


def train(epochs=1, dropout=0.0, **changed):
    model = make_model(dropout)
    optimizer = Watched(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    settings = {"gradient_accumulation_steps": STEPS, "max_grad_norm": 0.0} | changed
    with tempfile.TemporaryDirectory() as folder:
        arguments = trl.SFTConfig(
            folder, per_device_train_batch_size=1, num_train_epochs=epochs, use_cpu=True,
            bf16=False, logging_steps=1, report_to=[], save_strategy="no", disable_tqdm=True,
            dataloader_pin_memory=False, **settings,
        )  # fmt: skip
        trainer = InOrder(
            model, arguments, train_dataset=datasets.Dataset.from_dict({"input_ids": ROWS}),
            processing_class=TOKENIZER, optimizers=(optimizer, schedule),
        )  # fmt: skip
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return optimizer.gradients, trainer.state.log_history[0]["loss"], schedule.last_epoch, model


def alone(row):
    model, ids = make_model(), torch.tensor([row])
    loss = model(ids, labels=ids).loss
    loss.backward()
    return flat([weight.grad for weight in model.parameters()]), float(loss.detach())


gradients, losses = (list(part) for part in zip(*map(alone, ROWS), strict=True))
seen, loss, _, _ = train(2)
once, _, schedule, _ = train(1)
clip, _, _, _ = train(1, max_grad_norm=CLIP)
whole = divided(range(STEPS), gradients)["tokens"]
plain = train(1, dropout=0.5, gradient_checkpointing=False)
again = train(1, dropout=0.5)  # on by default
forwards = len(again[-1].runs) / len(plain[-1].runs)
report(
    version=f"trl {trl.__version__}",
    divides_by=divisor(seen[0], gradients=gradients),
    short_window=short_window(seen, gradients=gradients),
    clips=named(clip[0] / clip[0].norm(), {"the window's sum": whole / whole.norm()}),
    schedule=counted(schedule, len(once)),
    ema=averages(trl),
    logs=logged(loss, losses),
    replays_dropout=replayed(flat(plain[0]), flat(again[0]), forwards),
)
