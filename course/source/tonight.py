# %% [markdown] id="title"
# # Tonight: my model does not fit
#
# This notebook works on your own model. It predicts the memory that one training step needs, shows
# what takes it, tries ways to save memory one by one, and ends with a plan that your script loads.
# Until the last code cell all numbers are predicted and nothing is allocated. No weights are
# downloaded.
#
# **Budget:** 30 minutes, 2 GiB of memory, no GPU needed. *Run All* takes one minute on two cores.
#
# In the cell below the imports, set `MODEL` to one of these:
#
# - a published name, such as `gpt2-medium`, `vit-l-16` or `sdxl-unet`;
# - the path of a `config.json` of transformers or diffusers (on Colab, upload the file and write
#   `/content/config.json`);
# - a function in your own script, as in `train.py:make_loss` (on Colab,
#   `/content/train.py:make_loss`).
#
# <details><summary>What my script must have</summary>
#
# It must have a function that builds your model and one batch of random data of the right shape.
# Copy these lines, and insert your own model and loss. The notebook imports your script, so its
# training loop must be below `if __name__ == "__main__":`.
#
# ```python
# def make_loss(micro_batch=1):
#     model = MyModel()
#     images = torch.randn(micro_batch, 3, 224, 224)
#     labels = torch.zeros(micro_batch, dtype=torch.long)
#     return lambda: F.cross_entropy(model(images), labels), model
# ```
#
# A function that returns `step, model, optimizer` works too, but then the notebook can't try ways
# that change the inside of your step.
#
# </details>

# %% id="imports"
import textwrap
from dataclasses import replace

import pandas as pd

from tutorial_lib import device, memory, plots
from tutorial_lib.guesses import beside
from tutorial_lib.instruments import planning, widgets
from tutorial_lib.instruments.emulated import Room, Verdict
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.units import GIB, Bytes, human_bytes

# %% id="fill-in"
MODEL = "gpt2"
BATCH = 8  # samples in an update
SIZES = {}  # as in {"seq": 512}, or {"size": 64}: side of an image or latent
CARD = "4GiB"  # a size, or a card: "rtx-4060", "t4", "a100", ...
LINK = None  # to the host, as in "pcie-4": the plan may then move tensors there (07d)
# what your script does today; others are fp16-amp, bf16-amp, bf16; eager; sgd, ...
NOW = {"precision": "fp32", "attention": "sdpa", "optimizer": "adamw"}
guess = None  # GiB that one step needs: write a number before you go on

# %% [markdown] id="need-text"
# ## 1. What one step needs
#
# *Needs* is the step's peak: if the card has less, the step fails. *Takes* is what `nvidia-smi`
# shows when nothing limits the step. *Takes* is larger than *needs*, because PyTorch keeps memory
# after its tensors are freed.

# %% id="need"
room = Room.of(str(CARD))
now = Recipe(MODEL, BATCH, **SIZES, **NOW)
with widgets.doing("predicting one step"):
    report = memory.predict(now.make_step, label=now.label())
print(f"{report.peak_bytes}{beside(guess, report.peak_bytes / GIB)}")
print(Verdict(report.peak_bytes, room))
report

# %% [markdown] id="levers-text"
# ## 2. Which lever helps
#
# A *lever* is a change that can lower the peak. Two terms first: a *checkpoint* discards a layer's
# activations and recomputes them in backward, and a *micro-batch* is the part of the batch that's
# in memory at once. Now look up the report's largest rows in this table:
#
# | what is large | what lowers it | what does not |
# |---|---|---|
# | activations | a smaller micro-batch; checkpoints; the host (`LINK`) | another optimizer |
# | optimizer state | 8 or 16 bits; LoRA; sharding (13) | checkpoints; a smaller micro-batch |
# | parameters | bfloat16 throughout; sharding (13) | checkpoints; a smaller micro-batch |
# | gradients | bfloat16 throughout; LoRA; sharding (13) | checkpoints; a smaller micro-batch |
# | temporary, in backward | a smaller micro-batch; the loss in chunks | checkpoints |
# | temporary, in the optimizer | a fused optimizer | checkpoints; a smaller micro-batch |
#
# The next cell pulls the levers one after the other, and each row of its table keeps the levers
# above it. A row can need more than the row above: autocast, for example, adds 16-bit copies.
# *Smaller micro-batch* means the smallest that is predicted to keep your card busy (an A100 if
# `CARD` is a size). *FLOPs* is the arithmetic that the levers add. *Training* says whether the step
# still trains in the same way:
#
# - **exact**: the same operations, so the same gradients, as far as your GPU repeats them from run
#   to run (02);
# - **rounding**: the same mathematics, different last digits;
# - **redrawn**: the same mathematics, but dropout or noise draws different random numbers;
# - **another**: a different update. A smaller micro-batch changes the update if BatchNorm or the
#   loss (like CLIP's) combines samples (09). Checkpoints change it if forward writes something that
#   it also reads, such as a codebook. Before you use such a lever, compare the losses of a short
#   run with it and one without;
# - **untried**: your model is too large to test whether its loss combines samples.


# %% id="table"
def table(levers):
    rows = {}
    for lever in levers:
        peak, more = lever.report.peak_bytes, lever.flops / levers[0].flops - 1
        row = {"peak": peak, "fits": Verdict(peak, room).answer}
        row |= {"outside layers": lever.outside_bytes, "FLOPs": f"{more:+.0%}"}
        rows[lever.name] = row | {"training": lever.training}
    return pd.DataFrame(rows).T


# %% id="levers"
speed = planning.Speed.of(room.card and room.card.name)
with widgets.doing() as tell:
    levers, refused = planning.pull_levers(
        now, report, speed, lambda words, pulled: tell(words, table(pulled))
    )
for reason in refused:
    print(reason)
table(levers)

# %% id="picture"
plots.ledger_bars(
    {lever.name: lever.report.at_peak for lever in levers},
    title=f"{MODEL}: each row pulls one more lever (line: {CARD})",
    cards_gib=[round(room.free / GIB, 1)],
    predicted=[lever.name for lever in levers],
)

# %% [markdown] id="plan-text"
# The first row with *yes* in the column *fits* is enough. *Outside layers* is the part of the peak
# that no layer allocated. In a language model that's mostly the loss. If *outside layers* is most
# of the peak even with one sample at a time, no lever here helps. Then compute the loss in chunks,
# with `use_liger_kernel=True` in transformers' Trainer or as in
# [10d](10d_the_loss_that_does_not_fit.ipynb).
#
# ## 3. The plan
#
# The table pulls each lever all the way; the planner pulls it only as far as your card needs. Of
# the plans that fit, it chooses the one that is predicted to be fastest. Weights and states stay in
# float32 if any such plan fits. Otherwise the planner tries 8-bit states, then bfloat16 throughout,
# and says so: neither is the same training.
#
# You can't fill a card to the last byte, because its free memory is fragmented. In the column
# *fits*, *close* means that the predicted peak fits, but so tightly that the step may fail (10b).
# Both *yes* and the plan assume that you turn on a setting of PyTorch's allocator, on Linux only,
# that avoids most fragmentation. Before your script starts, set
# `PYTORCH_ALLOC_CONF=expandable_segments:True` (older PyTorch: `PYTORCH_CUDA_ALLOC_CONF`).

# %% id="plan"
harmless = [lever.recipe for lever in levers if lever.training != "another"]
lean = replace(harmless[-1], checkpointing="none", accumulation=1)
eight_bit = str(lean.optimizer).replace("fused", "8bit")
asked = {"budget_bytes": room.sure, "effective_batch": BATCH, "speed": speed}
asked["optimizers"] = list(dict.fromkeys([lean.optimizer, eight_bit]))
asked["host"] = planning.Host.of(LINK) if LINK else None
best = None
try:
    for precision in dict.fromkeys([lean.precision, "bf16"]):
        with widgets.doing() as tell:
            fit = planning.fit(lean, precisions=[precision], **asked, tell=tell)
        best = fit.best
        if best:
            break
    else:
        enough = human_bytes(Room.for_sure(fit.smallest_bytes).free, up=True)
        print(f'Nothing fits. CARD = "{enough}" would be enough. Try')
        print("LoRA, shorter texts, smaller images, a larger card,")
        print("or several cards (13).")
except (AttributeError, RuntimeError, TypeError, ValueError) as error:
    print(error)  # its blocks cannot be run again, or MODEL is a whole step
    print("There is no plan: take the first row above that fits.")

# %% id="save"
PLAN = "tonight-plan.json"  # next to this notebook
if best:
    best.plan.save(PLAN)
    print(f"peak {Bytes(best.peak_bytes)}, {best.overhead:.0%} more time")
    for line in str(best.plan).splitlines()[1:]:  # what is kept, what is not
        print(" ".join(line.split()))
    batch = f"{best.micro_batch}, {best.accumulation}"
    print(f"micro_batch, accumulation = {batch}")
    print(f"precision, optimizer = '{best.precision}', '{best.optimizer}'")
    print("another training:", ", ".join(best.changes) or "no")
    print(textwrap.fill(str(fit.sameness), 76))

# %% [markdown] id="lines"
# Here is a training loop that uses the plan. Copy `micro_batch` from the output above. The loop is
# for a loss that's a mean over samples; for a mean over tokens see 08b. The loop weights each part
# of the batch by its share of the samples, so the last part may be smaller.
#
# ```python
# from tutorial_lib.instruments import planning
#
# planning.apply(model, planning.Plan.load("tonight-plan.json"))
# optimizer = torch.optim.AdamW(model.parameters(), fused=True)
# for part in batch.split(micro_batch):
#     with torch.autocast("cuda", torch.bfloat16):
#         loss = loss_of(model, part) * len(part) / len(batch)
#     loss.backward()
# optimizer.step()
# optimizer.zero_grad()
# ```
#
# With transformers' Trainer or Accelerate, apply the plan in the same way, copy `accumulation` too,
# and use one of these:
#
# ```python
# TrainingArguments(bf16=True, optim="adamw_torch_fused",
#                   per_device_train_batch_size=micro_batch,
#                   gradient_accumulation_steps=accumulation)
# Accelerator(mixed_precision="bf16", gradient_accumulation_steps=accumulation)
# ```
#
# If the output above says `adamw-8bit`, use `bitsandbytes.optim.AdamW8bit`, or
# `optim="adamw_bnb_8bit"`. If it says `bf16`, call `model.bfloat16()` and leave autocast out. If it
# says `fp16-amp`, as for a T4 or a V100, use `torch.float16` (or `fp16=True`) with a gradient
# scaler (08c).
#
# `planning.apply` changes how a model runs, not what it computes: the gradients are *exact*, as
# above, because no plan recomputes a stage whose second run would give a different result. To do
# without this library, checkpoint each block instead. Use `gradient_checkpointing=True` in the
# Trainer's options, or `unet.enable_gradient_checkpointing()` in diffusers.
#
# The next cell tests the plan's file. On a GPU with enough memory, or with a small model, it runs
# the planned step with random weights. Otherwise it predicts that step.


# %% id="planned-step"
def planned_step(where="cpu"):
    recipe = fit.recipe_of(best)
    recipe = replace(recipe, accumulation=min(2, recipe.accumulation))
    step, model, optimizer = recipe.make_step(where)
    planning.apply(model, planning.Plan.load(PLAN))
    return step, model, optimizer


# %% id="apply"
# NBVAL_IGNORE_OUTPUT
where = device.pick()
if best and where.type == "cuda":
    runs = best.peak_bytes < device.total_bytes(where)
elif best:
    runs = levers[0].flops * best.micro_batch < 1e11  # seconds on a CPU
if best and runs:
    step, model, optimizer = planned_step(where)
    print(memory.measure(step, model=model, optimizer=optimizer))
elif best:
    with widgets.doing("predicting the planned step"):
        planned = memory.predict(planned_step)
    print(planned)

# %% [markdown] id="where"
# ## 4. Where each idea is taught
#
# | what you used | chapter |
# |---|---|
# | the categories of memory, and what lowers each | 01, 01b |
# | *needs*, *takes*, and why a measurement can mislead | 02, 02b |
# | a micro-batch and its accumulation, exactly | 08; where the training changes: 09 |
# | checkpoints: written by hand, where to put them, what to keep | 04 to 07 |
# | activations that wait in the host's memory | 07d |
# | the lines for transformers, for diffusers, for several devices | 10, 11, 13 |
# | the order of the levers, and the planner | 14, 06c |
