#!/usr/bin/env bash
# PyTorch's FLOP counter finds none in an LSTM, nor in an encoder layer that is only asked.
#
# PyTorch 2.13.0, on a CPU. One expects the matmuls of all layers. But FlopCounterMode knows a list
# of operations, and what PyTorch fuses or writes in place is not in it: an LSTM (one oneDNN
# operation; a GRU, which runs as matmuls, is counted), TransformerEncoderLayer in eval mode under
# no_grad (its fast path; with gradients on the same call is counted), addmm_ and baddbmm_, addbmm,
# nn.Bilinear, a matrix times a vector by `@` (by einsum it is counted). Nothing warns, so a
# speech model looks free where it costs most, and the layer seems to cost nothing in evaluation.
#
# Seen, FLOPs: LSTM 0, GRU 368,640; encoder layer 10,813,440 with gradients on, 0 under no_grad;
# addmm 524,288, addmm_ 0; baddbmm 2,097,152, baddbmm_ 0, addbmm 0; Bilinear 0; `matrix @ vector`
# 0, the same by einsum 16,384.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "torch==2.13.0" "numpy==2.4.6"
"$folder/venv/bin/python" - <<'PYTHON'
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

square, wide, tall = torch.ones(64, 32), torch.ones(64, 128), torch.ones(128, 32)
squares, wides, talls = (x.expand(4, *x.shape) for x in (square, wide, tall))
vector, steps = torch.ones(128), torch.ones(10, 4, 16)
layer = nn.TransformerEncoderLayer(32, 4, batch_first=True).eval()
sentences = torch.ones(10, 4, 32)
CASES = {
    "LSTM": (lambda: nn.LSTM(16, 32)(steps), 0),
    "GRU": (lambda: nn.GRU(16, 32)(steps), 368_640),
    "encoder layer": (lambda: layer(sentences), 10_813_440),
    "encoder layer, no_grad": (torch.no_grad()(lambda: layer(sentences)), 0),
    "addmm": (lambda: torch.addmm(square, wide, tall), 524_288),
    "addmm_": (lambda: square.clone().addmm_(wide, tall), 0),
    "baddbmm": (lambda: torch.baddbmm(squares, wides, talls), 2_097_152),
    "baddbmm_": (lambda: squares.clone().baddbmm_(wides, talls), 0),
    "addbmm": (lambda: torch.addbmm(square, wides, talls), 0),
    "Bilinear": (lambda: nn.Bilinear(8, 8, 4)(torch.ones(5, 8), torch.ones(5, 8)), 0),
    "matrix @ vector": (lambda: wide @ vector, 0),
    "einsum": (lambda: torch.einsum("ij,j->i", wide, vector), 16_384),
}
print(f"torch {torch.__version__}: FLOPs by FlopCounterMode")
for name, (call, seen) in CASES.items():
    with FlopCounterMode(display=False) as counter:
        call()
    print(f"{name:24}{counter.get_total_flops():>12,}")
    assert counter.get_total_flops() == seen, name
PYTHON
