# %% [markdown] id="title"
# # Lab 09: the clinic
#
# Ten training runs come in, most of them small copies of scripts from real bug reports.
# For each run you measure a number (the *reading*), name the cause, and fix the script.
# The fixed script must train what its author wanted, and use no more memory than it must.
#
# **Budget:** 85 minutes, 1 GiB of memory, no GPU needed.
#
# | exercise | cases | points |
# |---|---|---|
# | 9.1 | A: a GPT that does not learn; B: a schedule in an LSTM | 3 |
# | 9.2 | C: a diffusion U-Net; D: a ResNet | 3 |
# | 9.3 | E: frozen embeddings; F: a library's ViT | 3 |
# | 9.4 | G: a validation loop; H: ragged rows | 3 |
# | 9.5 | I: a ViT that dies in backward | 2 |
# | 9.6 | J: a run that dies in its first update | 2 |
#
# Write each answer into its `# exercise` cell, helpers and imports into your own cells
# above it.

# %% id="imports"
import contextlib
import warnings
from collections.abc import Callable
from functools import cache, partial

import pandas as pd
import torch
import transformers
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW
from torch.utils.checkpoint import checkpoint

from tutorial_lib import checks, claims, data, memory
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.lstm import LSTM, LSTMConfig
from tutorial_lib.models.resnet import ResNet, ResNetConfig
from tutorial_lib.models.unet import UNet, UNetConfig
from tutorial_lib.models.vit import ViT, ViTConfig

transformers.logging.set_verbosity_error()
# small steps lose more by waiting for a second core than they gain
torch.set_num_threads(1)

# %% [markdown] id="causes-text"
# ## What you answer
#
# For each case you return a *finding*: the cause, the reading and your fixed function,
# as in `{"A": ("precision", 0, broken_a), ...}`. The cause is one of the terms below;
# four apply to no case.
#
# Look for the cause with `forwards`, `verdict` and `bytes_left` below; `snapshot` comes
# in 9.5. For example, run `verdict(*trial(broken_a, make_a, text(4, 32)))`. Then run the
# check with the cause, 0 as the reading, and the broken function. If the cause is right,
# the check refuses the 0, and tells you what to measure for the reading.
#
# The check goes through the cases in order, and tests your functions on its own models
# and data. If your function returns a loss, return it as a float. If the check refuses
# your function, call it as the check does: for case A, run
# `checks.lab09.case("9.1", 0)(changed_in_between()["A"][2])`; for case B, write 1 for
# 0, and "B" for "A".

# %% id="causes"
for cause, shows in checks.lab09.CAUSES.items():
    print(f"{cause:<19} {shows}")


# %% id="forwards"
@contextlib.contextmanager
def forwards(modules):
    """Count in a list how often each module runs."""
    counts = [0] * len(modules)

    def add(place, *_):
        counts[place] += 1

    hooks = [
        m.register_forward_pre_hook(partial(add, i)) for i, m in enumerate(modules)
    ]
    yield counts
    for hook in hooks:
        hook.remove()


# %% id="verdict"
def verdict(right, step, make):
    """Return the first part of a training step that differs from the right one."""
    try:
        with warnings.catch_warnings(action="ignore"):
            checks.assert_same_training(right, step, make=make)
    except checks.CheckError as error:
        return str(error).split(":")[0].split(", ")[1]
    return "nothing"


# %% id="bytes-left"
def bytes_left(call, model):
    """Count the bytes that a call leaves behind, while its result is kept."""
    with memory.watch(model=model) as report:
        kept = call()
    del kept
    return report.leaked_bytes


# %% id="steps"
def update(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def plain_step(model, optimizer, *batch):
    """The step to trust, without checkpoints."""
    return update(optimizer, model.loss(*batch))


# %% id="trial"
def trial(broken, make, *batch):
    """Return the step to trust, the broken step, and `make` to start them."""

    def on_batch(step):
        return lambda model, optimizer: step(model, optimizer, *batch)

    return on_batch(plain_step), on_batch(broken), make


# %% id="off-by"
def gradient_of(step, make, *batch):
    model, optimizer = make()
    step(model, optimizer, *batch)
    grads = [
        torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()
    ]
    return nn.utils.parameters_to_vector(grads)


def off_by(step, make, *batch):
    """Return the error of a step's gradient, as a share of the right one's norm."""
    seen, right = (gradient_of(each, make, *batch) for each in (step, plain_step))
    return float((seen - right).norm() / right.norm())


# %% id="made"
def made(model):
    trained = [p for p in model.parameters() if p.requires_grad]
    return model.double(), SGD(trained, lr=0.1)


@cache
def text(rows, length):
    return next(data.text_batches(rows, length))


# %% [markdown] id="text-9-1"
# ## 9.1 The wrong thing is recomputed
#
# Difficulty 2/5 · importance 5/5 · 12 minutes
#
# **Case A.** "I put every block of my GPT into a checkpoint. Memory fell as it should. The loss is
# the same at step 0, but now the model hardly learns."
#
# **Case B.** "My LSTM has a schedule: I multiply its embeddings by a scale, and halve the scale
# every step. With checkpoints the training diverges."
#
# The goal: the gradients are within 1e-12 of the plain model's (without checkpoints),
# and in a step every block (in B, every chunk) runs twice. In B the scale is still
# halved every step.
#
# **Predict.** In case A only backward is wrong. How large is the gradient's error, as a share of
# the right gradient's norm? (Give a fraction, such as `0.3`.)

# %% id="guess-a"
guess = None  # case A's share


# %% id="gpt-parts"
def embedded(model, tokens):
    positions = model.position_embedding.weight[: tokens.size(1)]
    return model.token_embedding(tokens) + positions


def next_token_loss(logits, tokens):
    """Compare logits `(B, T - 1, V)` with the tokens `(B, T)` that come next."""
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def finish(model, optimizer, x, tokens):
    """Continue from the output of a GPT's last block, up to the update."""
    logits = model.head(model.norm(x))[:, :-1]
    return update(optimizer, next_token_loss(logits, tokens))


# %% id="broken-a"
def make_a():
    torch.manual_seed(0)
    return made(GPT(GPTConfig(seq_len=32, num_layers=4, num_heads=2, d_model=32)))


def broken_a(model, optimizer, tokens):
    x = embedded(model, tokens)
    for block in model.blocks:
        x = checkpoint(lambda t: block(t), x, use_reentrant=False)
    return finish(model, optimizer, x, tokens)


# %% id="lstm-parts"
def through_chunks(model, x, run):
    """Map embeddings to logits; `run(part, hidden, cell)` runs one chunk of them."""
    hidden = cell = x.new_zeros(2, len(x), x.size(-1))
    outputs = []
    for part in x.split(model.config.chunk_len, dim=1):
        output, hidden, cell = run(part, hidden, cell)
        outputs.append(output)
    return model.head(torch.cat(outputs, dim=1))


# %% id="broken-b"
def make_b():
    torch.manual_seed(0)
    return made(LSTM(LSTMConfig(d_model=32, chunk_len=8)))


def broken_b(model, optimizer, tokens, settings):
    def run(part, hidden, cell):
        return model.chunk(part * settings["scale"], hidden, cell)

    x = model.embedding(tokens[:, :-1])
    logits = through_chunks(model, x, partial(checkpoint, run, use_reentrant=False))
    loss = next_token_loss(logits, tokens)
    settings["scale"] /= 2  # for the next step
    return update(optimizer, loss)


# %% id="symptom-a"
off_a = off_by(broken_a, make_a, text(4, 32))
# one digit only: the text depends on your version of Python
print(f"case A: off by {off_a:.1f} of its norm{beside(guess, off_a)}")


# %% id="answer-9-1"
# exercise 9.1
def changed_in_between() -> dict[str, tuple[str, float, Callable]]:
    """Return the findings of cases A and B.

    Returns:
        For "A" and for "B" the cause (from the list), the reading (a number), and the
        fixed function: `(model, optimizer, tokens) -> loss` for A, with `settings` as a
        fourth argument for B.
    """

    ### BEGIN SOLUTION
    def mended_a(model, optimizer, tokens):
        x = embedded(model, tokens)
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return finish(model, optimizer, x, tokens)

    def mended_b(model, optimizer, tokens, settings):
        scale = settings["scale"]
        settings["scale"] = scale / 2
        run = partial(checkpoint, model.chunk, use_reentrant=False)
        logits = through_chunks(model, model.embedding(tokens[:, :-1]) * scale, run)
        return update(optimizer, next_token_loss(logits, tokens))

    return {"A": ("late binding", 5, mended_a), "B": ("changed state", 0.5, mended_b)}
    ### END SOLUTION


# %% id="check-9-1"
# check 9.1 (3 points)
checks.lab09.changed_in_between(changed_in_between)

# %% [markdown] id="text-9-2"
# <details><summary>Hint 1: two instruments</summary>
#
# For A, run `model, optimizer = make_a()`, then put
# `with forwards(list(model.blocks)) as counts:` around one call of `broken_a`. For B,
# put `print(settings["scale"])` into `run`.
# </details>
# <details><summary>Hint 2: case A</summary>
#
# A lambda keeps the *name* `block`, which in backward refers to the last block.
# `checkpoint` accepts the block itself.
# </details>
# <details><summary>Hint 3: case B</summary>
#
# Read the scale once, into a variable that never changes.
# </details>
#
# ## 9.2 Running twice leaves a trace
#
# Difficulty 3/5 · importance 4/5 · 15 minutes
#
# **Case C.** "Our diffusion U-Net uses our own checkpoint. With dropout the training
# ends at a higher loss."
#
# **Case D.** "Our checkpointed ResNet has the same training loss as the plain one, to the last
# digit. But its accuracy in evaluation is different."
#
# The goal: the gradients equal the plain model's, and each block runs twice. In case D, BatchNorm's
# running means and variances are also equal. Leave layers, modes and parameters as they were.
#
# **Predict.** In case C every block drops one element in five. How large is the gradient's error,
# as a share of the right gradient's norm? (Give a fraction, such as `0.3`.)

# %% id="guess-c"
guess = None  # case C's share


# %% id="checkpointed"
def checkpointed(module, **options):
    """Put a checkpoint inside a module, so that each of its calls is a segment.

    The module's own hooks are outside the checkpoint and see no recomputation. To count
    runs, put a hook on one of its submodules.
    """
    plain = type(module).forward

    def forward(*args):
        return checkpoint(plain, module, *args, use_reentrant=False, **options)

    module.forward = forward


# %% id="broken-c"
def make_c():
    torch.manual_seed(0)
    sizes = {"channel_multipliers": (1, 2), "attention_levels": (1,), "dropout": 0.2}
    return made(UNet(UNetConfig(base_channels=8, **sizes)))


def broken_c(model, optimizer, images, times, noise):
    for block in model.blocks:
        checkpointed(block, preserve_rng_state=False)
    return update(optimizer, model.loss(images, times, noise))


# %% id="broken-d"
def make_d():
    torch.manual_seed(0)
    return made(ResNet(ResNetConfig(stage_depths=(1, 2), base_channels=8)))


def broken_d(model, optimizer, images, labels):
    for block in model.blocks:
        checkpointed(block)
    return update(optimizer, model.loss(images, labels))


# %% id="batches"
def batch_c():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(8, 1, 8, 8, generator=generator).double()
    times = torch.randint(1000, (8,), generator=generator)
    return data.digits()[0][:8].double(), times, noise


def batch_d():
    return data.image_batch(8, 3, 8).double(), data.digits()[1][:8]


# %% id="symptom-c"
off_c = off_by(broken_c, make_c, *batch_c())
print(f"case C: off by {off_c:.0%}{beside(guess, off_c)}")


# %% id="answer-9-2"
# exercise 9.2
def repeated_work() -> dict[str, tuple[str, float, Callable]]:
    """Return the findings of cases C and D.

    Returns:
        For "C" and for "D" the cause, the reading, and the fixed function:
        `(model, optimizer, images, times, noise) -> loss` for C,
        `(model, optimizer, images, labels) -> loss` for D.
    """

    ### BEGIN SOLUTION
    def mended_c(model, optimizer, images, times, noise):
        for block in model.blocks:
            checkpointed(block)
        return update(optimizer, model.loss(images, times, noise))

    @contextlib.contextmanager
    def put_back(block):
        before = [buffer.clone() for buffer in block.buffers()]
        try:
            yield
        finally:
            for buffer, old in zip(block.buffers(), before, strict=True):
                buffer.copy_(old)

    def mended_d(model, optimizer, images, labels):
        for block in model.blocks:

            def contexts(block=block):
                return contextlib.nullcontext(), put_back(block)

            checkpointed(block, context_fn=contexts)
        return update(optimizer, model.loss(images, labels))

    return {"C": ("random state", 10, mended_c), "D": ("counted twice", 2, mended_d)}
    ### END SOLUTION


# %% id="check-9-2"
# check 9.2 (3 points)
checks.lab09.repeated_work(repeated_work)

# %% [markdown] id="text-9-3"
# <details><summary>Hint 1: two instruments</summary>
#
# For C, begin with `states = set()`, and for each block call
# `block.res.register_forward_pre_hook(lambda *_: states.add(bytes(torch.get_rng_state())))`. After
# one step with a correct checkpoint, `states` has one random state for each block. For D, print a
# block's buffers before and after one step.
# </details>
# <details><summary>Hint 2: case D</summary>
#
# `context_fn` returns two contexts. The second, entered around each recomputation,
# saves the block's buffers, and restores them with `copy_` in `finally`, because the
# recomputation may end early.
# </details>
#
# ## 9.3 Parts without gradients, or without checkpoints
#
# Difficulty 2/5 · importance 5/5 · 12 minutes
#
# **Case E.** "To save optimizer state I froze the embeddings of my GPT. Since then only the head
# learns. There was a warning about `requires_grad`, but the script ran."
#
# **Case F.** "I fine-tune a ViT on little data without augmentation. I don't want dropout, so I
# call `model.eval()`. Checkpointing is on, but memory is as high as without it."
#
# The goal in E: everything that isn't frozen learns as in the plain model, and the embeddings stay
# frozen. The goal in F: the gradients equal those of the model without dropout, and each layer runs
# twice. The dropout layers keep their probability.


# %% id="broken-e"
def make_e():
    torch.manual_seed(0)
    sizes = {"seq_len": 32, "num_layers": 4, "num_heads": 2, "d_model": 32}
    model = GPT(GPTConfig(**sizes, tie_weights=False))
    for embedding in (model.token_embedding, model.position_embedding):
        embedding.requires_grad_(False)
    return made(model)


def broken_e(model, optimizer, tokens):
    x = embedded(model, tokens)
    for block in model.blocks:
        x = checkpoint(block, x, use_reentrant=True)
    return finish(model, optimizer, x, tokens)


# %% id="broken-f"
def make_f():
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=32, intermediate_size=64, num_attention_heads=2, num_labels=10,
        num_hidden_layers=2, hidden_dropout_prob=0.2,
        image_size=8, patch_size=2, num_channels=1,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    # the method's name since transformers 5
    new = getattr(model, "activation_checkpointing_enable", None)
    (new or model.gradient_checkpointing_enable)({"use_reentrant": False})
    return made(model)


def broken_f(model, optimizer, images, labels):
    model.eval()  # no dropout
    return update(optimizer, model(pixel_values=images, labels=labels).loss)


# %% id="answer-9-3"
# exercise 9.3
def untrained_parts() -> dict[str, tuple[str, float, Callable]]:
    """Return the findings of cases E and F.

    Returns:
        For "E" and for "F" the cause, the reading, and the fixed function:
        `(model, optimizer, tokens) -> loss` for E, `(model, optimizer, images, labels)
        -> loss` for F.
    """

    ### BEGIN SOLUTION
    def mended_e(model, optimizer, tokens):
        x = embedded(model, tokens)
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return finish(model, optimizer, x, tokens)

    def mended_f(model, optimizer, images, labels):
        model.train()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.eval()
        return update(optimizer, model(pixel_values=images, labels=labels).loss)

    return {"E": ("frozen input", 48, mended_e), "F": ("not checkpointed", 1, mended_f)}
    ### END SOLUTION


# %% id="check-9-3"
# check 9.3 (3 points)
checks.lab09.untrained_parts(untrained_parts)

# %% [markdown] id="text-9-4"
# <details><summary>Hint 1: two instruments</summary>
#
# For E, compute `sum(p.requires_grad and p.grad is None for p in model.parameters())` after one
# call of `broken_e`. For F, count with `forwards` how often the modules
# `[m for name, m in model.named_modules() if name.endswith("layernorm_before")]` run. (A hook on a
# library's whole layer may miss the recomputation.)
# </details>
# <details><summary>Hint 2: case E</summary>
#
# The output of a reentrant checkpoint requires a gradient only if an *input* does. With
# `use_reentrant=False`, as in chapter 05, parameters are enough.
# </details>
# <details><summary>Hint 3: case F</summary>
#
# The library checkpoints a layer only if that layer is in training mode. But dropout looks at the
# mode of its own module, `nn.Dropout`.
# </details>
#
# ## 9.4 What is kept, and what counts
#
# Difficulty 2/5 · importance 5/5 · 12 minutes
#
# **Case G.** "Training fits, but the first validation runs out of memory, unless it has only a few
# batches."
#
# **Case H.** "I train twice on the same rows: in one batch, and in four micro-batches whose losses
# I divide by four. I get two different loss curves."
#
# The goal in G: return the same mean, as a float, and leave no byte behind. The peak is no higher
# than for one batch without a graph. Leave the model's mode as it is; batches may differ in shape.
#
# The goal in H: compute the loss and the gradient that the whole window has as one batch. Some
# labels, or all labels of a micro-batch, may be -100. Run only one micro-batch at a time, and keep
# only its graph in memory.


# %% id="broken-g"
def make_g():
    torch.manual_seed(0)
    return LSTM(LSTMConfig(d_model=32)).double()


def broken_g(model, batches):
    total = 0.0
    for tokens in batches:
        total += model.loss(tokens)
    return total / len(batches)


# %% id="broken-h"
def make_h():
    torch.manual_seed(0)
    return made(GPT(GPTConfig(seq_len=32, num_layers=1, num_heads=2, d_model=32)))


def broken_h(model, optimizer, micro_batches):
    optimizer.zero_grad()
    logged = 0.0
    for tokens, labels in micro_batches:
        logits, targets = model(tokens)[:, :-1], labels[:, 1:]
        loss = F.cross_entropy(logits.transpose(1, 2), targets) / len(micro_batches)
        loss.backward()
        logged += loss.item()
    optimizer.step()
    return logged


# %% id="window-h"
def window_h():
    """Return four micro-batches of two rows; the labels are the tokens themselves."""
    counts = 6, 12, 30, 48  # targets in each
    return [(text(2, count // 2 + 1),) * 2 for count in counts]


# %% id="answer-9-4"
# exercise 9.4
def memory_and_windows() -> dict[str, tuple[str, float, Callable]]:
    """Return the findings of cases G and H.

    Returns:
        For "G" and for "H" the cause, the reading, and the fixed function:
        `(model, batches) -> mean loss` for G, `(model, optimizer, micro_batches) ->
        loss` for H, with pairs of tokens and labels `(B, T)`.
    """

    ### BEGIN SOLUTION
    def mended_g(model, batches):
        with torch.no_grad():
            return sum(model.loss(tokens).item() for tokens in batches) / len(batches)

    def mended_h(model, optimizer, micro_batches):
        count = sum(int((labels[:, 1:] != -100).sum()) for _, labels in micro_batches)
        optimizer.zero_grad()
        logged = 0.0
        for tokens, labels in micro_batches:
            logits, targets = model(tokens)[:, :-1].transpose(1, 2), labels[:, 1:]
            loss = F.cross_entropy(logits, targets, reduction="sum") / count
            loss.backward()
            logged += loss.item()
        optimizer.step()
        return logged

    return {"G": ("kept graphs", 6, mended_g), "H": ("unequal weights", 8, mended_h)}
    ### END SOLUTION


# %% id="check-9-4"
# check 9.4 (3 points)
checks.lab09.memory_and_windows(memory_and_windows)

# %% [markdown] id="text-9-5"
# <details><summary>Hint 1: an instrument for case G</summary>
#
# With `model = make_g()`, divide `bytes_left(lambda: broken_g(model, [text(4, 33)] * 6), model)` by
# the bytes of one batch's graph,
# `memory.saved(lambda: model.loss(text(4, 33)), params_of=model).num_bytes`.
# </details>
# <details><summary>Hint 2: what counts in case H</summary>
#
# In a micro-batch of n targets, each has the weight 1 / (4 n).
# </details>
# <details><summary>Hint 3: fixing H</summary>
#
# Count the whole window's targets in `labels[:, 1:]`. Use `reduction="sum"`, and divide
# by that count.
# </details>
#
# ## 9.5 It dies in backward
#
# Difficulty 3/5 · importance 5/5 · 12 minutes
#
# **Case I.** "My ViT didn't fit, so I put a checkpoint around the whole model. Forward is cheap
# now, but the run still dies in backward."
#
# `CAP_I` is the memory of an imagined GPU. `snapshot` lists, for each operation, how
# many of its results are in memory when a call dies, or else at its peak. The row
# without a name has the weights.
#
# The goal: the gradients equal the plain model's, each block runs twice, and the peak is at most
# 1.5 times the peak with a checkpoint around each block.
#
# **Predict.** Of `CAP_I`, 5 MiB, the weights take 0.8 MiB. Each of the ViT's eight blocks
# keeps 1.1 MiB for backward, and creates one `gelu` tensor. How many of these are in
# memory when the run dies?

# %% id="guess-i"
guess = None  # gelu tensors


# %% id="snapshot"
def snapshot(call, model, cap_bytes, by="op"):
    """List what is in memory when a call dies or peaks, by operation or category."""
    dies = contextlib.suppress(torch.OutOfMemoryError)
    cap = memory.capped(cap_bytes, model=model)
    with memory.watch(model=model) as report, dies, cap:
        call()
    totals = [sum(moment.values()) for moment in report.curve()]
    peak = totals.index(max(totals))
    lives = pd.DataFrame(report.timeline)
    held = lives[(lives.born <= peak) & ~(lives.died < peak)]
    table = held.groupby(by).num_bytes.agg(["count", "sum"])
    return table.set_axis(["tensors", "bytes"], axis=1)


# %% id="broken-i"
CAP_I = 5 * 2**20  # bytes


def make_i():
    torch.manual_seed(0)
    return made(ViT(ViTConfig(num_layers=8, num_heads=2, d_model=32)))


def broken_i(model, optimizer, images, labels):
    loss = checkpoint(model.loss, images, labels, use_reentrant=False)
    return update(optimizer, loss)


def batch_i():
    images, labels = data.digits()
    return images[:16].double(), labels[:16]


# %% id="dies-i"
try:
    model, optimizer = make_i()
    with memory.capped(CAP_I, model=model):
        broken_i(model, optimizer, *batch_i())
except torch.OutOfMemoryError as error:
    print(f"case I: {type(error).__name__}")


# %% id="answer-9-5"
# exercise 9.5
def died_in_backward() -> dict[str, tuple[str, float, Callable]]:
    """Return the finding of case I.

    Returns:
        For "I" the cause, the reading, and the fixed function:
        `(model, optimizer, images, labels) -> loss`.
    """

    ### BEGIN SOLUTION
    def mended_i(model, optimizer, images, labels):
        for block in model.blocks:
            checkpointed(block)
        return update(optimizer, model.loss(images, labels))

    return {"I": ("one segment", 4, mended_i)}
    ### END SOLUTION


# %% id="check-9-5"
# check 9.5 (2 points)
checks.lab09.died_in_backward(died_in_backward)

# %% [markdown] id="text-9-6"
# <details><summary>Hint 1: an instrument</summary>
#
# Run `model, optimizer = make_i()`, then
# `snapshot(lambda: broken_i(model, optimizer, *batch_i()), model, CAP_I)`.
# </details>
# <details><summary>Hint 2: the cause</summary>
#
# Backward first recomputes everything inside a checkpoint, and only then goes backward
# through it.
# </details>
# <details><summary>Hint 3: the fix</summary>
#
# Use `checkpointed(block)` from 9.2, and no checkpoint around the model.
# </details>
#
# ## 9.6 It dies in the first update
#
# Difficulty 3/5 · importance 5/5 · 10 minutes
#
# **Case J.** "I train only the head of a ViT: all other weights have a learning rate of 0. Forward
# and backward fit, but the first `optimizer.step()` dies, even with half the batch."
#
# The goal: the same losses and weights as the broken run has with enough memory, but
# under a cap of 3.5 times the weights' bytes.


# %% id="broken-j"
def make_j():
    torch.manual_seed(0)
    return ViT(ViTConfig(num_layers=2, num_heads=2, d_model=64)).double()


def broken_j(model, batches):
    head = list(model.head.parameters())
    body = [p for name, p in model.named_parameters() if not name.startswith("head.")]
    groups = [{"params": body, "lr": 0.0}, {"params": head}]  # the head alone learns
    optimizer = AdamW(groups, lr=0.01)
    return [update(optimizer, model.loss(*batch)) for batch in batches]


def batches_j():
    images, labels = data.digits()
    return [(images[i : i + 2].double(), labels[i : i + 2]) for i in (0, 2, 4)]


# %% id="dies-j"
try:
    model = make_j()
    cap_j = int(3.5 * sum(p.nbytes for p in model.parameters()))
    with memory.capped(cap_j, model=model):
        broken_j(model, batches_j())
except torch.OutOfMemoryError as error:
    print(f"case J: {type(error).__name__}")


# %% id="answer-9-6"
# exercise 9.6
def died_in_update() -> dict[str, tuple[str, float, Callable]]:
    """Return the finding of case J.

    Returns:
        For "J" the cause, the reading, and the fixed function: `(model, batches) ->
        losses`, a float for each batch.
    """

    ### BEGIN SOLUTION
    def mended_j(model, batches):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith("head."))
        optimizer = AdamW(model.head.parameters(), lr=0.01)
        return [update(optimizer, model.loss(*batch)) for batch in batches]

    return {"J": ("optimizer states", 157, mended_j)}
    ### END SOLUTION


# %% id="check-9-6"
# check 9.6 (2 points)
checks.lab09.died_in_update(died_in_update)

# %% [markdown] id="discharge"
# <details><summary>Hint 1: an instrument</summary>
#
# `snapshot(lambda: broken_j(model, batches_j()), model, cap_j, by="category")` shows what is in
# memory. The states of an update that dies are still among `temporary`: run it again with a cap of
# `10**9` to see all. AdamW needs two values for each weight that it updates.
# </details>
# <details><summary>Hint 2: the cause</summary>
#
# AdamW creates states for every weight that has a gradient, even if its learning rate
# is 0.
# </details>
# <details><summary>Hint 3: the fix</summary>
#
# Give AdamW only the head's parameters; `requires_grad_(False)` spares the others'
# gradients.
# </details>
#
# ## Who would have noticed?
#
# **Predict.** In how many of the ten broken runs can `assert_same_training`, which
# `verdict` calls, find a difference?

# %% id="guess-found"
guess = None  # of ten


# %% id="whole-window"
def whole_window(model, optimizer):
    """Case H as one batch: all targets of the window in one mean."""
    logits = [model(tokens)[:, :-1].flatten(0, 1) for tokens, _ in window_h()]
    targets = [labels[:, 1:].flatten() for _, labels in window_h()]
    return update(optimizer, F.cross_entropy(torch.cat(logits), torch.cat(targets)))


# %% id="trials"
def trials():
    """Return a trial for each case that trains something other than intended."""
    tokens, longer = text(4, 32), text(4, 33)
    return {
        "A": trial(broken_a, make_a, tokens),
        "B": trial(lambda m, o, t: broken_b(m, o, t, {"scale": 1.0}), make_b, longer),
        "C": trial(broken_c, make_c, *batch_c()),
        "D": trial(broken_d, make_d, *batch_d()),
        "E": trial(broken_e, make_e, tokens),
        "H": (whole_window, partial(broken_h, micro_batches=window_h()), make_h),
    }


# %% id="found"
by_judge = {case: verdict(*trial) for case, trial in trials().items()}
for case, part in by_judge.items():
    print(f"case {case}: {part} differ")
found = [case for case, part in by_judge.items() if part != "nothing"]
print(f"{len(found)} of 10{beside(guess, len(found))}")

# %% [markdown] id="read-last"
# `assert_same_training` ignores memory, so it can't find F, G, I and J, and the cell
# doesn't try them. Before a long run, let it compare your step with a plain step on a
# small model, and run one step with `forwards` around the blocks.

# %% id="verdicts"
num_cases = len([name for name in globals() if name.startswith("broken_")])
claims.Verdicts(
    claims.Verdict(
        "C18",
        "shown",
        "Faults of real bug reports fit into a few lines, and one judge and a few "
        "counts find all.",
        f"{len(found)} of {num_cases} broken runs are found by the judge, the "
        "others by a count",
        "computed",
        "found",
    ),
)

# %% [markdown] id="end"
# ## More such runs
#
# About forty such scripts, with the reports they come from, are in the
# [gallery](../course/14b_gallery.ipynb).
