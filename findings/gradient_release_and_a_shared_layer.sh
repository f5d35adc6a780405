#!/usr/bin/env bash
# Gradient release steps once for each checkpoint that shares a layer, and the later ones are
# recomputed with weights that have moved.
#
# torch-optimi 0.3.3 on PyTorch 2.13.0. With gradient_release the optimizer steps a weight in the
# hook that fires once its gradient is complete. A reentrant checkpoint runs a backward of its own,
# so a layer that three of them share (weights shared over depth) gets three complete gradients in
# one backward: three steps, each with a part of the gradient, and the second and third block are
# recomputed by weights that the forward never used. Nothing is raised, the loss is right. Without
# checkpoints, and with use_reentrant=False, there is one step, and it is the right one. The hook is
# PyTorch's register_post_accumulate_grad_hook; other optimizers in backward hooks share this.
#
# Seen, AdamW over two batches: 2 steps plain and non-reentrant, 6 reentrant; the update after the
# first batch is off by 144 %.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "torch==2.13.0" "numpy==2.4.6" \
    "torch-optimi==0.3.3" "packaging==26.4"
"$folder/venv/bin/python" - <<'PYTHON'
import optimi
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def updates(use_reentrant, releases):
    torch.manual_seed(0)
    layer, x = nn.Linear(8, 8), torch.randn(4, 8, requires_grad=True)
    optimizer = optimi.AdamW(
        layer.parameters(), lr=0.1, weight_decay=0, gradient_release=releases)
    if releases:
        optimi.prepare_for_gradient_release(layer, optimizer)
    start, after = layer.weight.detach().clone(), []
    for _ in range(2):
        hidden = x
        for _ in range(3):
            region = lambda hidden: layer(hidden).tanh()
            hidden = (region(hidden) if use_reentrant is None
                      else checkpoint(region, hidden, use_reentrant=use_reentrant))
        hidden.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        after.append(layer.weight.detach() - start)
    return after, int(optimizer.state[layer.weight].get("step", 0))


right, _ = updates(None, releases=False)
print(f"torch-optimi 0.3.3, torch {torch.__version__}: one layer used three times, two batches")
for use_reentrant, steps in ((None, 2), (False, 2), (True, 6)):
    seen, counted = updates(use_reentrant, releases=True)
    off = float((seen[0] - right[0]).norm() / right[0].norm())
    print(f"use_reentrant {use_reentrant!s:5}  steps {counted}  first update off by {off:.3f}")
    assert counted == steps and (off > 1) == (use_reentrant is True)
    assert use_reentrant or off < 1e-6
PYTHON
