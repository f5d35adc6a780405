#!/usr/bin/env bash
# Stacking a model's layers for scan changes what optax does: Muon becomes Adam, LAMB shares a norm.
#
# optax 0.2.8, jax 0.10.2. One expects that ten layers as one array of (10, d, d), the form that
# lax.scan, nnx.scan and remat over layers want, train as ten arrays of (d, d) do. But optax treats
# each array as one weight. contrib.muon takes matrices alone and gives Adam to all others, so a
# stacked model is trained by Adam, in silence (torch.optim.Muon refuses such a weight). LAMB, LARS
# and Adafactor scale an update by the norm of the weight, clip_by_block_rms and NovoGrad divide by
# one of the gradient: all layers then share that number. AdamW, Lion and SM3 do not care.
#
# Seen, three layers whose weights differ in size by 10 and gradients by 100, the size of each
# layer's first update stacked, as a share of its size apart: muon 9.6, 9.3, 9.6; lamb 58.9, 5.8,
# 0.6; lars 0.01, 0.10, 1.0; adafactor 58.9, 5.8, 0.6; novograd 0.0001, 0.01, 1; adamw, lion, sm3 1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "jax==0.10.2" "numpy==2.4.6" \
    "optax==0.2.8"
"$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import optax

keys = jax.random.split(jax.random.key(0), 2)
sizes = jnp.array([1.0, 10.0, 100.0])[:, None, None]
weights = 0.1 * jax.random.normal(keys[0], (3, 32, 32)) * sizes
gradients = 0.01 * jax.random.normal(keys[1], (3, 32, 32)) * sizes**2


def ratios(optimizer):
    stacked, _ = optimizer.update(gradients, optimizer.init(weights), weights)
    apart, _ = optimizer.update(list(gradients), optimizer.init(list(weights)), list(weights))
    return [float(jnp.linalg.norm(one) / jnp.linalg.norm(other))
            for one, other in zip(stacked, apart)]


differ = {"muon": optax.contrib.muon(0.1), "lamb": optax.lamb(0.1), "lars": optax.lars(0.1),
          "adafactor": optax.adafactor(0.1, min_dim_size_to_factor=16),
          "novograd": optax.novograd(0.1),
          "block rms": optax.chain(optax.clip_by_block_rms(1.0), optax.sgd(1.0))}
alike = {"adamw": optax.adamw(0.1), "lion": optax.lion(0.1), "sm3": optax.sm3(0.1)}
print(f"optax {optax.__version__}, jax {jax.__version__}: first update, stacked over apart")
for name, optimizer in {**differ, **alike}.items():
    seen = ratios(optimizer)
    print(f"{name:10}", "  ".join(f"{ratio:.4f}" for ratio in seen))
    off = max(abs(ratio - 1) for ratio in seen)
    assert off > 0.5 if name in differ else off < 1e-4, (name, seen)

muon, size = differ["muon"], lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree))
stacked, apart = size(muon.init(weights)), size(muon.init(list(weights)))
print(f"muon's state: {stacked:,} numbers stacked, {apart:,} apart, for {weights.size:,} weights")
assert stacked >= 2 * weights.size > apart >= weights.size
PYTHON
