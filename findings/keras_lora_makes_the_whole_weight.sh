#!/usr/bin/env bash
# Keras: enable_lora makes the whole weight again in each forward and holds it for backward.
#
# keras 3.15.1 on its torch backend (PyTorch 2.13.0). One expects two thin products beside the
# frozen one. But a Dense layer with LoRA enabled computes kernel + scale * a @ b, a tensor of the
# kernel's size, and multiplies by that. In every layer its bytes are held between forward and
# backward. So LoRA saves optimizer states here and costs activations, by a copy of the weights in
# all. (The `kernel` property of keras.layers.Dense.)
#
# Seen, two Dense layers of 512 x 512 in float32, bytes kept whatever the batch: 0 without LoRA,
# 2,097,152 with rank 4, which is both kernels.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "torch==2.13.0" "numpy==2.4.6" \
    "keras==3.15.1"
"$folder/venv/bin/python" - <<'PYTHON'
import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import torch

WIDTH = 512


def kept(rank, rows):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(WIDTH) for _ in range(2)]
    for layer in layers:
        layer.build((None, WIDTH))
        if rank:
            layer.enable_lora(rank)
    resident = {weight.value.untyped_storage().data_ptr()
                for layer in layers for weight in layer.weights}
    x, storages = torch.ones(rows, WIDTH, requires_grad=True), {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in resident:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = x
        for layer in layers:
            hidden = keras.ops.relu(layer(hidden, training=True))
    assert hidden.requires_grad
    return sum(storages.values())


print(f"keras {keras.__version__}, torch {torch.__version__}: bytes kept whatever the batch")
for rank, expected in ((None, 0), (4, 2 * WIDTH * WIDTH * 4)):
    seen = 2 * kept(rank, rows=8) - kept(rank, rows=16)
    print(f"rank {rank!s:4}  {seen:,}")
    assert seen == expected
PYTHON
