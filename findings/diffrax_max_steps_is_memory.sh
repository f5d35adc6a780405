#!/usr/bin/env bash
# diffrax: a larger max_steps, which no step is taken for, costs memory as its square root.
#
# diffrax 0.7.2, jax 0.10.2. max_steps reads like a guard that stops a solve that does not end. With
# the default adjoint, RecursiveCheckpointAdjoint, it is also what the number of checkpoints is
# chosen from, and these are allocated for max_steps, whatever the solve needs. So a guard of a
# million "to be safe" makes the gradient of a solve of 20 steps take fifteen times the memory of
# the default's 4,096, and ten times that of keeping every step (DirectAdjoint with max_steps=32).
# Naming `checkpoints` oneself, or a max_steps near the truth, cures it. BacksolveAdjoint does not
# care.
#
# Seen, temporary bytes of the compiled gradient in units of the state, for a max_steps of 32, 4,096
# and 1,000,000: recursive 37, 271, 4,243. Recursive with checkpoints=8 is 39 for 32 and 1,000,000,
# backsolve 20 for both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install "jax==0.10.2" "numpy==2.4.6" \
    "diffrax==0.7.2"
"$folder/venv/bin/python" - <<'PYTHON'
import diffrax
import jax
import jax.numpy as jnp

state, rate = jnp.ones(10_000), jnp.ones(())


def in_states(adjoint, max_steps):
    def loss(state, rate):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, rate: jnp.tanh(rate * y)), diffrax.Tsit5(), 0.0, 1.0, 0.05,
            state, args=rate, max_steps=max_steps, adjoint=adjoint)
        return solution.ys.sum()

    compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(state, rate).compile()
    return compiled.memory_analysis().temp_size_in_bytes / state.nbytes


print(f"diffrax {diffrax.__version__}, jax {jax.__version__}: temporary bytes per byte of state")
seen = {}
for name, adjoint, sizes in (
        ("recursive", diffrax.RecursiveCheckpointAdjoint(), (32, 4096, 1_000_000)),
        ("8 checkpoints", diffrax.RecursiveCheckpointAdjoint(checkpoints=8), (32, 1_000_000)),
        ("backsolve", diffrax.BacksolveAdjoint(), (32, 1_000_000)),
        ("direct", diffrax.DirectAdjoint(), (32,))):
    seen[name] = [in_states(adjoint, max_steps) for max_steps in sizes]
    print(f"{name:14}", "  ".join(f"{max_steps:,}: {size:,.0f}"
                                  for max_steps, size in zip(sizes, seen[name])))
small, default, large = seen["recursive"]
assert 5 < default / small < 10 and 10 < large / default < 20 and large > 5 * seen["direct"][0]
for name in ("8 checkpoints", "backsolve"):
    assert max(seen[name]) < 1.1 * min(seen[name])
PYTHON
