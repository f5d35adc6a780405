#!/usr/bin/env bash
# torch.export leaves a model's checkpoints out, and the exported program keeps everything.
#
# PyTorch 2.13.0. A model whose forward calls torch.utils.checkpoint(use_reentrant=False) exports
# without a word. The program holds the region's operations and no recomputation, so that training
# what ExportedProgram.module() returns takes the memory of the plain model. With strict=True the
# same model cannot be exported: RuntimeError (_checkpoint_context_fn).
#
# Seen, bytes kept between forward and backward: 81,920 with checkpoints, 634,880 without,
# 634,880 exported; the same gradients.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "torch==2.13.0" "numpy==2.4.6"
"$folder/venv/bin/python" - <<'PYTHON'
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self, recomputes):
        super().__init__()
        self.recomputes = recomputes
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = x + (checkpoint(block, x, use_reentrant=False) if self.recomputes else block(x))
        return x


def kept_and_gradient(model, parameters, x):
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(x).square().sum()
    kept = sum(storages.values())
    return kept, torch.autograd.grad(loss, list(parameters))[0]


x = torch.randn(256, 16, generator=torch.Generator().manual_seed(0))
seen = {}
for name, recomputes in (("checkpoints", True), ("plain", False), ("exported", True)):
    torch.manual_seed(0)
    model = Net(recomputes)
    if name == "exported":
        model = torch.export.export(model, (x,)).module()
    seen[name] = kept_and_gradient(model, model.parameters(), x)
    print(f"torch {torch.__version__}  {name:12} keeps {seen[name][0]:,} bytes")
    assert torch.allclose(seen[name][1], seen["checkpoints"][1])
assert seen["exported"][0] == seen["plain"][0] > 5 * seen["checkpoints"][0]

try:
    torch.export.export(Net(True), (x,), strict=True)
except RuntimeError as error:
    print("strict:", type(error).__name__, str(error).splitlines()[0])
    assert "_checkpoint_context_fn" in str(error)
else:
    raise SystemExit("A strict export takes a checkpoint now.")
PYTHON
