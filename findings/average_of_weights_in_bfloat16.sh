#!/usr/bin/env bash
# AveragedModel of bfloat16 weights stops after a few hundred updates, and is far from the average.
#
# PyTorch 2.13.0, torch.optim.swa_utils. Guessed before: an average in 16 bits is off by its last
# digit, some per mille. But each update adds a share of the distance, 1 / (n + 1) of it for the plain
# average (SWA) and 1 - decay for the exponential one (EMA). As soon as that is below half of the
# average's last digit, which bfloat16 keeps to a 256th, nothing is added any more. So the average
# stays where it is while the weights move on, for good and without a word. An average in float32 of
# the same bfloat16 weights (AveragedModel(model.float()) or a copy of one's own) is right.
#
# Seen: weights that go from 0 to 1 in 1,000 even steps have the plain average 0.4995 in float32 and
# 0.25 in bfloat16; weights that stay at 1 for 5,000 updates of an EMA with decay 0.999, begun at 0,
# 0.9933 and 0.25.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "torch==2.13.0" "numpy==2.4.6"
"$folder/venv/bin/python" - <<'PYTHON'
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def averaged(dtype, values, **how):
    model = nn.Linear(4, 1, bias=False).to(dtype)
    nn.init.zeros_(model.weight)
    average = AveragedModel(model, **how)
    for value in values:
        nn.init.constant_(model.weight, value)
        average.update_parameters(model)
    return round(average.module.weight[0, 0].item(), 4)


print(f"torch {torch.__version__}")
seen = {}
for dtype in (torch.float32, torch.bfloat16):
    plain = averaged(dtype, [step / 1000 for step in range(1000)])
    ema = averaged(dtype, [0.0] + [1.0] * 5000, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    seen[dtype] = plain, ema
    print(f"{dtype}: plain average of 0 to 1 {plain}, EMA of 5,000 ones {ema}")
assert seen[torch.float32] == (0.4995, 0.9933)
assert seen[torch.bfloat16] == (0.25, 0.25)
PYTHON
