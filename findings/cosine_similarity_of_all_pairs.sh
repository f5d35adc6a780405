#!/usr/bin/env bash
# F.cosine_similarity of all pairs keeps every pair's vectors, and not only the similarities.
#
# PyTorch 2.13.0. Guessed before: for (n, 1, d) and (1, n, d) it broadcasts as a matmul would, and
# keeps the inputs, their norms and n x n similarities. But both sides are expanded to (n, n, d),
# divided by their norms and multiplied, and both quotients wait for backward: 2 n n d numbers. So a
# contrastive loss that is written so holds about n times what it needs. Normalising the rows first
# and taking one matmul gives the same numbers.
#
# Seen, 64 rows of 1,024 in float32, bytes kept for backward in units of the rows: 129.25 by
# cosine_similarity, 2.00 by F.normalize and a matmul; the same similarities within 1e-6.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "torch==2.13.0" "numpy==2.4.6"
"$folder/venv/bin/python" - <<'PYTHON'
import torch
from torch.nn import functional as F

torch.manual_seed(0)
rows = torch.randn(64, 1024, requires_grad=True)


def kept(similarities):
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = similarities()
    return result, round(sum(storages.values()) / rows.nbytes, 2)


def by_matmul():
    unit = F.normalize(rows)
    return unit @ unit.T


pairs, by_pairs = kept(lambda: F.cosine_similarity(rows[:, None], rows[None], dim=-1))
matrix, by_matrix = kept(by_matmul)
print(f"torch {torch.__version__}: kept, in units of the rows")
print(f"cosine_similarity of all pairs {by_pairs}, normalised rows and a matmul {by_matrix}")
torch.testing.assert_close(pairs, matrix, rtol=0, atol=1e-6)
print("the same similarities within 1e-6")
assert (by_pairs, by_matrix) == (129.25, 2.0)
PYTHON
