#!/usr/bin/env bash
# torchinfo counts a checkpointed model as the plain one.
#
# torchinfo 1.8.0, PyTorch 2.13.0, on a CPU. One expects "Forward/backward pass size" to fall where a
# checkpoint keeps a module's input alone. It is twice the sum of all modules' outputs, whatever
# autograd keeps of them. (Chapter 02b says so.)
#
# Seen: 512 bytes for two layers of 8 rows of 4 numbers, checkpointed or not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "torch==2.13.0" "numpy==2.4.6" \
    "torchinfo==1.8.0"
"$folder/venv/bin/python" - <<'PYTHON'
import torch
import torchinfo
from torch import nn
from torch.utils.checkpoint import checkpoint


class Stage(nn.Module):
    def __init__(self, checkpointed):
        super().__init__()
        self.layer, self.checkpointed = nn.Linear(4, 4), checkpointed

    def forward(self, x):
        return checkpoint(self.run, x, use_reentrant=False) if self.checkpointed else self.run(x)

    def run(self, x):
        return self.layer(x).tanh()


x = torch.randn(8, 4)
plain, frugal = (
    torchinfo.summary(nn.Sequential(Stage(kind), Stage(kind)), input_data=x, verbose=0)
    for kind in (False, True)
)
print(f"torchinfo {torchinfo.__version__}: {plain.total_output_bytes}, {frugal.total_output_bytes}")
assert plain.total_output_bytes == frugal.total_output_bytes == 2 * 2 * x.nbytes
PYTHON
