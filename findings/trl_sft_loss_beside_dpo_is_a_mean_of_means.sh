#!/usr/bin/env bash
# TRL: an SFT loss beside DPO's is a mean of means, so accumulation changes the training.
#
# trl 1.16.0, transformers 5.23.0, PyTorch 2.13.0, on a CPU. One expects eight micro-batches of one pair
# to train as one batch of eight. DPO's own loss is a mean over pairs and does. The SFT term that
# loss_type=["sigmoid", "sft"] adds is a mean over a micro-batch's tokens: answers of other lengths
# weigh differently. (Chapter 10f says so.)
#
# Seen: parameters after one update agree within 1e-5 for "sigmoid" alone, and differ with "sft".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "torch==2.13.0" "numpy==2.4.6" \
    "transformers==5.23.0" "accelerate==1.15.0" "trl==1.16.0" "datasets==5.2.0"
"$folder/venv/bin/python" - <<'PYTHON'
import tempfile

import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

words = ["<pad>", "<eos>", *(f"w{i}" for i in range(10))]
plain = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, words[1]))
plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
names = {"pad_token": words[0], "eos_token": words[1]}
tokens = PreTrainedTokenizerFast(tokenizer_object=plain, **names)
sizes = {"vocab_size": 12, "hidden_size": 16, "intermediate_size": 16}
chosen = (" " + " ".join(words[2 : 2 + n]) for n in (1, 1, 2, 2, 8, 9, 10, 10))
rows = [{"prompt": "w1", "chosen": one, "rejected": " w3 w4"} for one in chosen]


def trained(losses, micro_batch, folder):
    torch.manual_seed(0)
    config = LlamaConfig(**sizes, num_hidden_layers=1, num_attention_heads=2)  # TRL changes it
    model, reference = LlamaForCausalLM(config), LlamaForCausalLM(config)
    reference.load_state_dict(model.state_dict())
    options = trl.DPOConfig(
        folder, per_device_train_batch_size=micro_batch, max_steps=1, use_cpu=True,
        gradient_accumulation_steps=8 // micro_batch, loss_type=losses, optim="sgd",
        loss_weights=[1.0] * len(losses), learning_rate=1.0, bf16=False, report_to=[],
        save_strategy="no", lr_scheduler_type="constant", max_grad_norm=0,
    )
    data = Dataset.from_list(rows)
    trl.DPOTrainer(
        model, reference, args=options, train_dataset=data, processing_class=tokens
    ).train()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


for losses, same in ((["sigmoid"], True), (["sigmoid", "sft"], False)):
    with tempfile.TemporaryDirectory() as folder:
        ways = trained(losses, 1, folder), trained(losses, 8, folder)
    print(losses, "off by at most", f"{(ways[0] - ways[1]).abs().max().item():.1e}")
    assert torch.allclose(*ways, atol=1e-5) == same
PYTHON
