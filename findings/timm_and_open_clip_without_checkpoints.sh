#!/usr/bin/env bash
# timm and open_clip: what cannot be checkpointed is refused by the one and ignored by the other.
#
# timm 1.0.31, open_clip 3.3.0, PyTorch 2.13.0, on a CPU. One expects set_grad_checkpointing() to make
# each block run twice, or to say that it cannot. A timm model without the switch raises; open_clip's
# ResNet tower takes the call and checkpoints nothing. (Chapter 10c says so.)
#
# Seen: vgg11 raises AssertionError, the tower's first block runs once, that of a ViT of timm twice.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "torch==2.13.0" "numpy==2.4.6" \
    "torchvision==0.28.0" "timm==1.0.31" "open_clip_torch==3.3.0"
"$folder/venv/bin/python" - <<'PYTHON'
import timm
import torch
from open_clip.modified_resnet import ModifiedResNet

said = ""
try:
    timm.create_model("vgg11").set_grad_checkpointing()
except AssertionError as error:
    said = str(error)
print("vgg11:", said)
assert "gradient checkpointing not supported" in said
tower = ModifiedResNet([1, 1, 1, 1], output_dim=8, heads=1, image_size=32, width=8)
sizes = {"img_size": 32, "patch_size": 16, "depth": 1}
small = timm.create_model("vit_tiny_patch16_224", **sizes).eval()
for model, block, runs in ((tower, tower.layer1[0], 1), (small, small.blocks[0], 2)):
    model.set_grad_checkpointing()
    ran = []
    block.register_forward_pre_hook(lambda *_, ran=ran: ran.append(1))
    model(torch.randn(2, 3, 32, 32)).sum().backward()
    print(type(model).__name__, "runs its first block", len(ran), "times")
    assert len(ran) == runs
PYTHON
