# %% [markdown] id="title"
# # Trainers, packed rows, and what losses prove
#
# This companion of chapter 08 is optional: no lab and no later chapter needs it. It answers six
# questions:
#
# 1. Does Hugging Face's `Trainer` accumulate correctly for a model of your own?
# 2. What do other trainers do with a window?
# 3. What does padding cost, and what do packed rows save?
# 4. Can the optimizer run inside backward while you accumulate?
# 5. Do equal loss curves prove that two loops are the same?
# 6. Does the loop need a framework?
#
# **Budget:** 65 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import tempfile
from functools import partial
from itertools import accumulate

import pandas as pd
import torch
import transformers
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import SGD, AdamW

from tutorial_lib import claims, data, memory, plots
from tutorial_lib.instruments.recorded import FOLDER
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.vit import ViT, ViTConfig

# small steps lose more by waiting for a second core than they gain
torch.set_num_threads(1)

# %% [markdown] id="trainers"
# ## Does the `Trainer` accumulate correctly for your own model?
#
# Chapter 08 measured how wrong a mean of means is. Hugging Face's `Trainer` computed one until
# October 2024 (transformers issue 24725). Since then the `Trainer` counts the window's tokens and
# passes that number to the model as `num_items_in_batch`. **What if your own model doesn't accept
# that argument?** Here is such a model with the usual loss. Its data is 32 lines of code.


# %% id="own-model"
class OwnModel(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.gpt = GPT(GPTConfig(num_layers=2, num_heads=4, d_model=64, seq_len=64))

    def forward(self, input_ids, labels):
        logits = self.gpt(input_ids)[:, :-1].flatten(0, 1)
        return {"loss": self.weigh(logits, labels[:, 1:].flatten())}

    def weigh(self, logits, targets):
        return F.cross_entropy(logits, targets)


# %% id="own-data"
lines = [line for line in data.text().splitlines() if 2 <= len(line) <= 63][100:132]


def collate(part):
    rows = [data.encode(line) for line in part]
    labels = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)
    return {"input_ids": labels.clamp(min=0), "labels": labels}  # (B, T) each


# %% [markdown] id="real-trainer"
# Next, a real `Trainer` does one update with clipping off. Just before the optimizer's step, a
# callback copies the gradients.


# %% id="trainer-settings"
# @title A callback that keeps the gradient: run this cell; open it to look
class KeepGradient(transformers.TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model, **_):
        gradients = [p.grad.double().flatten() for p in model.parameters()]
        self.gradient = torch.cat(gradients)


def settings(folder, size):
    return transformers.TrainingArguments(
        folder, max_steps=1, max_grad_norm=0, per_device_train_batch_size=size,
        gradient_accumulation_steps=len(lines) // size, remove_unused_columns=False,
        use_cpu=True, dataloader_pin_memory=False, save_strategy="no",
        report_to="none", disable_tqdm=True,
    )  # fmt: skip


# %% id="trainer-gradient"
def trainer_gradient(model, size, collate=collate):
    keep = KeepGradient()
    with tempfile.TemporaryDirectory() as folder:
        trainer = transformers.Trainer(
            model, settings(folder, size), data_collator=collate, train_dataset=lines,
            callbacks=[keep],
        )  # fmt: skip
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return keep.gradient


def error(seen, wanted):
    return float((seen - wanted).norm() / wanted.norm())


# %% [markdown] id="predict-trainer"
# Two models train on the 32 lines in micro-batches of 1. One is `OwnModel`. The other's `forward`
# accepts any keyword argument and ignores it (`**_`), as wrappers do.
#
# **Predict.** How large is the norm of the error in the second model's gradient, as a multiple of
# the right gradient's norm?

# %% id="guess-trainer"
guess = None  # times


# %% id="measure-trainer"
# NBVAL_IGNORE_OUTPUT
class TakesAnything(OwnModel):
    def forward(self, input_ids, labels, **_):
        return super().forward(input_ids, labels)


wanted = trainer_gradient(OwnModel(), 32)
own = error(trainer_gradient(OwnModel(), 1), wanted)
anything = error(trainer_gradient(TakesAnything(), 1), wanted)
print(f"transformers {transformers.__version__}, 32 micro-batches against one batch")
print(f"OwnModel off by {own:.2f}")
print(f"TakesAnything off by {anything:.1f}{beside(guess, anything)}")

# %% [markdown] id="read-trainer"
# Even with the repaired `Trainer`, `OwnModel` gets a mean of means. `TakesAnything` gets a gradient
# that is multiplied by the number of micro-batches: the `Trainer` reads `**_` as a promise that the
# model divides by the token count, so it doesn't divide by the number of micro-batches itself.
# AdamW and clipping hide the mistake. To fix it, let the model divide by the count.
#
# In transformers 5.23.0, some of the library's own heads break the promise too: classification,
# regression and BERT's masked-language head. With four accumulation steps, their gradient and
# logged loss are four times too large (`findings/trainer_multiplies_classification_heads.sh`).


# %% id="mended-trainer"
# NBVAL_IGNORE_OUTPUT
class Counts(OwnModel):
    def forward(self, input_ids, labels, num_items_in_batch=None, **_):
        self.count = num_items_in_batch
        if self.count is None:  # outside the Trainer
            self.count = (labels[:, 1:] != -100).sum()
        return super().forward(input_ids, labels)

    def weigh(self, logits, targets):
        return F.cross_entropy(logits, targets, reduction="sum") / self.count


def collate_masked(part):
    batch = collate(part)
    batch["labels"][:, 0] = -100  # nothing predicts a row's first token
    return batch


for how in (collate, collate_masked):
    off = error(trainer_gradient(Counts(), 1, how), wanted)
    print(f"{how.__name__:<15} off by {off:.0e}")

# %% [markdown] id="read-mended-trainer"
# `collate` is nearly right. The `Trainer` counted all labels of this model, but the first label of
# each row isn't a target: `forward` shifts it out. So the divisor is too large, and every gradient
# too small. If the collator masks the first labels, only rounding is left.
#
# A mixture-of-experts model has a second loss, which balances its routers. The model divides only
# the first loss by the token count, and then adds the second one. So **every micro-batch adds the
# whole second loss**, and with four accumulation steps it counts four times (Mixtral, transformers
# 5.23.0). To correct this, divide `router_aux_loss_coef` by the number of steps.
#
# Before you trust a trainer with your own model, compare one window's gradient with the gradient of
# the same rows as one big batch.
#
# ### A mean over nothing
#
# A row of one token has no next token. **If a micro-batch has only such a row, what happens to the
# logged loss and to the gradient?**

# %% id="nothing-to-average"
for how in ("mean", "sum"):
    logits = torch.zeros(1, 5, requires_grad=True)
    loss = F.cross_entropy(logits, torch.tensor([-100]), reduction=how)
    loss.backward()
    print(f"{how:<5} loss {loss.item()}, gradient {logits.grad.abs().max().item()}")

# %% [markdown] id="precision"
# The mean is 0/0, which is nan. `cross_entropy`'s gradient is zero, so the model continues
# learning, but a running average of the loss stays nan. If you write the mean yourself,
# `(loss * mask).sum() / mask.sum()`, its gradients are nan too. A sum has no such problem.
#
# ## What do other trainers do?
#
# Trainers differ in the details that chapter 08 let you decide. For the next table, we ran each
# library on ten micro-batches of one to nine tokens, with four micro-batches per update. The loss
# is linear in the weights, so the gradient shows what the library divided each token's loss by.
#
# **Predict.** With ten micro-batches and windows of four, two micro-batches are left. How many of
# the 14 trainers in the table update on those two but still divide by four?

# %% id="guess-habits"
guess = None

# %% id="habits"
habits = pd.read_csv(FOLDER / "habits.csv", index_col="trainer").fillna("")
short = habits["short_window"]
too_small = (short == "updates, divided by 4 steps").sum()
print(f"divide two by four: {too_small}{beside(guess, too_small)}")
habits[["version", "divides_by", "short_window", "clips"]]

# %% id="habits-counts"
habits[["schedule", "ema", "logs", "replays_dropout"]]

# %% [markdown] id="read-habits"
# An empty entry means that we didn't test the habit, or that the library leaves it to your loop.
# All libraries that we tested clip the window's sum, as they should. Four habits may surprise you:
#
# - **The last window.** Lightning and Accelerate update on the last two micro-batches but divide by
#   four, so those samples count half. DeepSpeed, Ignite, fastai and Keras carry the two into the
#   next epoch. open_clip drops them.
# - **The schedule and the average.** In Keras, and in Ignite if you follow its documentation, the
#   schedule and the moving average of the weights (`ema`) count micro-batches. So with four
#   accumulation steps and the same decay, the average covers a quarter as many updates.
# - **fastai's `n_acc` counts samples.** With eight samples in a batch, `GradientAccumulation(4)`
#   updates after every batch. It also doubles every gradient, because it divides the loss by 4 / 8.
# - **Accelerate's plugin for FSDP2** (PyTorch's way to divide a model over GPUs, chapter 13)
#   checkpoints with `preserve_rng_state=False`. Dropout draws new masks in the recomputation: the
#   loss is right, but the gradient belongs to a different network. Leave the plugin's checkpointing
#   off, and wrap the blocks in PyTorch's checkpoint yourself.

# %% [markdown] id="packed-rows"
# ## Packed rows
#
# `collate` pads each of the 32 lines to the length of the longest:
#
# ```text
# padded   the first row . . . .      packed   the first row|the second|third
#          the second . . . . .
#          third . . . . . . . .
# ```
#
# Packing concatenates all lines into one long row without padding. Two rules must still hold:
# positions count from each line's start, and attention doesn't cross a line's end. On packed rows
# `GPT` breaks both rules, so we rewrite its forward pass with the same layers.


# %% id="packed"
def packed_attention(layer, x, lengths, mask=None):
    """Attend within each line, or with a mask: `(tokens, C)` to `(tokens, C)`."""
    qkv = layer.qkv(x).view(len(x), 3, layer.num_heads, -1)
    pieces = qkv.split(lengths if mask is None else len(x))
    lines = [line.permute(1, 2, 0, 3)[:, None] for line in pieces]
    # each is 3 of (1, H, T, D)
    how = {"is_causal": True} if mask is None else {"attn_mask": mask}
    y = [F.scaled_dot_product_attention(*line, **how) for line in lines]
    return layer.out(torch.cat(y, dim=2)[0].transpose(0, 1).flatten(1))


def packed_logits(gpt, tokens, lengths, mask):
    positions = torch.cat([torch.arange(length) for length in lengths])
    x = gpt.token_embedding(tokens) + gpt.position_embedding(positions)
    for block in gpt.blocks:
        x = x + packed_attention(block.attention, block.norm_1(x), lengths, mask)
        x = x + block.mlp(block.norm_2(x))
    return gpt.head(gpt.norm(x))


# %% id="packed-loss"
def summed_loss(logits, labels):  # labels are shifted; -100 has no loss
    pairs = logits.flatten(0, -2), labels.flatten()
    return F.cross_entropy(*pairs, ignore_index=-100, reduction="sum")


def as_padded(gpt):
    batch = collate(lines)
    targets = F.pad(batch["labels"][:, 1:], (0, 1), value=-100)
    return summed_loss(gpt(batch["input_ids"]), targets)


def as_packed(gpt, masked=False):
    rows = [data.encode(line) for line in lines]
    lengths = [len(row) for row in rows]
    targets = torch.cat([F.pad(row[1:], (0, 1), value=-100) for row in rows])
    triangles = [torch.ones(length, length).tril() for length in lengths]
    mask = torch.block_diag(*triangles).bool() if masked else None
    return summed_loss(packed_logits(gpt, torch.cat(rows), lengths, mask), targets)


# %% [markdown] id="predict-packed"
# First we check in float64 that the loss and the gradient stay the same; then we compare the cost.
# The code above attends line by line. On a GPU, one kernel can do that for all lines:
# FlashAttention's `varlen`, in PyTorch `torch.nn.attention.varlen`. Without such a kernel, people
# pass a mask, and attention computes the scores of all pairs of tokens. That is the table's third
# row.
#
# **Predict.** The lines have 2 to 63 characters. From the padded batch to the packed row, without a
# mask, by what percentage do the saved bytes fall?

# %% id="guess-packed"
guess = None  # %

# %% id="packed-table"
gpt, table, losses, each = OwnModel().gpt.double(), {}, [], []
tokens = {"padded": collate(lines)["input_ids"].numel()}
tokens |= dict.fromkeys(["packed", "packed, a mask"], sum(map(len, lines)))
ways = as_padded, as_packed, partial(as_packed, masked=True)
for name, way in zip(tokens, ways, strict=True):
    with memory.flop_counter() as counter:
        loss = way(gpt)
    each.append(parameters_to_vector(torch.autograd.grad(loss, list(gpt.parameters()))))
    losses.append(loss.detach())
    kept = memory.saved(partial(way, gpt), params_of=gpt).num_bytes
    table[name] = tokens[name], kept, counter.get_total_flops()
off = max(error(one, kind[0]) for kind in (losses, each) for one in kind)
print(f"same: {off < 1e-12}")
table = pd.DataFrame(table, index=["tokens", "saved bytes", "FLOPs"]).T
less = 100 * (1 - table["saved bytes"]["packed"] / table["saved bytes"]["padded"])
print(f"packed: {less:.0f} % less saved{beside(guess, less)}")
table

# %% [markdown] id="read-packed"
# A mask costs bytes: each block's attention turns the mask into floats, one per pair of tokens, and
# keeps these for backward. A mask also costs FLOPs, here even more than padding does, because
# attention computes scores between different lines and then discards them. Both costs grow with the
# square of the packed length, so long packs need the kernel.
#
# In transformers, use `DataCollatorWithFlattening` with `attn_implementation="flash_attention_2"`;
# in TRL, `packing=True` or `padding_free=True`. A packed micro-batch is one row, so choose its size
# in tokens, and divide the loss by the window's tokens, as chapter 08 does.
# %% [markdown] id="in-backward"
# ## Optimizer in backward
#
# You can update a parameter as soon as its gradient is ready, and free the gradient before backward
# computes the next one. PyTorch has a hook for that. We count the memory in P, the size of the
# parameters:


# %% id="fused"
def in_backward(model, make_optimizer):
    def update(parameter):
        optimizers[parameter].step()
        parameter.grad = None

    optimizers = {p: make_optimizer([p]) for p in model.parameters()}
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)
    return optimizers


# %% id="fused-peak"
def measured_update(fused):
    model = GPT(GPTConfig(vocab_size=1000, num_layers=3, d_model=192))
    adamw = partial(AdamW, foreach=True)
    optimizer = in_backward(model, adamw) if fused else adamw(model.parameters())

    def step():
        model.loss(torch.zeros(1, 64, dtype=torch.long)).backward()
        if not fused:
            optimizer.step()
            optimizer.zero_grad()

    return memory.measure(step, model=model, optimizer=None if fused else optimizer)


# %% id="fused-table"
found = {}
for name, fused in {"plain": False, "in backward": True}.items():
    report = measured_update(fused)
    gradients = max(at["gradients"] for at in report.curve())
    P = report.at_peak["parameters"]
    found[name] = {"peak, P": report.peak_bytes / P, "gradients, P": gradients / P}
pd.DataFrame(found).T.round(2)

# %% [markdown] id="predict-fused"
# **Predict.** Now accumulate over four micro-batches with this hook. How many updates does AdamW
# count for each parameter?

# %% id="guess-fused"
guess = None  # updates

# %% id="fused-accumulation"
model = OwnModel().gpt
optimizers = in_backward(model, AdamW)
for micro_batch in next(data.text_batches(16, 64)).chunk(4):
    (model.loss(micro_batch) / 4).backward()
(counted,) = {int(s["step"]) for o in optimizers.values() for s in o.state.values()}
f"{counted} updates{beside(guess, counted)}"

# %% [markdown] id="losses"
# AdamW counts four updates, because the hook uses and frees each gradient immediately, and nothing
# accumulates. Each update starts from different weights. Each is also as large as an update without
# accumulation, because AdamW cancels the division by four. With standard AdamW you can either
# accumulate or free the gradients early, but not both.
#
# ## What losses prove
#
# We run three loops on digits from the same initial weights, with AdamW and an effective batch of
# 64: the big batch, a correct loop (16 x 4), and a loop that forgets the division but logs its loss
# correctly. **Which of the loss curves coincide?**


# %% id="vit"
images, labels = data.digits()


def make_vit(dtype=torch.float32):
    torch.manual_seed(0)
    return ViT(ViTConfig(num_layers=2, d_model=32)).to(dtype)


# %% id="train"
def train(num, factor=1, dtype=torch.float32, epochs=4, size=64):
    model = make_vit(dtype)
    optimizer, curve = AdamW(model.parameters(), lr=3e-3), {}
    for rows in torch.arange(1024).repeat(epochs).split(size):
        optimizer.zero_grad()
        curve[len(curve) * size] = 0.0
        for part in rows.chunk(num):
            loss = model.loss(images[part].to(dtype), labels[part]) / num
            (loss * factor).backward()
            curve[(len(curve) - 1) * size] += loss.item()
        optimizer.step()
    return curve


# %% id="training-figure"
# NBVAL_IGNORE_OUTPUT
runs = {"one batch of 64": train(1), "16 x 4": train(4),
        "16 x 4, not divided": train(4, 4)}  # fmt: skip
plots.training_curves(
    runs, xlabel="samples seen", ylabel="loss of the window", dashed=["16 x 4"],
    title="Digits, ViT, AdamW: one effective batch, three loops",
)  # fmt: skip

# %% [markdown] id="read-training"
# All three learn, and the wrong loop's curve is as good as the other two. The next figure shows the
# largest distance so far between each loop's loss and the big batch's. It adds a run in float64,
# where rounding is half a billion times smaller.


# %% id="chaos"
# NBVAL_IGNORE_OUTPUT
def apart(one, other):
    so_far = accumulate((abs(other[seen] - loss) for seen, loss in one.items()), max)
    return {seen: off for seen, off in zip(one, so_far, strict=True) if off}


one, right, undivided = runs.values()
distances = {
    "not divided, float32": apart(one, undivided),
    "16 x 4, float32": apart(one, right),
    "16 x 4, float64": apart(*(train(num, dtype=torch.float64) for num in (1, 4))),
}
plots.training_curves(
    distances, xlabel="samples seen", ylabel="distance from the big batch's loss",
    log="y", title="Rounding grows just as a bug's error does (logarithmic)",
)  # fmt: skip

# %% [markdown] id="read-chaos"
# Training amplifies every difference. In float64 the right loop's distance starts far lower, but
# grows in the same way. So close losses don't prove a loop right, and different losses don't prove
# it wrong. To decide, compare the gradients of one window early in training: near a minimum the
# gradient is tiny, but its rounding errors aren't.

# %% [markdown] id="no-framework"
# ## The loop without a framework
#
# With SGD, an accumulated update is a sum of gradients and one subtraction. Below we write it
# without `.grad`, `backward` or an optimizer. Does PyTorch's loop give the same weights?


# %% id="by-hand"
def by_hand(model, tokens, num=4, lr=0.1):
    parameters = list(model.parameters())
    total = 0.0
    for micro_batch in tokens.chunk(num):
        gradients = torch.autograd.grad(model.loss(micro_batch) / num, parameters)
        total = total + parameters_to_vector(gradients)
    new = parameters_to_vector(parameters).sub(total, alpha=lr)
    vector_to_parameters(new, parameters)


# %% id="by-hand-same"
ours, theirs = OwnModel().gpt, OwnModel().gpt  # from one seed
tokens, optimizer = next(data.text_batches(16, 64)), SGD(theirs.parameters(), lr=0.1)
by_hand(ours, tokens)
for micro_batch in tokens.chunk(4):
    (theirs.loss(micro_batch) / 4).backward()
optimizer.step()
same_bits = all(map(torch.equal, ours.parameters(), theirs.parameters()))
print("the same bits:", same_bits)

# %% id="verdicts"
claims.Verdicts(
    claims.Verdict("B03", "built", "The loop needs no framework: in float32, a sum and "
        "a subtraction by hand give the same bits.", f"same bits: {same_bits}",
        "computed", "by-hand-same"),
)  # fmt: skip

# %% [markdown] id="summary"
# ## What you can now do
#
# - Compare a trainer's gradient with the big batch's, with a two-line callback.
# - Pack ragged rows instead of padding them, and show that the loss is the same.
# - Choose between an optimizer in backward and accumulation.
# - Say why loss curves don't prove a loop right.
#
# Back to the core: chapter 09, `09_when_accumulation_lies`.
