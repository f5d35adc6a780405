#!/usr/bin/env bash
# The Trainer multiplies the gradient of most classification heads by the accumulation steps.
#
# transformers 5.23.0, accelerate 1.15.0, PyTorch 2.13.0. One expects four micro-batches of two rows
# to give the gradient of one batch of eight. The Trainer leaves out its division where a model's
# forward takes **kwargs, since such a model divides by the num_items_in_batch that it is handed.
# But many of the library's own heads take **kwargs and use a plain mean: classification of
# sequences and tokens, regression, several labels, and BERT's masked language model. Their gradient
# and the loss that is logged are as many times too large as there are accumulation steps. Clipping
# at the default norm of 1 hides it in part, the learning rate is wrong all the same. Causal
# language models are right, and so are question answering, whose labels nobody counts, and heads
# with label_smoothing. (Trainer.training_step, model_accepts_loss_kwargs.)
#
# Seen, four accumulation steps against one: gradient and logged loss 4.00 times for the six heads
# below, 1.00 for the three others.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "torch==2.13.0" "numpy==2.4.6" \
    "transformers==5.23.0" "accelerate==1.15.0"
"$folder/venv/bin/python" - <<'PYTHON'
import tempfile
import warnings

import torch
import transformers
from torch.utils.data import SequentialSampler
from transformers import BertConfig, LlamaConfig, TrainerCallback, TrainingArguments

warnings.simplefilter("ignore")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
SMALL = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
         "num_attention_heads": 2, "pad_token_id": 0}
BERT = {**SMALL, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


class InOrder(transformers.Trainer):
    def _get_train_sampler(self, *_):
        return SequentialSampler(self.train_dataset)


class Gradient(TrainerCallback):
    def on_pre_optimizer_step(self, *_, model, **__):
        gradients = [weight.grad.flatten() for weight in model.parameters()
                     if weight.grad is not None]
        self.norm = torch.cat(gradients).norm().item()


def one_update(head, config, rows, accumulation_steps, smoothing):
    torch.manual_seed(0)
    model, seen = head(config), Gradient()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=len(rows) // accumulation_steps, max_steps=1,
            gradient_accumulation_steps=accumulation_steps, learning_rate=0.0, max_grad_norm=0.0,
            optim="sgd", label_smoothing_factor=smoothing, logging_steps=1, report_to=[],
            save_strategy="no", use_cpu=True, disable_tqdm=True)
        trainer = InOrder(model, arguments, train_dataset=rows, callbacks=[seen])
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return seen.norm, trainer.state.log_history[0]["loss"]


ids = torch.randint(5, 64, (8, 8), generator=torch.Generator().manual_seed(1))
labels = {"tokens": ids, "class": ids[:, 0] % 2, "number": ids[:, 0] / 64,
          "several": (ids[:, :3] % 2).float(), "class of each": ids % 2}
cases = [
    ("BertForMaskedLM", BertConfig(**BERT), "tokens", 4.0, 0.0),
    ("BertForSequenceClassification", BertConfig(**BERT), "class", 4.0, 0.0),
    ("BertForSequenceClassification", BertConfig(**BERT, num_labels=1), "number", 4.0, 0.0),
    ("BertForSequenceClassification",
     BertConfig(**BERT, num_labels=3, problem_type="multi_label_classification"),
     "several", 4.0, 0.0),
    ("BertForTokenClassification", BertConfig(**BERT), "class of each", 4.0, 0.0),
    ("LlamaForSequenceClassification", LlamaConfig(**SMALL), "class", 4.0, 0.0),
    ("LlamaForCausalLM", LlamaConfig(**SMALL), "tokens", 1.0, 0.0),
    ("BertForQuestionAnswering", BertConfig(**BERT), None, 1.0, 0.0),
    ("BertForMaskedLM", BertConfig(**BERT), "tokens", 1.0, 0.1),
]
print(f"transformers {transformers.__version__}: four accumulation steps against one")
for name, config, kind, expected, smoothing in cases:
    if kind is None:
        rows = [{"input_ids": row, "start_positions": torch.tensor(2),
                 "end_positions": torch.tensor(5)} for row in ids]
    else:
        rows = [{"input_ids": row, "labels": label} for row, label in zip(ids, labels[kind])]
    head = getattr(transformers, name)
    one, four = (one_update(head, config, rows, steps, smoothing) for steps in (1, 4))
    gradient, loss = four[0] / one[0], four[1] / one[1]
    print(f"{name:31}{kind or 'spans':14} smoothing {smoothing}  "
          f"gradient {gradient:.2f}  loss {loss:.2f}")
    assert abs(gradient - expected) < 0.01 and abs(loss - expected) < 0.01
PYTHON
