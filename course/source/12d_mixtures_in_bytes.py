# %% [markdown] id="title"
# # Mixtures of experts in bytes
#
# Most large language models today are mixtures of experts: in each layer a router sends each token
# to a few out of many MLPs. Such a model has two sizes: the number of all its parameters, and the
# number that one token uses. In this companion you count both, see what a block keeps for backward,
# and choose what to recompute.
#
# No lab and no later chapter needs this companion.
#
# **Budget:** 25 minutes, 2 GiB of memory, no GPU needed.

# %% id="imports"
import pandas as pd
import torch
import transformers
from torch import nn

from tutorial_lib import blanks, memory, plots
from tutorial_lib.guesses import beside
from tutorial_lib.instruments import published
from tutorial_lib.units import GB, MIB

# %% [markdown] id="active-text"
# ## Two sizes of one model
#
# A mixture has two parameter counts. The *total* counts all parameters. The *active* count has only
# the parameters that one token uses: `chosen` of each layer's experts, and everything outside the
# experts.
#
# **Write.** `active`, three or four lines. In transformers, the names of the experts' parameters
# contain `.experts.`. Each such parameter is one tensor with the weights of all experts of a layer,
# so only a part of it is active.


# %% id="active"
def active(model, chosen, experts):
    """Return how many parameters a token uses: `chosen` of `experts`, and the rest."""
    ### BEGIN SOLUTION
    total = sum(p.numel() for p in model.parameters())
    named = model.named_parameters()
    routed = sum(p.numel() for name, p in named if ".experts." in name)
    return total - routed + routed * chosen // experts
    ### END SOLUTION


# %% id="check-active"
# @title Check: run this cell
@blanks.check("active", "return a number of parameters")
def active_is_right():
    layer = nn.ModuleDict({"mlp": nn.ModuleDict({"experts": nn.Linear(8, 30)})})
    layer["mlp"]["shared_experts"] = nn.Linear(8, 10)
    model = nn.ModuleDict({"norm": nn.LayerNorm(5), "layer": layer})
    seen = active(model, 2, 3)
    assert seen == 280, (
        f"Experts with 270 parameters, 2 of 3 chosen, plus 100 others: 280, not {seen}."
    )


# %% id="sizes"
MODELS = {
    "Mixtral": (transformers.MixtralConfig(), 8),
    "OLMoE": (transformers.OlmoeConfig(intermediate_size=1024), 64),
    "DeepSeek-V3": (transformers.DeepseekV3Config(), 256),
}
rows = {}
for name, (config, experts) in MODELS.items():
    with torch.device("meta"):  # shapes without memory
        model = transformers.AutoModelForCausalLM.from_config(config)
    total = sum(p.numel() for p in model.parameters())
    working = active(model, config.num_experts_per_tok, experts)
    counts = f"{total / 1e9:.1f}", f"{working / 1e9:.1f}"
    rows[name] = *counts, f"{16 * total / GB:.0f}", f"{16 * working / GB:.0f}"
columns = ["total, billions", "active", "16 bytes each, GB", "16 bytes active, GB"]
pd.DataFrame.from_dict(rows, orient="index", columns=columns)

# %% [markdown] id="sizes-read"
# Our counts agree within a billion with the published ones for Mixtral (Jiang et al., 2024), OLMoE
# (Muennighoff et al., 2024) and DeepSeek-V3. The memory for weights, gradients and states (here 16
# bytes per parameter) depends on the *total*. The arithmetic depends on the *active* parameters.
# What does the memory for activations depend on? We predict it for a block of OLMoE, with 4096
# tokens in bfloat16.
#
# **Predict.** Each token goes to 8 experts, whose hidden layer is half as wide as the model. The
# block saves activations for backward. What percentage of these bytes do the experts save?

# %% id="guess-experts"
guess = None  # %

# %% id="kept"
PARTS = {"norm": "norms", "self_attn": "attention", "mlp.gate": "router"}
PARTS["mlp.experts"] = "experts"
with memory.predicting():
    sizes = {"num_hidden_layers": 1, "vocab_size": 8, "dtype": torch.bfloat16}
    body = published.build("olmoe-1b-7b", device="cpu", **sizes).model
    rows = torch.randn(1, 4096, 2048, dtype=torch.bfloat16, requires_grad=True)
    kept = memory.saved(lambda: body(inputs_embeds=rows), params_of=body)
    named = {name: p.nbytes for name, p in body.layers[0].named_parameters()}


def part_of(name):
    return [part for key, part in PARTS.items() if key in name][-1]


sides = {p: {"parameters": 0, "activations": 0} for p in PARTS.values()}
for name, size in named.items():
    sides[part_of(name)]["parameters"] += size
for row in kept.rows:
    sides[part_of(row.module)]["activations"] += row.num_bytes
of_experts = sides["experts"]["activations"]
share = 100 * of_experts / kept.num_bytes
print(f"experts: {share:.0f} %{beside(guess, share)}")
plots.opposite_bars(sides, title="A block of OLMoE and the last norm, 4096 tokens")

# %% id="experts"
inside = [row for row in kept.rows if part_of(row.module) == "experts"]
large = [row for row in inside if row.num_bytes > 32 * MIB]
pd.DataFrame([(row.op, row.shape, str(row.num_bytes)) for row in large])

# %% [markdown] id="kept-read"
# Inside the mixture, each token is copied to eight rows, one for each of its experts. These rows
# are saved at three places: after sorting by expert (`Index`), between the two matmuls (`Split`,
# `Silu`, `Mul`), and after the second matmul (`GroupedMm`). A dense model of the *active* size
# copies no rows, so it keeps less.
#
# In expert parallelism each rank (a process with its own GPU) has some of the experts. The copied
# rows are sent to their experts' ranks, and the results are sent back. Each rank needs buffers for
# all the rows that it gets. If the router sent all tokens to one of 8 ranks, that rank would get 8
# times as many rows as with an even split, and could run out of memory. That's why models balance
# their routers, or drop tokens.
#
# ## Which part to recompute
#
# In Megatron, you can recompute three parts: the core of attention, from the scores to their
# product with the values (`core_attn`); the experts' activation function (`moe_act`); or the whole
# mixture. `moe_act` keeps `Split`'s output, and recomputes from it the two tensors up to the second
# matmul (`Silu`, `Mul`).
#
# The next table's first two rows have our counts for OLMoE's block. The last two have Megatron
# Bridge's measurements of Moonlight, a mixture with 16 billion parameters in total, whose experts
# are divided over 8 H100s.

# %% id="choices"
# NVIDIA-NeMo/Megatron-Bridge@067f987, skills/nemo-mbridge-perf-activation-recompute,
# 2026-08-12: peak in GB, ms per step
MOONLIGHT = {"none": (36.618, 457.18), "core_attn": (36.614, 474.8)}
MOONLIGHT["moe_act"] = 35.941, 466.26
tokens, width, inner, chosen = 4096, 2048, 1024, 8
work = {"core_attn": 2 * tokens * tokens * width, "moe_act": 0}
work["whole moe"] = chosen * tokens * 6 * width * inner
forward = sum(work.values()) + 8 * tokens * width * width
between = sum(row.num_bytes for row in inside if row.op[:3] in ("Sil", "Mul"))
freed = {"core_attn": 0, "moe_act": between, "whole moe": of_experts}
(peak, step), table = MOONLIGHT["none"], {}
for name, size in freed.items():
    least, slow = MOONLIGHT.get(name, (None, None))
    theirs = ("-", "-") if least is None else (
        f"{100 * (peak - least) / peak:.2f}", f"{100 * (slow / step - 1):.1f}"
    )  # fmt: skip
    block = f"{100 * size / kept.num_bytes:.0f}", f"{100 * work[name] / forward:.0f}"
    table[name] = *block, *theirs
columns = ["frees, % of the block", "costs, % of its forward's FLOPs"]
columns += ["Moonlight: frees, % of the peak", "costs, % of its time"]
pd.DataFrame.from_dict(table, orient="index", columns=columns).T

# %% [markdown] id="choices-read"
# In both models `moe_act` is a better choice than `core_attn`. Recomputing the core of attention
# frees almost nothing, since a fused kernel keeps no scores, and it costs more. Recomputing the
# experts' activation function frees more, and needs no matmul. On Moonlight, it frees only a small
# share of the peak, since the peak also includes weights and states.
#
# Recomputing the whole mixture frees the most and costs the most arithmetic. The router, the
# sorting and, with expert parallelism, the communication run again too.
#
# If you recompute the mixture, the router must send each token to the same experts as in forward
# (12c).
#
# ## On paper
#
# **1.** Mixtral has 8 experts in a layer and chooses 2 of them for each token. What share of the
# experts' weights gets a gradient from one token, and what share from 4096 tokens?
#
# <details><summary>Answer</summary>
#
# One token gives a gradient to a quarter of the weights, and 4096 tokens to all of them. So
# gradients and states depend on the total.
# </details>
#
# **2.** 4096 tokens of width 2048 go to 8 experts each, in bfloat16. How many bytes do the tokens
# take, and how many do their copies, sorted by expert, take?
#
# <details><summary>Answer</summary>
#
# The tokens take $4096 \cdot 2048 \cdot 2$ bytes, or 16 MiB. The copies take eight times as much,
# 128 MiB.
# </details>
#
# **3.** 64 experts are divided over 8 ranks, and each rank has its own 4096 tokens, which go to 8
# experts each. How many rows does a rank get if all experts get equally many? Forward and backward
# send rows between ranks. By what fraction does this traffic grow if the mixture is checkpointed?
#
# <details><summary>Answer</summary>
#
# It gets $8 \cdot 4096$ rows, as many as it sends. Forward sends rows out and results back, and
# backward sends as much again. Checkpointing runs forward a second time, so the traffic grows by
# half.
# </details>
#
# ## What you can now do
#
# - Count a mixture's total and active parameters, and say what depends on each.
# - Say what the experts keep, and which part frees the most memory for its cost.
