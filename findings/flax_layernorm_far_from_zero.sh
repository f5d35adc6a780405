#!/usr/bin/env bash
# Flax's LayerNorm of numbers far from zero is wrong by hundreds, in silence.
#
# flax 0.12.8, jax 0.10.2, equinox 0.13.8. LayerNorm does not depend on an offset that all features
# share. Flax computes the variance as the mean of squares less the square of the mean (its default
# use_fast_variance=True, Linen and NNX), in float32. An offset of thousands of standard deviations
# is lost in rounding: the difference is clipped at zero, and the output is divided by the root of
# epsilon. No NaN, no message, outputs of hundreds. use_fast_variance=False is right, as equinox is.
# Residual streams and inputs such as coordinates have such offsets.
#
# Seen, the standard deviation of the output for inputs of standard deviation 1 with an offset of 0,
# 1,000 and 4,096: Flax 1.00, 1.06, 492; with use_fast_variance=False 1.00 each; equinox 1.00 each.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "jax==0.10.2" "numpy==2.4.6" \
    "flax==0.12.8" "equinox==0.13.8"
"$folder/venv/bin/python" - <<'PYTHON'
import equinox
import flax
import flax.linen as nn
import jax
from flax import nnx

x = jax.random.normal(jax.random.key(0), (4, 512))
print(f"flax {flax.__version__}, jax {jax.__version__}: standard deviation of the output")


def linen(x, **options):
    layer = nn.LayerNorm(**options)
    return layer.apply(layer.init(jax.random.key(0), x), x)


layers = {
    "linen": linen,
    "nnx": nnx.LayerNorm(512, rngs=nnx.Rngs(0)),
    "linen, slow": lambda x: linen(x, use_fast_variance=False),
    "equinox": jax.vmap(equinox.nn.LayerNorm(512)),
}
for name, layer in layers.items():
    seen = [float(layer(x + offset).std()) for offset in (0.0, 1000.0, 4096.0)]
    print(f"{name:12}", "  ".join(f"{deviation:9.3f}" for deviation in seen))
    assert abs(seen[0] - 1) < 1e-3
    right = name in ("linen, slow", "equinox")
    assert max(seen) < 1.001 if right else seen[2] > 100, (name, seen)
PYTHON
