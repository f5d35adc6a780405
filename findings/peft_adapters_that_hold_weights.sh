#!/usr/bin/env bash
# PEFT: adapters with the fewest trainable weights hold more memory than training all of them.
#
# peft 0.21.2, PyTorch 2.13.0. Fewer trainable weights mean smaller gradients and optimizer states,
# and one expects smaller activations as well. But several methods build a matrix of the layer's
# size in each forward and keep it for backward, whatever the batch: FourierFT, LoHa and LoKr keep
# the layer's weight once, WaveFT and BOFT about twice, and HRA, a product of reflections that keeps
# each partial product, ten times at rank 8. Training everything, LoRA, DoRA, VeRA and MiSS keep
# nothing of that size. A smaller batch does not help.
#
# Seen, two Linear layers of 512 x 512 in float32, bytes kept whatever the batch, in units of the
# two weights: all 0.00, LoRA 0.00, DoRA 0.01, VeRA 0.00, MiSS 0.00, OFT 0.25, LoHa 1.00, LoKr 1.00,
# FourierFT 1.00 (with 200 trainable weights), WaveFT 2.00, BOFT 2.19, HRA 10.03.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "torch==2.13.0" "numpy==2.4.6" \
    "transformers==5.23.0" "accelerate==1.15.0" "peft==0.21.2"
"$folder/venv/bin/python" - <<'PYTHON'
import warnings
import weakref

import peft
import torch
from torch import nn

warnings.simplefilter("ignore")
WIDTH, LAYERS = 512, 2
TARGETS = {"target_modules": r".*layers\.\d"}


class Holder:
    """A saved tensor, for as long as a graph that is still alive holds it."""

    def __init__(self, tensor):
        self.tensor = tensor


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x


def kept(config, rows):
    torch.manual_seed(0)
    model = Net() if config is None else peft.get_peft_model(Net(), config)
    resident = {tensor.untyped_storage().data_ptr()
                for tensor in (*model.parameters(), *model.buffers())}
    x, holders = torch.randn(rows, WIDTH, requires_grad=True), weakref.WeakSet()

    def pack(tensor):
        holders.add(holder := Holder(tensor))
        return holder

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda holder: holder.tensor):
        output = model.train()(x)
    assert output.requires_grad
    storages = {storage.data_ptr(): storage.nbytes()
                for storage in (holder.tensor.untyped_storage() for holder in holders)
                if storage.data_ptr() not in resident}
    trainable = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    return sum(storages.values()), trainable


configs = {
    "all": (None, 0.0),
    "LoRA": (peft.LoraConfig(r=8, **TARGETS), 0.0),
    "VeRA": (peft.VeraConfig(r=64, **TARGETS), 0.0),
    "MiSS": (peft.MissConfig(**TARGETS), 0.0),
    "OFT": (peft.OFTConfig(oft_block_size=32, **TARGETS), 0.25),
    "DoRA": (peft.LoraConfig(r=8, use_dora=True, **TARGETS), 0.01),
    "LoHa": (peft.LoHaConfig(r=8, **TARGETS), 1.0),
    "LoKr": (peft.LoKrConfig(r=8, **TARGETS), 1.0),
    "FourierFT": (peft.FourierFTConfig(n_frequency=100, **TARGETS), 1.0),
    "WaveFT": (peft.WaveFTConfig(n_frequency=100, **TARGETS), 2.0),
    "BOFT": (peft.BOFTConfig(boft_block_size=32, **TARGETS), 2.19),
    "HRA": (peft.HRAConfig(r=8, **TARGETS), 10.03),
}
print(f"peft {peft.__version__}, torch {torch.__version__}: kept whatever the batch, in weights")
for name, (config, expected) in configs.items():
    few, trainable = kept(config, rows=16)
    many, _ = kept(config, rows=32)
    weights = (2 * few - many) / (WIDTH * WIDTH * 4 * LAYERS)
    print(f"{name:10} trains {trainable:7,}  keeps {weights:.2f}")
    assert abs(weights - expected) < 0.02, (name, weights, expected)
PYTHON
