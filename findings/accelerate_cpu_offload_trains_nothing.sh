#!/usr/bin/env bash
# accelerate: a model under cpu_offload takes a backward, and no weight gets a gradient.
#
# accelerate 1.15.0, PyTorch 2.13.0, on a CPU. One expects training with weights that wait on the
# host, or an error. The hooks put a copy of each weight in its place for the forward and a meta
# tensor afterwards. The copies have a graph, so the loss asks for a gradient, backward runs through
# the whole model and gives the input's gradient rightly, and the weights' gradients go to copies
# that nothing holds any more: each parameter is on the meta device, with grad None. An optimizer's
# step over these raises nothing either, and changes nothing. (AlignDevicesHook.)
#
# Seen: loss.requires_grad is True, the input's gradient is that of the plain model, all four
# parameters have grad None before and after a step.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "torch==2.13.0" "numpy==2.4.6" \
    "accelerate==1.15.0"
"$folder/venv/bin/python" - <<'PYTHON'
import accelerate
import torch
from torch import nn


def seen(offloads):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    if offloads:
        accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    x = torch.ones(2, 4, requires_grad=True)
    losses, missing = [], []
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        missing.append(sum(weight.grad is None for weight in model.parameters()))
        optimizer.step()
        losses.append(loss.item())
        gradient = x.grad.clone() if len(losses) == 1 else gradient
    return losses, missing, gradient


plain, offloaded = seen(False), seen(True)
print(f"accelerate {accelerate.__version__}, torch {torch.__version__}: two steps of AdamW")
for name, (losses, missing, _) in (("plain", plain), ("cpu_offload", offloaded)):
    losses = [round(loss, 4) for loss in losses]
    print(f"{name:12} losses {losses}  weights without gradient {missing}")
assert torch.equal(plain[2], offloaded[2])
assert plain[1] == [0, 0] and plain[0][1] < plain[0][0]
assert offloaded[1] == [4, 4] and offloaded[0][1] == offloaded[0][0] == plain[0][0]
PYTHON
