#!/usr/bin/env bash
# In bfloat16 Adam's second moment never falls: after one large gradient a weight stays slow.
#
# PyTorch 2.13.0 and optax 0.2.8 (jax 0.10.2), weights and so moments in bfloat16. One expects a
# coarse average. But with beta2 = 0.999 an update would take a thousandth away, which is less than
# half of bfloat16's last digit (neighbours are a 128th to a 256th apart), so it rounds back: the
# average never falls. That holds for the for-loop, foreach and fused kernels, though the last
# computes in float32, and for optax, which makes its moments in the weights' type as PyTorch does.
# In float32 the same average has lost 99.7 % after 6,000 steps. Moments in float32 cure it, as
# stochastic rounding does.
#
# Seen, one gradient of 100, then 6,000 of 0.1: 10.0 after the first, 0.0347 at the end in float32;
# 10.0 at the end in bfloat16 in each of PyTorch's three kernels and in optax.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "torch==2.13.0" "numpy==2.4.6" \
    "jax==0.10.2" "optax==0.2.8"
"$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import optax
import torch

STEPS = 6000


def in_torch(dtype, **kernel):
    weight = torch.nn.Parameter(torch.ones(8, dtype=dtype))
    optimizer = torch.optim.AdamW([weight], lr=0.0, **kernel)
    weight.grad = torch.full_like(weight, 100.0)
    optimizer.step()
    weight.grad.fill_(0.1)
    for _ in range(STEPS):
        optimizer.step()
    return optimizer.state[weight]["exp_avg_sq"][0].item()


def in_optax(dtype):
    weight, optimizer = jnp.ones(8, dtype), optax.adam(1e-3)
    step = jax.jit(lambda state, gradient: optimizer.update(gradient, state, weight)[1])
    state = step(optimizer.init(weight), jnp.full(8, 100.0, dtype))
    for _ in range(STEPS):
        state = step(state, jnp.full(8, 0.1, dtype))
    return float(state[0].nu[0])


print(f"torch {torch.__version__}, optax {optax.__version__}: second moment after {STEPS} steps")
for name, kernel in (("for-loop", {"foreach": False}), ("foreach", {"foreach": True}),
                     ("fused", {"fused": True})):
    right, seen = in_torch(torch.float32, **kernel), in_torch(torch.bfloat16, **kernel)
    print(f"{name:9} float32 {right:.4f}  bfloat16 {seen:.4f}")
    assert abs(right - 0.0347) < 1e-3 and seen == 10.0
right, seen = in_optax(jnp.float32), in_optax(jnp.bfloat16)
print(f"optax     float32 {right:.4f}  bfloat16 {seen:.4f}")
assert abs(right - 0.0347) < 1e-3 and seen == 10.0
PYTHON
