#!/usr/bin/env bash
# bitsandbytes' Adam is AdamW: its weight decay is decoupled, and torch's Adam's is not.
#
# bitsandbytes 0.50.2, PyTorch 2.13.0, on a CPU. bnb.optim.Adam and Adam8bit have the arguments of
# torch.optim.Adam, where weight_decay adds to the gradient and is scaled like it by the second
# moment. bitsandbytes shrinks the weights instead, as AdamW does: Adam and AdamW are one function
# there. Whoever replaces torch's Adam by the 8-bit one to save memory changes the regulariser as
# well, in silence.
#
# Seen, five updates with weight_decay 0.5 and a rate of 0.1: bnb's Adam differs from torch's AdamW
# by 5e-8 and from torch's Adam by 12 %; Adam8bit by 0.13 % and 12 %.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "torch==2.13.0" "numpy==2.4.6" \
    "bitsandbytes==0.50.2"
"$folder/venv/bin/python" - <<'PYTHON'
import bitsandbytes
import torch


def trained(optimizer_class):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(4096))
    optimizer = optimizer_class([weight], lr=0.1, weight_decay=0.5)
    for step in range(5):
        weight.grad = torch.cos(torch.arange(4096.0) + step)
        optimizer.step()
    return weight.detach()


adam, adamw = trained(torch.optim.Adam), trained(torch.optim.AdamW)
print(f"bitsandbytes {bitsandbytes.__version__}, torch {torch.__version__}: distance from torch's")
for name in ("Adam", "AdamW", "Adam8bit", "AdamW8bit"):
    weight = trained(getattr(bitsandbytes.optim, name))
    to_adam, to_adamw = (float((weight - other).norm() / other.norm()) for other in (adam, adamw))
    print(f"{name:10} Adam {to_adam:.4f}  AdamW {to_adamw:.4f}")
    assert to_adam > 0.1 and to_adamw < 0.002
PYTHON
