#!/usr/bin/env bash
# DeepSpeed: its checkpoint runs the recomputation without the forward's autocast.
#
# deepspeed 0.19.8, PyTorch 2.13.0, on a CPU. One expects the recomputation to compute in the types of
# the forward, as PyTorch's own checkpoint does. deepspeed's runs in backward, outside of the autocast
# block, and does not enter it again. (Chapter 12c says so.)
#
# Seen: a linear layer gives bfloat16 in forward and float32 in the recomputation.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "torch==2.13.0" "numpy==2.4.6" \
    "deepspeed==0.19.8"
"$folder/venv/bin/python" - <<'PYTHON'
import torch
from deepspeed.runtime.activation_checkpointing import checkpointing
from torch import nn

layer, seen = nn.Linear(8, 8), []


def region(x):
    seen.append(layer(x).dtype)
    return layer(x)


with torch.autocast("cpu", torch.bfloat16):
    y = checkpointing.checkpoint(region, torch.randn(4, 8, requires_grad=True))
y.float().sum().backward()
print("forward and recomputation:", *seen)
assert seen == [torch.bfloat16, torch.float32]
PYTHON
