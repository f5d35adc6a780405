# %% [markdown] id="title"
# # Gallery of broken runs
#
# If your run ran out of memory, its snapshot shows what held the memory. If your run finishes but
# goes wrong, look up the symptom in the tables at the end. For each row, this notebook has a short
# training script with the fault and its cure. Most of the faults are from bug reports.
#
# | your question | start at |
# |---|---|
# | It ran out of memory: what held it? | [the snapshot](#It-ran-out-of-memory) |
# | My memory did not fall. | [table 1](#My-memory-did-not-fall) |
# | My loss changed, or the model learns worse. | [table 2](#My-loss-changed) |
# | It raises an error: which flag do I set? | [table 3](#Which-flag-do-I-set?) |
#
# Lab 09 gives you ten such runs to diagnose.
#
# **Budget:** 30 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import pickle
import random
import re
import warnings
from collections import Counter
from contextlib import contextmanager, nullcontext, redirect_stdout
from functools import cache, partial
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pandas as pd
import torch
import transformers
from accelerate import Accelerator
from diffusers import AutoencoderKL
from IPython.display import Markdown
from peft import LoraConfig, inject_adapter_in_model
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim import SGD, AdamW
from torch.utils.checkpoint import (
    CheckpointPolicy, checkpoint, checkpoint_sequential,
    create_selective_checkpoint_contexts, set_checkpoint_early_stop,
)  # fmt: skip

from tutorial_lib import blanks, data, memory
from tutorial_lib.guesses import beside
from tutorial_lib.instruments import ranks, widgets
from tutorial_lib.instruments.recorded.snapshots import SNAPSHOTS
from tutorial_lib.checks import CheckError, assert_same_training
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.lstm import LSTM, LSTMConfig
from tutorial_lib.models.resnet import ResNet, ResNetConfig
from tutorial_lib.models.unet import UNet, UNetConfig
from tutorial_lib.models.vit import ViT, ViTConfig
from tutorial_lib.units import GIB

# %% [markdown] id="triage-text"
# ## It ran out of memory
#
# Three runs ended in `OutOfMemoryError` on an emulated T4. Their messages look alike: a few
# megabytes were requested, and 14 GiB were in use. The messages don't say *what* used this memory.
# The allocator's snapshot lists every allocation, with the line of Python that requested it.
#
# On your own GPU, put `with memory.snapshot("died.pickle"):` around the loop. Without a GPU, run
# `python -m tutorial_lib emulate --card t4 --snapshot died.pickle -- python train.py`.
#
# **Write.** `alive`, which goes through the snapshot's events in order. An event is a dict. Its
# `action` is `alloc` when a block of memory is handed out, and `oom` when memory runs out. Any
# other action ends the block's life. `addr` is the block's address, which may be handed out again
# later.


# %% id="alive"
def alive(name):
    """Return the `alloc` events whose blocks were alive when memory ran out."""
    snapshot = pickle.loads((SNAPSHOTS / f"{name}.pickle").read_bytes())
    ### BEGIN SOLUTION
    living = {}
    for event in snapshot["device_traces"][0]:
        if event["action"] == "oom":
            return list(living.values())
        if event["action"] == "alloc":
            living[event["addr"]] = event
        else:
            living.pop(event["addr"], None)
    ### END SOLUTION
    raise ValueError(f"{name} did not run out of memory")


# %% id="check-alive"
# @title Check: run this cell
@blanks.check("alive", "return a list of events")
def holds_what_was_alive():
    actions = (
        ("alloc", 1), ("alloc", 2), ("free_requested", 1), ("free_completed", 1),
        ("segment_free", 9), ("alloc", 3), ("alloc", 1), ("alloc", 5),
        ("free_completed", 5), ("segment_unmap", 3), ("oom", 0), ("alloc", 4),
    )  # fmt: skip
    trace = [{"action": action, "addr": addr, "size": 10**place}
             for place, (action, addr) in enumerate(actions)]  # fmt: skip
    with TemporaryDirectory() as folder, patch.dict(globals(), SNAPSHOTS=Path(folder)):
        path = Path(folder) / "made_up.pickle"
        path.write_bytes(pickle.dumps({"device_traces": [trace]}))
        found = alive("made_up")
    places = sorted(trace.index(event) for event in found)
    said = f"Of {list(actions)} you find events {places} alive, not [1, 6]."
    assert places == [1, 6], said
    size = sum(event["size"] for event in alive("oom_2")) / GIB
    assert round(size) == 14, f"In the second run {size:.1f} GiB are alive, not 14."


# %% id="line-of"
def line_of(event):
    frames = event["frames"]
    return "{filename}:{line}".format(**frames[0]) if frames else "(backward)"


# %% id="by-line"
def by_line(name, top=5):
    """Return who held the memory: bytes and number of tensors, by line of Python."""
    size, count = Counter(), Counter()
    for event in alive(name):
        size[line_of(event)] += event["size"]
        count[line_of(event)] += 1
    table = {line: (f"{n / GIB:.2f}", count[line]) for line, n in size.most_common(top)}
    return pd.DataFrame(table, index=["GiB", "tensors"]).T


by_line("oom_1")

# %% [markdown] id="first-read"
# **The first run** trains GPT-2 medium, four sequences at a time. The first two rows of the table
# are the blocks' activation function and linear layers. Their tensors wait for backward. The
# weights (`modeling_utils.py`) are small in comparison, and there are no optimizer states yet. So
# the diagnosis is *activations*. The cure is a smaller micro-batch and, if that isn't enough, a
# checkpoint around each block (chapter 14).
#
# **Predict.** The second run trains GPT-2 well at first, and runs out of memory later. At that
# moment, the tensors of several forward passes are alive. How many passes? (In the first run, one
# pass through 24 blocks had 96 tensors of the activation function alive. GPT-2 has 12 blocks. Run
# `by_line("oom_2")` to count its tensors.)

# %% id="guess-alive"
guess = None  # forward passes

# %% id="second"
first, second = (Counter(map(line_of, alive(name))) for name in ("oom_1", "oom_2"))
line = "transformers/activations.py:66"
per_block = first[line] // 24  # GPT-2 medium has 24 blocks, and one pass was alive
passes = second[line] / per_block / 12
print(f"{passes:.1f} forward passes are alive{beside(guess, passes)}")
by_line("oom_2")

# %% [markdown] id="second-read"
# Training holds the tensors of one forward pass at a time. If several passes are alive, something
# keeps the graphs of earlier passes. Here is the script's validation loop:

# %% id="second-script"
print("".join((SNAPSHOTS / "oom_2.py").read_text().partition("total = 0")[1:]))

# %% [markdown] id="third-text"
# The validation loop sums losses that still have their graphs, so no pass is ever freed. The cure
# is `with torch.no_grad():` around the loop, or `loss.item()`. A smaller batch is no cure: the run
# dies too, only later.
#
# **The third run** has one short sequence and a checkpoint around every block.

# %% id="third"
by_line("oom_3")

# %% [markdown] id="third-read"
# Line 14 of the script requested more than half of the memory. Nearly all the rest is weights and
# gradients. Here is line 14:

# %% id="third-script"
print((SNAPSHOTS / "oom_3.py").read_text().splitlines()[13].strip())

# %% [markdown] id="third-cure"
# The first update allocates AdamW's states, two for each weight, and the `foreach` version also
# allocates temporaries. A checkpoint or a smaller batch doesn't change that. The cures are
# `fused=True`, 8-bit states, or states divided over devices.
#
# Now step through the three runs in the next cell. At which moment could you first have known what
# was wrong?

# %% id="triage"
runs = {}
for name in ("oom_1", "oom_2", "oom_3"):
    snapshot = pickle.loads((SNAPSHOTS / f"{name}.pickle").read_bytes())
    runs[name] = snapshot["device_traces"][0]
widgets.snapshot_triage(runs)

# %% [markdown] id="triage-read"
# | what is alive when it dies | diagnosis | cure |
# |---|---|---|
# | the model's lines, once for each block | activations | a smaller micro-batch, checkpoints |
# | the same lines, several passes | a graph that is kept | `no_grad`, `.item()`, `detach` |
# | `optimizer.step`, weights, gradients | states | fused or 8-bit AdamW, LoRA, FSDP |
# | little, and much more *reserved* | fragmentation (02b) | `expandable_segments`, equal lengths |

# %% [markdown] id="frame-text"
# ## How a case is written
#
# A case is one function. With `cured=False` it runs the reported script, and with `cured=True` the
# fixed one. The line that mentions `cured` is the fix. The function returns the result of one
# instrument: `assert_same_training`, the memory meter, a count, or PyTorch's own error. Its `@case`
# line names the instrument and has two patterns. The first pattern matches the result of the
# reported script, and the second that of the fixed script.

# %% id="frame"
CASES = {}
MEMORY = "My memory did not fall"
LOSS = "My loss changed"
FLAG = "Which flag do I set?"
JUDGE = "assert_same_training"
METER = "the meter"
COUNT = "a count"
ERROR = "PyTorch's error"
SAME = "^the same training$"
NOTHING_RAISED = "^no error$"
TORCH = "torch 2.13"
HF = "transformers 5.23, torch 2.13"
PEFT = "peft 0.21, torch 2.13"
DIFFUSERS = "diffusers 0.42, torch 2.13"
ACCELERATE = "accelerate 1.15, torch 2.13"


def case(number, asks, caught_by, shows, **about):
    about |= {"number": number, "asks": asks, "caught_by": caught_by, "shows": shows}

    def add(run):
        CASES[run.__name__] = {"seen_in": TORCH, "run": run, **about}
        return run

    return add


# %% id="instruments"
def difference(right, step, make):
    """Return what differs between the two steps, according to the course's judge."""
    try:
        with redirect_stdout(StringIO()):
            assert_same_training(right, step, make=make)
    except CheckError as error:
        return re.search(r"call \d, (.*?):", str(error))[1] + " differ"
    return "the same training"


def raised(call):
    """Return the error of a call in one line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return "no error"


@contextmanager
def forwards(modules):
    """Count how often each module runs."""
    counts = [0] * len(modules)

    def add(place, *_):
        counts[place] += 1

    handles = []
    for place, module in enumerate(modules):
        handles.append(module.register_forward_pre_hook(partial(add, place)))
    try:
        yield counts
    finally:
        for handle in handles:
            handle.remove()


# %% id="trainings"
def make_gpt(optimizer=SGD, **options):
    torch.manual_seed(0)
    sizes = {"seq_len": 16, "num_layers": 3, "num_heads": 2, "d_model": 32}
    model = GPT(GPTConfig(**{**sizes, **options})).double()
    return model, optimizer(model.parameters(), lr=0.1)


def gpt_loss(model, run, tokens=None):
    """Run each block as `run(block, x)`; return the next-token loss."""
    tokens = draw_tokens(4) if tokens is None else tokens
    x = model.token_embedding(tokens) + model.position_embedding.weight
    for block in model.blocks:
        x = run(block, x)
    logits = model.head(model.norm(x))[:, :-1].transpose(1, 2)
    return F.cross_entropy(logits, tokens[:, 1:])


@cache
def draw_tokens(rows):
    return next(data.text_batches(rows, 16))


def update(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def plain(block, x):
    return block(x)


def plain_step(model, optimizer):
    return update(optimizer, gpt_loss(model, plain))


def non_reentrant(function, *args, **options):
    return checkpoint(function, *args, use_reentrant=False, **options)


# %% id="make-llama"
def make_llama(switched_on=True):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    config = transformers.LlamaConfig(num_hidden_layers=2, vocab_size=64, **sizes)
    llama = transformers.LlamaForCausalLM(config).train()
    if switched_on:  # by its name from version 5 on, or the older one
        new = getattr(llama, "activation_checkpointing_enable", None)
        (new or llama.gradient_checkpointing_enable)({"use_reentrant": False})
    return llama


# %% [markdown] id="memory-text"
# ## Scripts: memory
#
# In these runs the loss is right, but the memory doesn't fall as it should. Count how often each
# block runs in one step. Once means that the block isn't checkpointed, twice is right, and three
# times means that it is checkpointed twice.


# %% id="evaluation-mode"
@case(13, MEMORY, COUNT, (r"^\[1, 1\]$", r"^\[2, 2\]$"), seen_in=HF,
      reports="huggingface/diffusers#9850 huggingface/diffusers#1848",
      symptom="checkpointing is on and the peak is the same",
      cause="the model is in `eval()`, and transformers, for one, checkpoints only in "
            "`train()`",
      cure="`model.train()`; set dropout to 0 if you want none")  # fmt: skip
def evaluation_mode(cured):
    llama = make_llama().train(cured)
    with forwards([layer.mlp for layer in llama.model.layers]) as counts:
        tokens = torch.arange(24).view(2, 12)
        llama(tokens, labels=tokens, use_cache=False).loss.backward()
    return counts


# %% id="middle-forgotten"
@case(14, MEMORY, COUNT, (r"^\[2, 2, 1, 2, 2\]$", r"^\[2, 2, 2, 2, 2\]$"),
      reports="huggingface/diffusers#6388 huggingface/diffusers#4377",
      symptom="less is saved than the release notes promise",
      cause="the flag reaches the blocks on the way down and up, but not the middle "
            "one",
      cure="reach all blocks; count each block's forwards in one step")  # fmt: skip
def middle_forgotten(cured):
    sizes = {"base_channels": 8, "channel_multipliers": (1, 2), "attention_levels": ()}
    unet = UNet(UNetConfig(**sizes))
    blocks = [m for m in unet.blocks if cured or m is not unet.middle]
    for block in blocks:
        block.forward = partial(non_reentrant, type(block).forward, block)
    with forwards([block.res for block in unet.blocks]) as counts:
        x = data.image_batch(2, 1, 8)
        unet.loss(x, torch.tensor([10, 900]), torch.ones_like(x)).backward()
    return counts


# %% id="wrapped-twice"
@case(14, MEMORY, COUNT, (r"^\[3, 3, 3\]$", r"^\[2, 2, 2\]$"),
      reports="huggingface/diffusers#4474",
      symptom="memory falls, but a step takes far more than a third longer",
      cause="a block is checkpointed, and other code checkpoints a part of it again",
      cure="checkpoint only one of the two")  # fmt: skip
def wrapped_twice(cured):
    gpt, _ = make_gpt()
    if not cured:
        for part in (block.attention for block in gpt.blocks):
            part.forward = partial(non_reentrant, type(part).forward, part)
    with forwards([block.attention.qkv for block in gpt.blocks]) as counts:
        gpt_loss(gpt, non_reentrant).backward()
    return counts


# %% id="one-checkpoint"
@case(16, MEMORY, METER, ("^(9|10).%", "^[1-6].%"),
      reports="Stonesjtu/pytorch_memlab#47",
      symptom="the whole model is in a checkpoint, and the peak is the same",
      cause="one segment: its recomputation brings back everything at once",
      cure="a checkpoint for each block")  # fmt: skip
def one_checkpoint(cured):
    gpt, _ = make_gpt(num_layers=8)
    blocks, seen = partial(gpt_loss, gpt, non_reentrant), []
    whole = partial(non_reentrant, gpt_loss, gpt, plain)
    for loss in (partial(gpt_loss, gpt, plain), blocks if cured else whole):
        report = memory.measure(lambda loss=loss: loss().backward(), model=gpt)
        seen.append(report.at_peak["activations"] + report.at_peak["recomputed"])
    return f"{seen[1] / seen[0]:.0%}"


# %% id="forces"
@case(37, MEMORY, METER, ("^[89].%", "^2.%"),
      reports="atomistic-machine-learning/schnetpack#304 deepmodeling/deepmd-kit#4006",
      symptom="training on forces takes two to four times the memory of training on "
              "energies, and checkpoints hardly help",
      cause="with `create_graph=True` the derivative keeps what it recomputed, and its "
            "own graph as well",
      cure="smaller micro-batches of structures, each weighted by its atoms"
      )  # fmt: skip
def forces(cured):
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 64))
              for _ in range(8)]  # fmt: skip
    model = nn.Sequential(nn.Linear(3, 64), *blocks, nn.Linear(64, 1))
    positions, wanted = torch.randn(2, 256, 3)  # 256 structures of one atom

    def step(run, num):
        for x, goal in zip(positions.chunk(num), wanted.chunk(num), strict=True):
            h = x.requires_grad_()
            for block in model:
                h = run(block, h)
            (slope,) = torch.autograd.grad(h.sum(), x, create_graph=True)
            F.mse_loss(-slope, goal).div(num).backward()

    seen = []
    for arguments in ((plain, 1), (non_reentrant, 4 if cured else 1)):
        peak = memory.measure(partial(step, *arguments), model=model).at_peak
        seen.append(peak["activations"] + peak["recomputed"])
    return f"{seen[1] / seen[0]:.0%}"


# %% id="decoded-reward"
@case(43, MEMORY, METER, (r"^(9.|10.)%", "^[1-4].%"), seen_in=DIFFUSERS,
      reports="huggingface/diffusers#10350",
      symptom="a loss on decoded images: the VAE's decoder is the peak, with "
              "`enable_slicing()` or without",
      cause="slicing decodes one image at a time, but autograd keeps what all of them "
            "save for backward",
      cure="switch on the VAE's checkpointing as well")  # fmt: skip
def decoded_reward(cured):
    ups, downs = (("UpDecoderBlock2D",) * 2, ("DownEncoderBlock2D",) * 2)
    sizes = {"block_out_channels": (16, 32), "norm_num_groups": 8}
    vae = AutoencoderKL(up_block_types=ups, down_block_types=downs, **sizes)
    latents, seen = torch.randn(8, 4, 8, 8, requires_grad=True), []

    def step():
        vae.decode(latents).sample.square().mean().backward()

    for sliced in (False, True):
        vae.enable_slicing() if sliced else vae.disable_slicing()
        if sliced and cured:
            vae.enable_gradient_checkpointing()
        peak = memory.measure(step, model=vae).at_peak
        seen.append(peak["activations"] + peak["recomputed"])
    return f"{seen[1] / seen[0]:.0%}"


# %% id="last-segment"
@case(16, MEMORY, COUNT, (r"^\[2, 2, 2, 2, 1, 1\]$", r"^\[2, 2, 2, 2, 2, 1\]$"),
      reports="",
      symptom="`checkpoint_sequential` saves less than the formula says",
      cause="its last segment is never checkpointed: of 6 layers in 3 segments, two "
            "are kept",
      cure="more segments, so that the last is short")  # fmt: skip
def last_segment(cured):
    layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
    with forwards(layers) as counts:
        x = torch.ones(2, 8, requires_grad=True)
        segments = 6 if cured else 3
        checkpoint_sequential(layers, segments, x, use_reentrant=False).sum().backward()
    return counts


# %% id="kept-graphs"
@case(29, MEMORY, METER, ("^8 times", "^1 times"),
      reports="pytorch/pytorch#64586 horovod/horovod#641",
      symptom="memory grows from batch to batch of the validation loop",
      cause="`total += loss` keeps every batch's graph alive",
      cure="`loss.item()`, and `torch.no_grad()` where there is no backward"
      )  # fmt: skip
def kept_graphs(cured):
    lstm, total = LSTM(LSTMConfig(d_model=32)).eval(), 0.0
    one = memory.saved(lambda: lstm.loss(draw_tokens(4)), params_of=lstm).num_bytes
    with memory.watch(model=lstm) as report:
        for _ in range(8):
            loss = lstm.loss(draw_tokens(4))
            total += loss.item() if cured else loss
    return f"{report.leaked_bytes / one:.0f} times what one batch keeps"


# %% id="error-kept"
@case(41, MEMORY, METER, ("^1 times", "^0 times"),
      reports="pytorch/pytorch#27600 pytorch/pytorch#18853",
      symptom="after one out-of-memory error even a small batch fails, and "
              "`empty_cache()` frees nothing",
      cause="the error's traceback holds every local variable of the failed step, as "
            "long as something holds the error: a list, the `except` block while it "
            "runs, a notebook until the next error",
      cure="keep `str(error)`, and retry after the `except` block")  # fmt: skip
def error_kept(cured):
    gpt, failures = make_gpt()[0], []
    one = memory.saved(lambda: gpt.loss(draw_tokens(8)), params_of=gpt).num_bytes

    def step():
        loss = gpt.loss(draw_tokens(8))
        raise torch.OutOfMemoryError(f"no room to go backward from {loss:.2f}")

    with memory.watch(model=gpt) as report:
        try:
            step()
        except torch.OutOfMemoryError as error:
            failures.append(str(error) if cured else error)
    return f"{report.leaked_bytes / one:.0f} times what the failed batch keeps"


# %% id="no-sync"
@case(30, MEMORY, COUNT, ("^4 all-reduces$", "^1 all-reduces$"),
      reports="huggingface/accelerate#1726 facebookresearch/ClassyVision#706 "
              "pytorch/PiPPy#1133",
      symptom="accumulation under DDP is no faster: the ranks exchange gradients in "
              "every micro-batch",
      cause="`no_sync` is only around backward, but forward decides whether backward "
            "exchanges gradients",
      cure="`no_sync` around forward and backward (not under FSDP, where it keeps "
           "whole gradients: meta-pytorch/tnt#1057, chapter 13)")  # fmt: skip
def no_sync_around_backward(cured):
    models = [make_gpt()[0] for _ in range(2)]

    def work(rank):
        model = DistributedDataParallel(models[rank])
        for place in range(4):
            skip = model.no_sync if place < 3 else nullcontext
            with skip() if cured else nullcontext():
                loss = model(draw_tokens(2)).logsumexp(-1).mean()
            with skip():
                (loss / 4).backward()

    _, traffic = ranks.in_threads(work, 2)
    return f"{len(traffic[0].sizes('all_reduce'))} all-reduces"


# %% id="offload-recomputes"
@case(42, MEMORY, COUNT, ("^1 matmuls again$", "^0 matmuls again$"),
      reports="pytorch/pytorch#180874 pytorch/pytorch#158657",
      symptom="a policy of `MUST_CPU_OFFLOAD` moves nothing to the CPU, and steps get "
              "no faster",
      cause="PyTorch accepts the policy (from 2.11 on), but in eager mode it silently "
            "recomputes",
      cure="`MUST_SAVE` keeps it on the GPU; chapter 07d offloads by `save_on_cpu()`"
      )  # fmt: skip
def offload_recomputes(cured):
    mlp = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
    x, matmul = torch.ones(4, 16), torch.ops.aten.addmm.default
    wanted = CheckpointPolicy.MUST_SAVE if cured else CheckpointPolicy.MUST_CPU_OFFLOAD

    def policy(context, operation, *args, **kwargs):
        return wanted if operation is matmul else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    with memory.flop_counter() as counter:
        mlp(x)
        once = counter.get_flop_counts()["Global"][torch.ops.aten.addmm]
        non_reentrant(mlp, x, context_fn=contexts).sum().backward()
    all_calls = counter.get_flop_counts()["Global"][torch.ops.aten.addmm]
    return f"{2 * all_calls // once - 4} matmuls again"


# %% [markdown] id="loss-text"
# ## Scripts: the loss
#
# These runs raise no error, except `layer_drop`. The model trains, but not as it should.
# `assert_same_training(step_to_trust, your_step, make=...)` names the first part that differs.


# %% id="late-lambda"
@case(2, LOSS, JUDGE, ("^gradients", SAME),
      reports="pytorch/pytorch#11944",
      symptom="no error, and the model learns next to nothing",
      cause="`lambda t: block(t)` looks `block` up when it runs; recomputation runs "
            "after the loop",
      cure="pass `block` itself, or bind it: `lambda t, block=block: block(t)`"
      )  # fmt: skip
def late_lambda(cured):
    def step(model, optimizer, how=non_reentrant):
        x = model.token_embedding(draw_tokens(4))
        for block in model.blocks:
            run = block if cured else lambda t: block(t)  # noqa: B023
            x = how(run, x)
        return update(optimizer, model.head(x).logsumexp(-1).mean())

    return difference(partial(step, how=plain), step, make_gpt)


# %% id="other-dropout"
@case(3, LOSS, JUDGE, ("^gradients", SAME),
      reports="openai/guided-diffusion#167 allenai/OLMo-core#828",
      symptom="with checkpointing the loss ends higher",
      cause="dropout draws a different mask in the recomputation",
      cure="`preserve_rng_state=True`, the default")  # fmt: skip
def other_dropout(cured):
    run = partial(non_reentrant, preserve_rng_state=cured)
    step = lambda model, how: update(how, gpt_loss(model, run))  # noqa: E731
    return difference(plain_step, step, partial(make_gpt, dropout=0.1))


# %% id="layer-drop"
@case(4, LOSS, ERROR, ("CheckpointError.*different number of tensors", NOTHING_RAISED),
      reports="",
      symptom="layers are dropped at random, and some steps raise an error",
      cause="PyTorch restores its own random state, but not Python's or NumPy's",
      cure="draw outside the checkpointed part, and pass what was drawn")  # fmt: skip
def layer_drop(cured):
    def run(block, x):
        drawn = [random.random()] if cured else []
        return non_reentrant(dropped, block, x, *drawn)

    def dropped(block, x, drawn=None):
        return x if (random.random() if drawn is None else drawn) < 0.5 else block(x)

    state = random.getstate()
    random.seed(0)
    said = raised(lambda: [gpt_loss(make_gpt()[0], run).backward() for _ in range(4)])
    random.setstate(state)
    return said


# %% id="batch-counted-twice"
@case(5, LOSS, JUDGE, ("^buffers", SAME),
      reports="pytorch/pytorch#96136 pytorch/pytorch#62471 "
              "pfnet/pytorch-pfn-extras#117",
      symptom="training is the same, but the accuracy in evaluation is not",
      cause="BatchNorm's running mean sees each batch twice, in forward and in "
            "recomputation",
      cure="put the statistics back after recomputing (`context_fn`, as in the "
           "script), or GroupNorm"
      )  # fmt: skip
def batch_counted_twice(cured):
    def step(model, optimizer, how=non_reentrant):
        x = model.stem(data.image_batch(8, 3, 8).double())
        for block in model.blocks:
            cure = {"context_fn": partial(replayed, block)} if cured else {}
            x = how(block, x, **cure)
        return update(optimizer, model.head(x.mean((2, 3))).logsumexp(-1).mean())

    return difference(
        partial(step, how=lambda block, x, **_: block(x)), step, make_resnet
    )


# %% id="replayed"
def replayed(block):
    """Return contexts for `context_fn`: recomputation reads what forward read."""
    before = [buffer.clone() for buffer in block.buffers()]

    def swap_in(values):
        for buffer, value in zip(block.buffers(), values, strict=True):
            buffer.data = value

    @contextmanager
    def recompute():
        after = [buffer.data for buffer in block.buffers()]
        swap_in(before)
        try:
            yield
        finally:
            swap_in(after)

    return nullcontext(), recompute()


# %% id="make-models"
def make_resnet(norm=None):
    torch.manual_seed(0)
    model = ResNet(ResNetConfig(stage_depths=(1, 1), base_channels=8))
    for parent in list(model.modules()) if norm else ():
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(parent, name, norm(child.num_features))
    model.double()
    return model, SGD(model.parameters(), lr=0.1)


def make_vit():
    torch.manual_seed(0)
    model = ViT(ViTConfig(num_layers=1, num_heads=2, d_model=32)).double()
    return model, SGD(model.parameters(), lr=0.1)


# %% id="changed-meanwhile"
@case(9, LOSS, JUDGE, ("^gradients", SAME),
      reports="",
      symptom="a value in forward follows a schedule, and the run diverges",
      cause="forward reads a Python value, which has changed by the time backward "
            "recomputes",
      cure="pass the value as an argument: the checkpoint keeps it")  # fmt: skip
def changed_meanwhile(cured):
    def step(model, optimizer, how=non_reentrant):
        settings = {"scale": 1.0}

        def run(block, x):
            if cured:
                return how(lambda x, scale: block(x * scale), x, settings["scale"])
            return how(lambda x: block(x * settings["scale"]), x)

        loss = gpt_loss(model, run)
        settings["scale"] = 0.5  # for the next step
        return update(optimizer, loss)

    return difference(partial(step, how=lambda f, *a: f(*a)), step, make_gpt)


# %% id="frame-cache"
@case(34, LOSS, JUDGE, ("^gradients", SAME),
      reports="Wan-Video/Wan2.1#430",
      symptom="checkpointing makes a causal video model train badly, without an error",
      cause="forward reads the previous frame from a cache; when it is recomputed, the "
            "cache holds a later frame of the same shape",
      cure="pass the cached frame as an argument: the checkpoint keeps it")  # fmt: skip
def frame_cache(cured):
    images = data.image_batch(4, 1, 8).double()
    video = torch.stack([images.roll(t, -1) for t in range(6)], dim=2)

    def step(model, optimizer, how=non_reentrant):
        cache, total = [torch.zeros_like(video[:, :, :1])], 0

        def run(x, before=None):
            before = cache[0] if before is None else before
            return model(torch.cat([before, x], dim=2)).square().mean()

        for x in video.split(2, dim=2):
            total = total + how(run, x, *(cache if cured else ()))
            cache[0] = x[:, :, -1:]  # for the chunk that follows
        return update(optimizer, total)

    return difference(partial(step, how=lambda f, *a: f(*a)), step, make_video)


def make_video():
    torch.manual_seed(0)
    causal = nn.Conv3d(1, 8, (2, 3, 3), padding=(0, 1, 1))  # two frames
    model = nn.Sequential(causal, nn.SiLU(), nn.Conv3d(8, 1, 1)).double()
    return model, SGD(model.parameters(), lr=0.1)


# %% id="state-moved-on"
@case(36, LOSS, JUDGE, ("^gradients", SAME),
      reports="NVIDIA/TransformerEngine#1190 pytorch/ao#570",
      symptom="checkpointing changes the gradients of spectral norm, an EMA codebook "
              "or delayed FP8 scales",
      cause="forward reads a buffer and then updates it, so recomputation reads a "
            "different value",
      cure="recompute from what forward read (`context_fn`, as in the script)"
      )  # fmt: skip
def state_moved_on(cured):
    def make():
        gpt = make_gpt()[0]
        for block in gpt.blocks:
            spectral_norm(block.attention.qkv)
        return gpt, SGD(gpt.parameters(), lr=0.1)

    def run(block, x):
        cure = {"context_fn": partial(replayed, block)} if cured else {}
        return non_reentrant(block, x, **cure)

    step = lambda model, how: update(how, gpt_loss(model, run))  # noqa: E731
    return difference(plain_step, step, make)


# %% id="swapped-weights"
@case(44, LOSS, JUDGE, ("^gradients", SAME),
      reports="",
      symptom="with `functional_call` (fast weights, ensembles, LoRA) checkpointing "
              "changes the gradients",
      cause="when backward recomputes, `functional_call` has already put the module's "
            "own weights back",
      cure="checkpoint `functional_call` itself, with `use_reentrant=False`"
      )  # fmt: skip
def swapped_weights(cured):
    def run(how, block, x):
        fast = {name: 0.9 * weight for name, weight in block.named_parameters()}
        if cured:
            return how(functional_call, block, fast, (x,))
        block.forward = partial(how, type(block).forward, block)
        return functional_call(block, fast, (x,))

    def step(model, optimizer, how=non_reentrant):
        return update(optimizer, gpt_loss(model, partial(run, how)))

    return difference(partial(step, how=lambda f, *a: f(*a)), step, make_gpt)


# %% id="experts-counted-twice"
@case(35, LOSS, COUNT, ("^2 times", "^1 times"),
      reports="NVIDIA-NeMo/Automodel#3247 pytorch/torchtitan#1593 "
              "NVIDIA/Megatron-LM#1330",
      symptom="with checkpointing, logged expert counts and balancing losses double",
      cause="forward adds to a counter, and recomputation adds once more (unless it "
            "can stop before that line)",
      cure="return the chosen experts, and count outside the checkpoint")  # fmt: skip
def experts_counted_twice(cured):
    gpt, tokens = make_gpt()[0], draw_tokens(4)
    router, load = nn.Linear(32, 4).double(), torch.zeros(4)

    def count(experts):
        load.add_(torch.bincount(experts.flatten(), minlength=4))

    def routed(block, x):
        experts = router(x).argmax(-1)
        if not cured:
            count(experts)
        return block(x), experts

    def run(block, x):
        x, experts = non_reentrant(routed, block, x)
        if cured:
            count(experts)
        return x

    gpt_loss(gpt, run, tokens).backward()
    return f"{load.sum() / tokens.numel() / len(gpt.blocks):.3g} times the tokens"


# %% id="frozen-tower"
@case(40, LOSS, COUNT, (r"^\[False, True\]$", r"^\[True, True\]$"), seen_in=PEFT,
      reports="cloneofsimo/lora#26 kohya-ss/sd-scripts#323 "
              "locuslab/open-unlearning#178",
      symptom="LoRA in two towers: the loss falls, but one tower's `lora_B` stays zero",
      cause="a reentrant checkpoint over frozen embeddings gives no gradients; "
            "PyTorch only warns, since other weights get some",
      cure="`use_reentrant=False`, or `enable_input_require_grads()` on each tower"
      )  # fmt: skip
def frozen_tower(cured):
    towers = nn.ModuleList(make_gpt()[0] for _ in range(2))
    towers = inject_adapter_in_model(LoraConfig(target_modules=["qkv"]), towers)
    first = partial(checkpoint, use_reentrant=not cured)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (gpt_loss(towers[0], first) + gpt_loss(towers[1], plain)).backward()
    learns = [[p.grad is not None and bool(p.grad.any())
               for name, p in tower.named_parameters() if "lora_B" in name]
              for tower in towers]  # fmt: skip
    return [all(tower) for tower in learns]


# %% id="memory-budget"
@case(19, LOSS, COUNT, ("^some", "^no"),
      reports="pytorch/pytorch#190758 pytorch/pytorch#190717",
      symptom="a compiled model with dropout and an activation budget below 1 learns "
              "worse",
      cause="dropout draws a different mask in the recomputation",
      cure="a budget of 1, or dropout 0")  # fmt: skip
def memory_budget(cured):
    from torch._functorch import config

    torch.compiler.reset()
    torch.manual_seed(0)
    layer, x = nn.Linear(64, 64), torch.randn(64, 64)
    shift = torch.zeros(64, 64, requires_grad=True)
    model = torch.compile(
        lambda x, shift: F.dropout((layer(x) + shift).exp(), 0.2),
        backend="aot_eager_decomp_partition",
    )
    with config.patch(activation_memory_budget=1.0 if cured else 0.0):
        y = model(x, shift)
        y.sum().backward()
    wrong = (y == 0) & (shift.grad != 0)
    return f"{'some' if wrong.any() else 'no'} dropped elements have a gradient"


# %% id="noise-not-drawn"
@case(20, LOSS, COUNT, ("^gradients", "^the same gradients$"),
      reports="pytorch/pytorch#193671",
      symptom="gradients are huge, or nan, in some runs of a model with RReLU",
      cause="recomputation stops before the noise is drawn, and backward reads old "
            "memory",
      cure="`set_checkpoint_early_stop(False)`")  # fmt: skip
def noise_not_drawn(cured):
    torch.manual_seed(0)
    layer, x = nn.RReLU(0.1, 0.9), torch.randn(64, 64, requires_grad=True)

    def gradient(run):
        torch.manual_seed(1)
        with set_checkpoint_early_stop(not cured):
            out = run(layer, x)
        trash = [torch.full((64, 64), 1e6) for _ in range(8)]
        del trash
        return torch.autograd.grad(out.sum(), x)[0]

    pairs = ((gradient(plain), gradient(non_reentrant)) for _ in range(20))
    equal = all(torch.equal(kept, recomputed) for kept, recomputed in pairs)
    return "the same gradients" if equal else "gradients differ"


# %% id="mean-of-means"
@case(23, LOSS, JUDGE, ("^loss", SAME),
      reports="huggingface/transformers#34191 huggingface/transformers#24725",
      symptom="the same effective batch in smaller micro-batches gives a different "
              "loss curve",
      cause="each micro-batch's mean counts the same, however many targets it has",
      cure="add sums, and divide by the targets of the whole window")  # fmt: skip
def mean_of_means(cured):
    rows, lengths = draw_tokens(8), torch.arange(1, 16, 2)[:, None]
    targets = rows[:, 1:].masked_fill(torch.arange(15) >= lengths, -100)

    def step(model, optimizer, num=4):
        optimizer.zero_grad()
        total = 0.0
        for x, y in zip(rows.chunk(num), targets.chunk(num), strict=True):
            of_window = cured or num == 1
            count = (targets != -100).sum() if of_window else num * (y != -100).sum()
            logits = model(x)[:, :-1].transpose(1, 2)
            loss = F.cross_entropy(logits, y, reduction="sum") / count
            loss.backward()
            total += loss.item()
        optimizer.step()
        return total

    return difference(partial(step, num=1), step, make_gpt)


# %% id="not-divided"
@case(24, LOSS, JUDGE, ("^gradients", SAME),
      reports="karpathy/nanoGPT#206 karpathy/nanoGPT#207 "
              "huggingface/transformers#37766",
      symptom="training diverges at a learning rate that worked for the large batch "
              "(AdamW hides it)",
      cause="the loss of a micro-batch isn't divided by the number of micro-batches",
      cure="divide before `backward`")  # fmt: skip
def not_divided(cured):
    def step(model, optimizer):
        optimizer.zero_grad()
        losses = [model.loss(rows) / 4 for rows in draw_tokens(8).chunk(4)]
        for loss in losses:
            (loss if cured else 4 * loss).backward()
        optimizer.step()
        return sum(loss.item() for loss in losses)

    return difference(whole_step, step, partial(make_gpt, AdamW))


def whole_step(model, optimizer):
    return update(optimizer, model.loss(draw_tokens(8)))


# %% id="divided-twice"
@case(38, LOSS, JUDGE, ("^gradients", SAME), seen_in=ACCELERATE,
      reports="modelscope/ms-swift#10117",
      symptom="gradients are N times too small in a window of N micro-batches; AdamW "
              "hides it",
      cause="the loss is divided by the whole window's tokens, and the trainer divides "
            "by N once more",
      cure="multiply by N before accelerate's `backward`")  # fmt: skip
def divided_twice(cured):
    accelerator = Accelerator(gradient_accumulation_steps=4)

    def step(model, optimizer):
        optimizer.zero_grad()
        losses = [model.loss(rows) / 4 for rows in draw_tokens(8).chunk(4)]
        for loss in losses:
            accelerator.backward(4 * loss if cured else loss)
        optimizer.step()
        return sum(loss.item() for loss in losses)

    return difference(whole_step, step, make_gpt)


# %% id="hooked-tiles"
@case(46, LOSS, JUDGE, ("^gradients", SAME),
      reports="axolotl-ai-cloud/axolotl#3666",
      symptom="an MLP in tiles: the loss falls, but the gradients of its weights are "
              "too large",
      cause="each tile puts one more hook on the weights, so the last tile counts "
            "once for each hook; and the sum is divided by the number of tiles",
      cure="let autograd add up: tiles are parts of one sum")  # fmt: skip
def hooked_tiles(cured):
    class Tiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, run, weights, x):
            ctx.run, ctx.x = run, x.detach()
            ctx.sums = {} if cured else {w: torch.zeros_like(w) for w in weights}
            return run(x)

        @staticmethod
        def backward(ctx, slope):
            of_x, hooks = [], []
            for last, (rows, theirs) in enumerate(
                zip(ctx.x.chunk(2), slope.chunk(2), strict=True)
            ):
                for weight in ctx.sums:
                    add = partial(add_up, ctx.sums, weight, last)
                    hooks.append(weight.register_hook(add))
                rows = rows.requires_grad_()
                with torch.enable_grad():
                    ctx.run(rows).backward(theirs)
                of_x.append(rows.grad)
            for hook in hooks:
                hook.remove()
            return None, None, torch.cat(of_x)

    def add_up(sums, weight, last, grad):
        sums[weight] += grad / 2
        if last:
            weight.grad = sums[weight]
        return sums[weight] if last else None

    def step(model, optimizer):
        for block in model.blocks:
            weights = [*block.mlp.parameters()]
            block.mlp.forward = partial(
                Tiled.apply, type(block.mlp).forward.__get__(block.mlp), weights
            )
        return update(optimizer, model.loss(draw_tokens(4)))

    return difference(
        lambda model, optimizer: update(optimizer, model.loss(draw_tokens(4))),
        step,
        make_gpt,
    )


# %% id="stepped-in-hooks"
@case(39, LOSS, COUNT, ("^4 updates", "^1 updates"),
      reports="pytorch/pytorch#124523 verl-project/verl#1295 jiaweizzhao/GaLore#78",
      symptom="with the optimizer in backward hooks, accumulation trains like small "
              "batches",
      cause="the hooks update in every micro-batch (and once for each reentrant "
            "checkpoint that shares the weight)",
      cure="update only in the window's last backward (gradients are kept until then, "
           "so nothing is saved)")  # fmt: skip
def stepped_in_hooks(cured):
    gpt, updates, last = make_gpt()[0], Counter(), False
    optimizers = {weight: SGD([weight], lr=0.1) for weight in gpt.parameters()}

    def hook(weight):
        if last or not cured:
            optimizers[weight].step()
            optimizers[weight].zero_grad()
            updates[weight] += 1

    for weight in optimizers:
        weight.register_post_accumulate_grad_hook(hook)
    for place in range(4):
        last = place == 3
        (gpt.loss(draw_tokens(8)[2 * place : 2 * place + 2]) / 4).backward()
    return f"{max(updates.values())} updates per window"


# %% id="logged-loss"
@case(25, LOSS, JUDGE, ("^loss", SAME),
      reports="Lightning-AI/pytorch-lightning#2569 huggingface/transformers#35438",
      symptom="the logged loss is N times too large, or too small, but the model is "
              "fine",
      cause="the logged loss isn't the one that the update minimized",
      cure="log the sum of the divided losses of the window")  # fmt: skip
def logged_loss(cured):
    def step(model, optimizer, num=4):
        optimizer.zero_grad()
        total = 0.0
        for rows in draw_tokens(8).chunk(num):
            loss = model.loss(rows) / num
            loss.backward()
            total = total + loss.item() if cured else loss.item()
        optimizer.step()
        return total

    return difference(partial(step, num=1), step, make_gpt)


# %% id="last-window"
@case(26, LOSS, JUDGE, ("^updates", SAME),
      reports="Lightning-AI/pytorch-lightning#19987 huggingface/accelerate#1847",
      symptom="an epoch makes fewer updates than it should, and its last gradients "
              "leak into the next one",
      cause="`if (i + 1) % num == 0` never updates with the last, shorter window",
      cure="update after the last one too, divided by that window's own length"
      )  # fmt: skip
def last_window(cured):
    def step(model, optimizer, num=4):
        optimizer.zero_grad()
        micro_batches = draw_tokens(10).split(8 // num)  # 2, 2, 2, 2, and 2 left over
        for place, rows in enumerate(micro_batches, start=1):
            window = num if place <= num else len(micro_batches) - num
            (model.loss(rows) / window).backward()
            if place % num == 0 or (cured and place == len(micro_batches)):
                optimizer.step()
                optimizer.zero_grad()

    return difference(partial(step_all, size=8), step, make_gpt)


def step_all(model, optimizer, size):
    for rows in draw_tokens(10).split(size):
        update(optimizer, model.loss(rows))


# %% id="clipped-pieces"
@case(28, LOSS, JUDGE, ("^gradients", SAME),
      reports="huggingface/transformers#23905 huggingface/accelerate#641",
      symptom="with accumulation and clipping the run is slower to learn",
      cause="gradients are clipped after each micro-batch",
      cure="clip once, after the last `backward` of the window")  # fmt: skip
def clipped_pieces(cured):
    def step(model, optimizer, num=4):
        optimizer.zero_grad()
        for rows in draw_tokens(8).chunk(num):
            (model.loss(rows) / num).backward()
            if not cured:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()

    return difference(partial(step, num=1), step, make_gpt)


# %% id="contrastive"
@case(31, LOSS, JUDGE, ("^loss", SAME),
      reports="luyug/GradCache#7 mlfoundations/open_clip#267",
      symptom="accumulating a contrastive loss gives a lower loss but a worse model",
      cause="each sample is compared only with its own micro-batch: fewer negatives",
      cure="cached gradients, as in lab 07: embed all, then embed again in "
           "micro-batches"
      )  # fmt: skip
def contrastive(cured):
    images = data.digits()[0][:16].double()

    def pair(model, x):
        return torch.stack([model(x), model(x.flip(-1))])  # two views: (2, B, D)

    def loss_of(views):
        logits = F.normalize(views[0]) @ F.normalize(views[1]).T / 0.1
        return F.cross_entropy(logits, torch.arange(len(logits)))

    def pieces(model, optimizer, num=4):
        losses = [loss_of(pair(model, x)) / num for x in images.chunk(num)]
        return update(optimizer, sum(losses))

    def cached(model, optimizer):
        optimizer.zero_grad()
        parts = images.chunk(4)
        with torch.no_grad():
            views = torch.cat([pair(model, x) for x in parts], dim=1)
        loss = loss_of(views.requires_grad_())
        loss.backward()
        for x, gradient in zip(parts, views.grad.chunk(4, dim=1), strict=True):
            pair(model, x).backward(gradient)
        optimizer.step()
        return loss.item()

    return difference(partial(pieces, num=1), cached if cured else pieces, make_vit)


# %% id="batch-statistics"
@case(32, LOSS, JUDGE, ("^(loss|gradients)", SAME),
      reports="google-research/tuning_playbook#69 run-ai/runai#14",
      symptom="the same effective batch in smaller micro-batches is worse, though the "
              "loss is divided correctly",
      cause="BatchNorm normalizes each micro-batch by its own statistics",
      cure="GroupNorm, SyncBatchNorm for ranks, or frozen statistics")  # fmt: skip
def batch_statistics(cured):
    def step(model, optimizer, num=4):
        optimizer.zero_grad()
        total = 0.0
        for x in data.image_batch(16, 3, 8).double().chunk(num):
            loss = model(x).logsumexp(-1).mean() / num
            loss.backward()
            total += loss.item()
        optimizer.step()
        return total

    make = partial(make_resnet, partial(nn.GroupNorm, 4) if cured else None)
    return difference(partial(step, num=1), step, make)


# %% id="low-precision-sum"
@case(33, LOSS, COUNT, ("^more than 1 in 1000$", "^less than 1 in 1000$"),
      reports="huggingface/trl#2175",
      symptom="with many accumulation steps in bfloat16 the model stops learning",
      cause="a bfloat16 sum has 8 bits: a small gradient added to a large one vanishes",
      cure="add up in float32")  # fmt: skip
def low_precision_sum(cured):
    gpt = make_gpt()[0].to(torch.bfloat16)
    seen = [torch.zeros(p.shape, dtype=torch.float64) for p in gpt.parameters()]
    kept = [s.to(torch.float32 if cured else torch.bfloat16) for s in seen]
    for rows in draw_tokens(128):
        gradients = torch.autograd.grad(gpt.loss(rows[None]), list(gpt.parameters()))
        for total, exact, gradient in zip(kept, seen, gradients, strict=True):
            total += gradient.to(total.dtype)
            exact += gradient
    off = max(float((k - s).norm() / s.norm()) for k, s in zip(kept, seen, strict=True))
    return "more than 1 in 1000" if off > 1e-3 else "less than 1 in 1000"


# %% [markdown] id="flag-text"
# ## Scripts: errors and flags
#
# These runs stop with an error, or warn. Nearly half use the reentrant checkpoint, PyTorch's older
# implementation. To avoid it, pass `use_reentrant=False` in every call.


# %% id="frozen-input"
@case(1, FLAG, ERROR, ("element 0 of tensors does not require grad", NOTHING_RAISED),
      reports="huggingface/transformers#21381 huggingface/transformers#23170 "
              "pytorch/pytorch#7617",
      symptom="LoRA or frozen embeddings with checkpointing: nothing requires a "
              "gradient",
      cause="the reentrant checkpoint looks only at its inputs, and none needs a "
            "gradient",
      cure="`use_reentrant=False`, or transformers' `enable_input_require_grads()`"
      )  # fmt: skip
def frozen_input(cured):
    gpt, _ = make_gpt()
    gpt.requires_grad_(False)
    gpt.blocks.requires_grad_(True)
    run = partial(checkpoint, use_reentrant=not cured)
    return raised(lambda: gpt_loss(gpt, run).backward())


# %% id="growing-cache"
@case(6, FLAG, ERROR, ("CheckpointError.*different metadata", NOTHING_RAISED),
      reports="pytorch/pytorch#155171",
      symptom="the first step works; later the recomputed tensors have a different "
              "shape",
      cause="forward appends to a cache of keys, and recomputation appends once more",
      cure="no cache in training")  # fmt: skip
def growing_cache(cured):
    def run(block, x, cache):
        cache = [] if cured else cache
        cache.append(block.norm_1(x))
        keys = torch.cat(cache, dim=1)
        return x + F.scaled_dot_product_attention(x, keys, keys)

    cache = []  # of one layer
    gpt, _ = make_gpt(num_layers=1)
    checkpointed = lambda block, x: non_reentrant(run, block, x, cache)  # noqa: E731
    return raised(lambda: gpt_loss(gpt, checkpointed).backward())


# %% id="popped-inside"
@case(8, FLAG, ERROR, ("IndexError: pop from empty list", NOTHING_RAISED),
      reports="",
      symptom="a U-Net raises `pop from empty list` in backward, on its way up",
      cause="the skip is popped inside the checkpointed part, which runs twice",
      cure="pop outside, and pass the tensor")  # fmt: skip
def popped_inside(cured):
    conv = nn.Conv2d(8, 4, 3, padding=1)
    skips = [torch.ones(2, 4, 8, 8, requires_grad=True) for _ in range(2)]

    def up(x, skip=None):
        return conv(torch.cat([x, skips.pop() if skip is None else skip], dim=1))

    def train(x):
        while skips:
            x = non_reentrant(up, x, *([skips.pop()] if cured else []))
        x.sum().backward()

    return raised(lambda: train(torch.ones(2, 4, 8, 8)))


# %% id="functional-gradient"
@case(10, FLAG, ERROR, ("RuntimeError", NOTHING_RAISED),
      reports="pytorch/pytorch#51743 pytorch/pytorch#102223",
      symptom="`torch.autograd.grad`, or `backward(inputs=...)`, raises an error",
      cause="the reentrant checkpoint runs a backward of its own, which cannot take "
            "`inputs`",
      cure="`use_reentrant=False`")  # fmt: skip
def functional_gradient(cured):
    gpt, _ = make_gpt()
    run = partial(checkpoint, use_reentrant=not cured)
    return raised(
        lambda: torch.autograd.grad(gpt_loss(gpt, run), list(gpt.parameters()))
    )


# %% id="dictionary"
@case(11, LOSS, JUDGE, ("^gradients", SAME),
      reports="",
      symptom="some layers keep their first weights: they never get a gradient",
      cause="the reentrant checkpoint sees tensors among its arguments, but none "
            "inside a dict",
      cure="`use_reentrant=False`")  # fmt: skip
def dictionary(cured):
    def run(block, x):
        return checkpoint(lambda d: block(d["x"]), {"x": x}, use_reentrant=not cured)

    step = lambda model, how: update(how, gpt_loss(model, run))  # noqa: E731
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return difference(plain_step, step, make_gpt)


# %% id="flag-left-out"
@case(12, FLAG, ERROR, ("use_reentrant parameter should be passed explicitly",
"^no warning$"),
      reports="pytorch/pytorch#65537",
      symptom="a warning in every run: pass `use_reentrant` explicitly",
      cause="the flag was left out; without it the older implementation runs",
      cure="`use_reentrant=False`")  # fmt: skip
def flag_left_out(cured):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        flag = {"use_reentrant": False} if cured else {}
        checkpoint(torch.sin, torch.ones(3, requires_grad=True), **flag)
    return " ".join(str(seen[0].message).split()) if seen else "no warning"


# %% id="per-sample"
@case(45, FLAG, ERROR, ("RuntimeError.*(saved tensor hooks|vmap over)", NOTHING_RAISED),
      reports="pytorch/pytorch#165880 pytorch/pytorch#141845",
      symptom="per-sample gradients: `torch.func` does not support saved tensor hooks",
      cause="the checkpoint is made of such hooks, which `grad`, `vjp` and `jacrev` "
            "refuse",
      cure="no checkpoint there; fewer samples at once by `vmap(..., chunk_size=2)`"
      )  # fmt: skip
def per_sample(cured):
    mlp = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))

    def loss(weights, x):
        run = plain if cured else non_reentrant
        return run(lambda x: functional_call(mlp, weights, (x,)).square().mean(), x)

    gradients = vmap(grad(loss), (None, 0), chunk_size=2 if cured else None)
    return raised(lambda: gradients(dict(mlp.named_parameters()), torch.ones(8, 16)))


# %% id="cache-asked-for"
@case(15, FLAG, COUNT, ("^None$", "^DynamicCache$"), seen_in=HF,
      reports="huggingface/transformers#28056 huggingface/trl#3683",
      symptom="`use_cache=True` is incompatible with gradient checkpointing, says a "
              "warning",
      cause="in `train()` the library turns the cache off while it checkpoints, so "
            "`generate()` crawls",
      cure="`use_cache=False` in training; `model.eval()` before `generate()`"
      )  # fmt: skip
def cache_asked_for(cured):
    llama = make_llama().train(not cured)
    cache = llama(torch.arange(24).view(2, 12), use_cache=True).past_key_values
    return "None" if cache is None else type(cache).__name__


# %% id="ready-twice"
@case(17, FLAG, ERROR, ("Expected to mark a variable ready only once", NOTHING_RAISED),
      reports="huggingface/peft#313 huggingface/accelerate#3536 huggingface/trl#4782",
      symptom="DDP: a parameter is marked ready twice",
      cause="reentrant checkpoints under `find_unused_parameters=True`",
      cure="`use_reentrant=False`, or DDP's `static_graph=True`")  # fmt: skip
def ready_twice(cured):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.gpt = make_gpt()[0]

        def forward(self, tokens):
            return gpt_loss(
                self.gpt, partial(checkpoint, use_reentrant=not cured), tokens
            )

    replicas = [Checkpointed() for _ in range(2)]

    def work(rank):
        model = DistributedDataParallel(replicas[rank], find_unused_parameters=True)
        model(draw_tokens(2)).backward()

    return raised(lambda: ranks.in_threads(work, 2))


# %% id="shared-weight"
@case(21, FLAG, ERROR, ("_to_copy.*not.*found in storage", NOTHING_RAISED),
      reports="pytorch/pytorch#193338",
      symptom="selective checkpointing under autocast: `_to_copy` is not found in "
              "storage",
      cause="autocast keeps one cast copy of a weight that two checkpointed regions "
            "share",
      cure="`autocast(..., cache_enabled=False)`")  # fmt: skip
def shared_weight(cured):
    layer, x = nn.Linear(16, 16), torch.ones(4, 16, requires_grad=True)
    save = partial(
        create_selective_checkpoint_contexts, [torch.ops.aten._to_copy.default]
    )

    def train():
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=not cured):
            y = checkpoint(layer, x, use_reentrant=False, context_fn=save)
            y = checkpoint(layer, y, use_reentrant=False, context_fn=save)
        y.float().sum().backward()

    return raised(train)


# %% id="unscaled-twice"
@case(28, FLAG, ERROR,
      ("RuntimeError: unscale_.. has already been called", NOTHING_RAISED),
      reports="huggingface/transformers#23905 pytorch/examples#1196",
      symptom="`unscale_()` has already been called on this optimizer",
      cause="gradients are unscaled, and clipped, in each micro-batch",
      cure="unscale, clip and step once per window")  # fmt: skip
def unscaled_twice(cured):
    def train():
        model, optimizer = make_gpt()
        scaler = torch.amp.GradScaler("cpu")
        for place, rows in enumerate(draw_tokens(4).chunk(2), start=1):
            scaler.scale(model.loss(rows) / 2).backward()
            if place == 2 or not cured:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)

    return raised(train)


# %% [markdown] id="try-text"
# ## Try one
#
# `show` runs a case twice, once as reported and once cured. It also says whether both results are
# the same as when this page was written.


# %% id="try"
def changed(name):
    """Return what a case shows now and did not show then; empty if nothing changed."""
    about = CASES[name]
    for cured, pattern in enumerate(about["shows"]):
        try:
            seen = str(about["run"](bool(cured)))
        except Exception as error:
            seen = repr(error)
        if not re.search(pattern, seen):
            state = "cured" if cured else "as reported"
            return (f"PyTorch {torch.__version__}, transformers "
                    f"{transformers.__version__} changed case {about['number']} "
                    f"({name}): {state} it shows {seen!r}, but it used to show "
                    f"{pattern!r}.")  # fmt: skip
    return ""


def show(run):
    for cured in (False, True):
        print(f"{'cured' if cured else 'as reported':<12} {run(cured)}")
    print(changed(run.__name__) or "as when this page was written")


show(late_lambda)

# %% id="try-another"
show(middle_forgotten)

# %% [markdown] id="tables-text"
# ## The tables
#
# The last column names the instrument that shows the fault, the case's script, bug reports if there
# are any, and the versions in which we saw the fault.


# %% id="table"
def link(report):  # as in owner/repository#number
    repository, number = report.split("#")
    address = f"https://github.com/{repository}/issues/{number}"
    return f"[{repository.split('/')[1]}#{number}]({address})"


def table(asks):
    heads = "symptom", "cause and cure", "shown by, script, reports, seen in"
    lines = [f"| {' | '.join(heads)} |", "|---|---|---|"]
    for name, about in CASES.items():
        if about["asks"] == asks:
            links = map(link, about["reports"].split())
            cause = f"{about['cause']}<br>**Cure:** {about['cure']}"
            where = [about["caught_by"], f"`{name}`", *links, about["seen_in"]]
            lines.append(f"| {about['symptom']} | {cause} | {'<br>'.join(where)} |")
    return Markdown("\n".join([f"### {asks}", "", *lines]))


table(MEMORY)

# %% id="table-loss"
table(LOSS)

# %% id="table-flag"
table(FLAG)
