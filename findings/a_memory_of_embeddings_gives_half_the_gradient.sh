#!/usr/bin/env bash
# pytorch-metric-learning: a memory of embeddings gives half of the large batch's gradient.
#
# pytorch-metric-learning 2.9.0, PyTorch 2.13.0, on a CPU. CrossBatchMemory compares a micro-batch
# with the embeddings of earlier ones. One expects the gradient of the batch that all of them are. The
# earlier embeddings carry no gradient, so each pair counts from one side alone: the direction is
# nearly that of the large batch, and the length is half. (Chapter 09 says so.)
#
# Seen, four micro-batches of 8 rows: cosine 0.958, and 0.53 times as long.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "torch==2.13.0" "numpy==2.4.6" \
    "pytorch-metric-learning==2.9.0"
"$folder/venv/bin/python" - <<'PYTHON'
import torch
from pytorch_metric_learning import losses
from torch.nn import functional as F

torch.manual_seed(0)
xs, labels = torch.randn(32, 8).chunk(4), (torch.arange(32) % 8).chunk(4)
start = torch.randn(8, 4)


def gradient(loss, *batches):
    weight = start.clone().requires_grad_()
    for x, its_labels in batches:
        (loss(F.normalize(x @ weight), its_labels) / len(batches)).backward()
    return weight.grad.flatten()


large = gradient(losses.NTXentLoss(), (torch.cat(xs), torch.cat(labels)))
memory_of_32 = losses.CrossBatchMemory(losses.NTXentLoss(), 4, memory_size=32)
parts = list(zip(xs, labels, strict=True))
for x, its_labels in parts:  # fills it
    memory_of_32(F.normalize(x @ start), its_labels)
seen = gradient(memory_of_32, *parts)
cosine, times = F.cosine_similarity(seen, large, 0).item(), (seen.norm() / large.norm()).item()
print(f"cosine {cosine:.3f}, {times:.2f} times as long")
assert cosine > 0.95 and abs(times - 0.5) < 0.1
PYTHON
