#!/usr/bin/env bash
# A training loop inside one autocast block sees the weights of its first step for ever.
#
# PyTorch 2.13.0, on a CPU. Guessed before: autocast's copies of the weights in 16 bits are made anew
# after an optimizer's step, since a write in place is something that PyTorch counts. It is not so.
# The copies are kept until the outermost block ends, and no write is noticed. With the block around
# the loop, and not inside it, the loss is that of the first step in each step, the gradients are
# those of the first weights, and the weights move on by them without a word. With
# cache_enabled=False, or with a block in each step, training is right. Besides, the copies are held
# through backward and the optimizer's step: two bytes a weight.
#
# Seen, SGD on a linear regression, five steps: losses 1.0974, 0.9593, 0.8710, 0.8123, 0.7728 with a
# block in each step; 1.0974 five times with one around them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "torch==2.13.0" "numpy==2.4.6"
"$folder/venv/bin/python" - <<'PYTHON'
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F


def losses(around, inside):
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(64, 8), torch.randn(64, 1)
    start, seen = model.weight.detach().clone(), []
    with around():
        for _ in range(5):
            with inside():
                loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(round(loss.item(), 4))
    assert not torch.equal(model.weight, start)  # the weights move in any case
    return seen


def autocast(**how):
    return lambda: torch.autocast("cpu", torch.bfloat16, **how)


each = losses(nullcontext, autocast())
one = losses(autocast(), nullcontext)
uncached = losses(autocast(cache_enabled=False), nullcontext)
print(f"torch {torch.__version__}: losses of five steps")
print("a block in each step   ", each)
print("one block around them  ", one)
print("the same without cache ", uncached)
assert each == [1.0974, 0.9593, 0.871, 0.8123, 0.7728] == uncached
assert one == [1.0974] * 5
PYTHON
