#!/usr/bin/env bash
# Installing JAX makes the same PyTorch model keep a 27th of the bytes, with other bits.
#
# PyTorch 2.13.0. torch.einsum with three operands or more contracts from left to right, unless the
# package opt_einsum can be imported: then it asks that for the cheapest order. torch does not
# require the package; jax does (e3nn too). So what a line such as a low-rank product keeps for
# backward, its peak, its FLOPs and its last digits depend on what else is in the environment, and a
# budget found on one machine does not hold on another. torch.backends.opt_einsum.is_available()
# tells, and torch.backends.opt_einsum.enabled = False restores the plain order.
#
# Seen for "or,ri,bi->bo" with rank 8, width 512, batch 4: 1,089,536 bytes kept without the package,
# 41,088 with it (and 1,089,536 with it disabled); outputs equal within 1e-4, not bitwise.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "torch==2.13.0" "numpy==2.4.6"
cat > "$folder/kept.py" <<'PYTHON'
import sys

import torch

with_package, output = sys.argv[1:]
assert torch.backends.opt_einsum.is_available() == (with_package == "yes")
generator = torch.Generator().manual_seed(0)
factors = [torch.randn(*shape, generator=generator, requires_grad=True)
           for shape in ((512, 8), (8, 512), (4, 512))]


def kept():
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        product = torch.einsum("or,ri,bi->bo", *factors)
    return sum(storages.values()), product.detach()


seen, product = kept()
print(f"torch {torch.__version__}  opt_einsum {with_package:3}  keeps {seen:,} bytes")
if with_package == "no":
    assert seen == 1_089_536
    torch.save(product, output)
else:
    assert seen == 41_088
    earlier = torch.load(output)
    assert torch.allclose(product, earlier, rtol=1e-4, atol=1e-3)
    print("bitwise equal:", torch.equal(product, earlier))
    torch.backends.opt_einsum.enabled = False
    assert kept()[0] == 1_089_536
PYTHON
"$folder/venv/bin/python" "$folder/kept.py" no "$folder/product.pt"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "jax==0.10.2" "numpy==2.4.6"
"$folder/venv/bin/python" "$folder/kept.py" yes "$folder/product.pt"
