#!/usr/bin/env bash
# PyTorch's FLOP counter: the backward of an EfficientNet costs 50 forwards, so checkpoints look free.
#
# PyTorch 2.13.0, transformers 5.23.0 in default sizes, on meta tensors. One expects a backward of about two
# forwards, whatever the model. FlopCounterMode's formula for a convolution's weight gradient leaves
# the groups out: it counts that of a depthwise layer once for each channel. A model of depthwise
# layers seems to spend nearly all of its time in backward, and a second forward to add next to
# nothing; in truth it adds a third. ResNet-50, without groups, is counted right, and so is the
# forward of all. (pytorch/pytorch pull request 183405 divides by the groups.)
#
# Seen, FLOPs of backward over those of forward, and what a second forward adds to both:
# ResNet 1.97 and 34 %, ConvNext 7.70 and 12 %, MobileNetV2 19.49 and 5 %, EfficientNet 49.54 and 2 %.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "torch==2.13.0" "numpy==2.4.6" \
    "transformers==5.23.0"
"$folder/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

SEEN = {
    "ResNet": 1.97,
    "ConvNext": 7.70,
    "MobileNetV2": 19.49,
    "EfficientNet": 49.54,
}
print(f"torch {torch.__version__}: FLOPs by FlopCounterMode, backward over forward")
for name, seen in SEEN.items():
    config = getattr(transformers, f"{name}Config")()
    with torch.device("meta"):
        model = getattr(transformers, f"{name}Model")(config)
        images = torch.empty(2, 3, 224, 224)
    with FlopCounterMode(display=False) as forward:
        out = model(images).last_hidden_state
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    ratio = backward.get_total_flops() / forward.get_total_flops()
    print(f"{name:16}{ratio:7.2f}; a second forward adds {1 / (1 + ratio):.1%}")
    assert round(ratio, 2) == seen, name
PYTHON
