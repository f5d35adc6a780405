"""sentence-transformers' trainer with a loss of pairs, on a table of embeddings."""

import tempfile

import datasets
import sentence_transformers
import tokenizers
import torch
import transformers
from experiment import (
    CLIP, STEPS, Watched, averages, counted, divided, divisor, flat, logged, named, report,
    short_window,
)  # fmt: skip
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from torch.utils.data import BatchSampler, SequentialSampler

transformers.logging.set_verbosity_error()
datasets.disable_progress_bars()
COUNT, SIZE = 10, 2  # micro-batches, pairs in each
WORDS = {f"w{index}": index for index in range(64)}
ROWS = [(f"w{3 * i % 64} w{i}", f"w{7 * i % 64} w{i + 1}") for i in range(COUNT * SIZE)]


class InOrder(sentence_transformers.SentenceTransformerTrainer):
    def get_batch_sampler(self, dataset, batch_size, drop_last, *_, **__):
        return BatchSampler(SequentialSampler(dataset), batch_size, drop_last)


def make_model():
    torch.manual_seed(0)
    model = tokenizers.models.WordLevel(WORDS, unk_token="w0")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return sentence_transformers.SentenceTransformer(
        modules=[StaticEmbedding(tokenizer, embedding_dim=16)], device="cpu"
    )


def train(epochs=1, **changed):
    model = make_model()
    optimizer = Watched(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    data = datasets.Dataset.from_dict(dict(zip("ab", zip(*ROWS, strict=True), strict=True)))
    with tempfile.TemporaryDirectory() as folder:
        arguments = sentence_transformers.SentenceTransformerTrainingArguments(
            folder, per_device_train_batch_size=SIZE, num_train_epochs=epochs, use_cpu=True,
            logging_steps=1, report_to=[], save_strategy="no", disable_tqdm=True,
            dataloader_pin_memory=False, gradient_accumulation_steps=STEPS,
            **({"max_grad_norm": 0.0} | changed),
        )  # fmt: skip
        trainer = InOrder(
            model, arguments, train_dataset=data, loss=MultipleNegativesRankingLoss(model),
            optimizers=(optimizer, schedule),
        )  # fmt: skip
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return optimizer.gradients, trainer.state.log_history[0]["loss"], schedule.last_epoch


def alone(first):
    model = make_model()
    columns = zip(*ROWS[first : first + SIZE], strict=True)
    loss = MultipleNegativesRankingLoss(model)([model.preprocess(list(c)) for c in columns], None)
    loss.backward()
    return flat([weight.grad for weight in model.parameters()]), float(loss.detach())


parts = [alone(first) for first in range(0, len(ROWS), SIZE)]
gradients, losses = (list(part) for part in zip(*parts, strict=True))
known = {"gradients": gradients, "lengths": [SIZE] * COUNT}
seen, loss, _ = train(2)
once, _, schedule = train(1)
clip, _, _ = train(1, max_grad_norm=CLIP)
whole = divided(range(STEPS), **known)["micro-batches"]
report(
    version=f"sentence-transformers {sentence_transformers.__version__}",
    divides_by=divisor(seen[0], **known),
    short_window=short_window(seen, **known),
    clips=named(clip[0] / clip[0].norm(), {"the window's sum": whole / whole.norm()}),
    schedule=counted(schedule, len(once)),
    ema=averages(sentence_transformers),
    logs=logged(loss, losses, known["lengths"]),
    replays_dropout="",
)
