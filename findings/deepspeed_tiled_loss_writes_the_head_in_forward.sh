#!/usr/bin/env bash
# DeepSpeed: the tiled loss gives the head its gradient in forward, before the loss is divided.
#
# deepspeed 0.19.8, PyTorch 2.13.0, on a CPU. One divides a loss by the number of micro-batches and
# expects all gradients to be divided. TiledFusedLogitsLoss runs backward for each tile in its forward
# and writes the head's .grad there: what is done to the loss afterwards reaches the hidden states
# alone. The division belongs inside the function that it tiles. (Chapter 10g says so.)
#
# Seen, for a division by 4 outside: the hidden states' gradient is right, the head's 4 times too long;
# inside, both are right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "torch==2.13.0" "numpy==2.4.6" \
    "deepspeed==0.19.8"
"$folder/venv/bin/python" - <<'PYTHON'
import torch
from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledFusedLogitsLoss
from torch import nn
from torch.nn import functional as F

for inside in (False, True):
    head, targets = nn.Linear(8, 32, bias=False), torch.randint(0, 32, (1, 16))
    hidden = torch.randn(1, 16, 8, requires_grad=True)

    def summed(head, hidden, targets, scale=1 / 4 if inside else 1):
        logits = head(hidden).reshape(-1, 32)
        return F.cross_entropy(logits, targets.reshape(-1), reduction="sum") * scale

    tensors = [hidden, head.weight]
    right = torch.autograd.grad(summed(head, hidden, targets, 1 / 4), tensors)
    loss = TiledFusedLogitsLoss.apply(summed, head, hidden, targets, None, 4, [head.weight], "sum")
    (loss * (1 if inside else 1 / 4)).backward()
    times = [(x.grad.norm() / one.norm()).item() for x, one in zip(tensors, right, strict=True)]
    print("divided", "inside:" if inside else "outside:", [round(one, 3) for one in times])
    assert [round(one, 3) for one in times] == [1.0, 1.0 if inside else 4.0]
PYTHON
