#!/usr/bin/env bash
# Whether a checkpoint moves BatchNorm's running averages once or twice depends on torch.compile,
# and on a graph break inside the block.
#
# PyTorch 2.13.0. A block of Linear and BatchNorm1d in torch.utils.checkpoint (use_reentrant=False),
# one forward and one backward. Its layers run twice, and so in eager the averages move twice.
# Compiled as a whole by aot_eager they move once: the partitioner recomputes values and no buffer
# updates. With a graph break in the block Dynamo leaves the checkpoint to eager, and they move
# twice again, without a message. A training that is moved from eager to compiled, or whose block
# gets a print, has other statistics in eval(), and no gradient tells.
#
# Seen: num_batches_tracked is 2 in eager, 1 compiled, 2 compiled with a graph break; the same
# gradients in all three.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "torch==2.13.0" "numpy==2.4.6"
"$folder/venv/bin/python" - <<'PYTHON'
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, breaks):
        super().__init__()
        self.linear, self.norm, self.breaks = nn.Linear(8, 8), nn.BatchNorm1d(8), breaks

    def forward(self, x):
        x = self.linear(x)
        if self.breaks:
            torch._dynamo.graph_break()
        return self.norm(x).relu()


def seen(compiles, breaks=False):
    torch.manual_seed(0)
    block, x = Block(breaks), torch.randn(16, 8)
    step = lambda x: checkpoint(block, x, use_reentrant=False).square().mean()
    step = torch.compile(step, backend="aot_eager") if compiles else step
    step(x).backward()
    return int(block.norm.num_batches_tracked), block.linear.weight.grad


eager, compiled, broken = seen(False), seen(True), seen(True, breaks=True)
print(f"torch {torch.__version__}: updates in eager {eager[0]}, compiled {compiled[0]}, "
      f"compiled with a graph break {broken[0]}")
assert (eager[0], compiled[0], broken[0]) == (2, 1, 2)
assert torch.allclose(eager[1], compiled[1]) and torch.allclose(eager[1], broken[1])
PYTHON
