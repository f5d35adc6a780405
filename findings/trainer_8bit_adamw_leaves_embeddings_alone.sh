#!/usr/bin/env bash
# transformers: the Trainer's 8-bit AdamW keeps the states of embeddings in float32.
#
# transformers 5.23.0, bitsandbytes 0.50.2, PyTorch 2.13.0, on a CPU. One expects optim="adamw_bnb_8bit"
# to keep all states in 8 bits. The Trainer registers each nn.Embedding for 32 bits, so a small model
# with a large vocabulary saves little. (Chapter 01b says so.)
#
# Seen: the state of the token embedding is float32, that of the head uint8.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "torch==2.13.0" "numpy==2.4.6" \
    "transformers==5.23.0" "accelerate==1.15.0" "bitsandbytes==0.50.2"
"$folder/venv/bin/python" - <<'PYTHON'
import tempfile

import torch
import transformers

sizes = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 64}
config = transformers.LlamaConfig(**sizes, num_hidden_layers=1, num_attention_heads=2)
model = transformers.LlamaForCausalLM(config)
with tempfile.TemporaryDirectory() as folder:
    arguments = transformers.TrainingArguments(
        folder, optim="adamw_bnb_8bit", use_cpu=True, report_to=[]
    )
    optimizer = transformers.Trainer(model, arguments).create_optimizer()
model(torch.arange(4)[None], labels=torch.arange(4)[None]).loss.backward()
optimizer.step()
states = {name: optimizer.state[weight]["state1"] for name, weight in model.named_parameters()}
for name in ("model.embed_tokens.weight", "lm_head.weight"):
    print(name, states[name].dtype)
assert states["model.embed_tokens.weight"].dtype == torch.float32
assert states["lm_head.weight"].dtype == torch.uint8
PYTHON
