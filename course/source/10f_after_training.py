# %% [markdown] id="title"
# # Reinforcement learning after training
#
# A language model can be trained further with rewards: it answers questions, a program scores the
# answers, and the better answers become more likely. Such training often runs out of memory, and
# not always in the update itself. You write four functions of a training step, and train a small
# model on its own answers.
#
# No lab and no later chapter needs this companion.
#
# **Budget:** 65 minutes, 2 GiB of memory, no GPU needed.

# %% id="imports"
from functools import partial
from unittest.mock import patch

import pandas as pd
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

from tutorial_lib import blanks, memory, plots
from tutorial_lib.guesses import beside
from tutorial_lib.instruments import published
from tutorial_lib.units import GIB

torch.set_num_threads(1)  # sums in one order

# %% [markdown] id="phases-text"
# ## Three phases on one card
#
# GRPO (Shao et al., 2024) is one way to train with rewards. The *policy* is the model being
# trained. The *reference* is a copy of the policy from before the training; a penalty keeps the
# policy close to the reference. One step has three phases:
#
# | phase | what happens | what it holds |
# |---|---|---|
# | rollout | an engine writes a group of answers to each prompt | its weights, and a cache |
# | log-probabilities | policy and reference compute how likely each token was | logits |
# | update | answers scored above their group's mean become likelier | gradients, activations |
#
# The inference *engine* holds its own copy of the policy's weights, in its own layout. Its *cache*
# keeps the keys and values of each token, so that the engine needn't process all earlier tokens
# again for each new token. The cache grows with every token of every answer.

# %% id="small"
SIZES = {"vocab_size": 5, "hidden_size": 64, "intermediate_size": 128, "head_dim": 24}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
NO_NAMES = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))


def small(**changes):
    torch.manual_seed(0)
    config = Qwen3Config(**SIZES | changes, **NO_NAMES)
    return Qwen3ForCausalLM(config).double()  # the same samples on every processor


# %% [markdown] id="cache-text"
# **Write.** `cache_bytes`, two lines. `config` has `num_hidden_layers` blocks, and each block has
# `num_key_value_heads` heads for keys and values. For each token, each of these heads caches one
# key and one value, two vectors of `head_dim` numbers.


# %% id="cache-bytes"
def cache_bytes(config, tokens, num_bytes=2):
    """Return the bytes of `tokens` tokens' keys and values, `num_bytes` per number."""
    ### BEGIN SOLUTION
    of_a_block = 2 * config.num_key_value_heads * config.head_dim
    return config.num_hidden_layers * of_a_block * tokens * num_bytes
    ### END SOLUTION


# %% id="check-cache-bytes"
# @title Check: run this cell
@blanks.check("cache_bytes", "return a number of bytes")
def cache_is_right():
    for heads, layers in ((2, 2), (1, 3)):
        model = small(num_key_value_heads=heads, num_hidden_layers=layers)
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model(torch.zeros(3, 10, dtype=torch.long), None, None, cache)
        true = sum(one.keys.nbytes + one.values.nbytes for one in cache.layers)
        seen = cache_bytes(model.config, 30, num_bytes=8)
        assert seen == true, (
            f"3 answers of 10 tokens, {heads} key-value heads, {layers} blocks: a real "
            f"cache has {true} bytes, but yours has {seen}."
        )


# %% [markdown] id="ledger-text"
# Now take a real model. Qwen3-1.7B has 28 blocks, each with 8 key-value heads of width 128. It
# writes 64 answers, each of up to 4096 tokens after a 512-token prompt. The policy is float32 and
# trains under autocast with AdamW; reference and engine are bfloat16. The update processes four
# answers at a time and checkpoints every block.
#
# **Predict.** The engine's copy of the weights takes 3.2 GiB. How many GiB does the engine's cache
# take at most?

# %% id="guess-cache"
guess = None  # GiB

# %% id="real"
PROMPT, LONGEST, ANSWERS, MICRO = 512, 4096, 64, 4
model = published.build("qwen3-1.7b")
config, weights = model.config, sum(p.numel() for p in model.parameters())
cache = cache_bytes(config, ANSWERS * (PROMPT + LONGEST))
print(f"the cache: {cache / GIB:.1f} GiB{beside(guess, cache / GIB)}")


# %% [markdown] id="end-text"
# As in chapter 10d, we predict the memory of the model's last part, from the hidden rows to the
# loss. `usual` returns one log-probability per token of an answer. It doesn't sum them, because the
# loss weights each token differently.


# %% id="usual"
def usual(head, hidden, targets):
    """Return each target's log-probability, `(tokens,)`, in float32 or higher."""
    logits = head(hidden)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]


def end_of(way, train, tokens=MICRO * LONGEST):
    """Predict the bytes that log-probabilities add to rows and head."""

    with memory.predicting():
        kind = torch.bfloat16
        head = nn.Linear(config.hidden_size, config.vocab_size, bias=False, dtype=kind)
        rows = nn.Parameter(torch.randn(tokens, config.hidden_size, dtype=kind))
        targets = torch.randint(config.vocab_size, (tokens,))
        for weight in (head.weight, rows):  # a later micro-batch: gradients are there
            weight.grad = torch.zeros_like(weight)
        with memory.watch() as report, torch.set_grad_enabled(train):
            loss = way(head, rows, targets).sum()
            if train:
                loss.backward()
    return report.peak_bytes - report.baseline_bytes


# %% [markdown] id="ledgers-text"
# `ledgers` adds up each phase's memory. In the update, checkpoints keep the blocks' inputs. The
# logits are freed before a block is recomputed, so we add only the larger: the logits, or one
# recomputed block. The float32 gradients stay in memory from the first micro-batch on. With
# `asleep=True`, the engine frees its memory while it isn't writing.


# %% id="ledgers"
def block_bytes(length=PROMPT + LONGEST):
    """Predict what a recomputed block and the last norm keep for one micro-batch."""
    with memory.predicting():
        sizes, kind = {"num_hidden_layers": 1, "vocab_size": 8}, torch.bfloat16
        body = published.build("qwen3-1.7b", device="cpu", dtype=kind, **sizes).model
        rows = torch.randn(MICRO, length, config.hidden_size, dtype=kind)
        forward = lambda: body(inputs_embeds=rows).last_hidden_state  # noqa: E731
        return memory.saved(forward, params_of=body).num_bytes


block = block_bytes()


def ledgers(way, asleep):
    """Return each phase's bytes by category: on paper, but with predicted logits."""
    always = {"parameters": (4 + 2) * weights, "optimizer_state": 8 * weights}
    awake = {"parameters": (4 + 2 + 2) * weights, "temporary": cache}
    beside_it = always | ({} if asleep else awake)
    idle = beside_it.get("temporary", 0)
    asking = {"temporary": idle + end_of(way, train=False)}
    boundary = MICRO * (PROMPT + LONGEST) * config.hidden_size * 2
    held = {"gradients": 4 * weights}
    held["activations"] = config.num_hidden_layers * boundary
    training = held | {"temporary": idle + max(block, end_of(way, train=True))}
    phases = always | awake, beside_it | asking, beside_it | training
    return dict(zip(("rollout", "log-probabilities", "update"), phases, strict=True))


found = ledgers(usual, asleep=False)
plots.ledger_bars(
    found,
    title="Qwen3-1.7B, one step by phase, engine always awake",
    cards_gib=(80,),
    predicted=[*found],
)

# %% [markdown] id="read-ledgers"
# Rollout and log-probabilities fit on an 80 GiB card. The update doesn't, even for a model of 1.7
# billion parameters. The yellow part of its bar is the engine's cache, which the update doesn't
# need, and the logits of four whole answers.
#
# ## The engine sleeps
#
# Between rollouts nothing needs the cache or the engine's weights, so the engine frees both. When
# it wakes, it copies the policy's weights, which have changed anyway.
#
# **Write.** The rest of `wake`. `weight.data = ...` gives a parameter a different tensor. A real
# engine has its own layout, so the new tensor must be a copy, in the engine's dtype.


# %% id="sleep"
def fall_asleep(engine):
    """Free the engine's weights, and remember their dtype."""
    for weight in engine.parameters():
        weight.data = weight.new_empty(0)


# %% id="wake"
def wake(engine, policy):
    """Copy the policy's weights, as they are now, into a sleeping engine."""
    pairs = zip(engine.parameters(), policy.parameters(), strict=True)
    ### BEGIN SOLUTION
    for weight, theirs in pairs:
        weight.data = theirs.detach().to(weight.dtype, copy=True)
    ### END SOLUTION


# %% id="check-wake"
# @title Check: run this cell
@blanks.check("wake", "give the engine's parameters new data")
def wakes():
    policy, engine = small(), small().float()
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(1)
    was = [weight.detach().clone() for weight in policy.parameters()]
    fall_asleep(engine)
    wake(engine, policy)
    weights = [*engine.parameters()]
    assert all(weight.numel() for weight in weights), "A weight of the engine is empty."
    assert all(weight.dtype == torch.float32 for weight in weights), (
        "The engine had float32 weights, but now has others: keep its dtype."
    )
    same = [torch.equal(mine, w.float()) for mine, w in zip(weights, was, strict=True)]
    assert all(same), "The engine's weights aren't the policy's current weights."
    assert all(weight.requires_grad for weight in policy.parameters())
    fall_asleep(engine.double())
    wake(engine, policy)
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(1)
    same = [
        torch.equal(mine, w) for mine, w in zip(engine.parameters(), was, strict=True)
    ]
    assert all(same), "An update of the policy changed the engine: it needs a copy."


# %% [markdown] id="log-probs-text"
# ## Log-probabilities without the logits
#
# 10d's loss is a plain sum of log-probabilities, so 10d's function could compute the gradients in
# forward. Here the loss takes an `exp` of each token's log-probability, and multiplies it by the
# answer's *advantage*, which compares the answer's score with its group's mean. A function that
# only returns log-probabilities doesn't know how the loss will use them, so it can't compute
# gradients yet.
#
# Checkpointed chunks still work: they return one log-probability per token.
#
# **Write.** `log_probs`, at most five lines, with `usual` and PyTorch's `checkpoint`
# (`use_reentrant=False`). `torch.cat` joins chunks.


# %% id="log-probs"
def log_probs(head, hidden, targets, size=512):
    """Return the same as `usual`, in checkpointed chunks of `size` tokens."""
    ### BEGIN SOLUTION
    parts = []
    for rows, theirs in zip(hidden.split(size), targets.split(size), strict=True):
        parts.append(checkpoint(usual, head, rows, theirs, use_reentrant=False))
    return torch.cat(parts)
    ### END SOLUTION


# %% id="check-log-probs"
# @title Check: run this cell
@blanks.check("log_probs", "return one number per token")
def are_log_probs():
    torch.manual_seed(0)
    head, hidden = nn.Linear(4, 64, bias=False), torch.randn(20, 4, requires_grad=True)
    targets, made = torch.randint(64, (20,)), []
    hook = head.register_forward_hook(lambda _, __, out: made.append(len(out)))
    with memory.watch() as report:
        seen = log_probs(head, hidden, targets, size=8)
    forward, true = list(made), usual(head, hidden, targets)
    assert seen.shape == (20,), f"20 tokens have 20 numbers, not {[*seen.shape]}."
    assert torch.allclose(seen, true), "The numbers differ from those of `usual`."
    assert forward == [8, 8, 4], f"The chunks have 8, 8 and 4 tokens, not {forward}."
    kept = sum(life.num_bytes for life in report.timeline if life.died is None)
    assert kept < 8 * 64 * 4, (
        f"{kept} bytes wait for backward: at least one chunk's logits (2048 bytes)."
    )
    made.clear()
    each = torch.arange(20.0)
    (slope,) = torch.autograd.grad((each * seen).sum(), hidden)
    hook.remove()
    (right,) = torch.autograd.grad((each * true).sum(), hidden)
    assert torch.allclose(slope, right, atol=1e-5), (
        "The numbers are right, but their gradients aren't."
    )
    assert made == forward[::-1], f"Backward makes the logits of {made} tokens again."


# %% id="both"
fits = ledgers(log_probs, asleep=True)
plots.ledger_bars(
    fits,
    title="The engine sleeps, and the logits are made in chunks",
    cards_gib=(24, 80),
    predicted=[*fits],
)

# %% [markdown] id="read-both"
# Now the peak is in the rollout. To lower it, let the engine write fewer answers at a time, or
# offload the optimizer states meanwhile (chapter 07d). LoRA saves more: few weights have states,
# and the reference is the policy with its adapters off, not a second model.
#
# ## Which tokens do you divide by?
#
# An update's loss is a mean over the tokens of *all* its answers, computed in micro-batches. So
# chapter 08 applies: count first, then divide each sum by the same number. But a wrong count is
# easily made here: one rollout may serve several updates.
#
# In the next cells, `batch` holds 64 answers. Its `mask` is 0 after the end of an answer.

# %% id="rollout"
END, LONGEST_SMALL, GROUP = 0, 16, 8  # the token that ends an answer, tokens, answers


@torch.no_grad()
def rollout(engine, prompts):
    """Sample answers to `(answers, 1)` prompts; return `(answers, 1 + length)`."""
    cache, tokens = DynamicCache(config=engine.config), prompts
    over = torch.zeros_like(prompts, dtype=torch.bool)
    while tokens.size(1) <= LONGEST_SMALL and not over.all():
        new = tokens[:, cache.get_seq_length() :]
        logits = engine(new, None, None, cache).logits[:, -1]  # new name in 5.24
        token = logits.softmax(-1).multinomial(1).masked_fill(over, END)
        tokens, over = torch.cat([tokens, token], 1), over | (token == END)
    return tokens


# %% id="score"
def score(tokens):
    """Return rewards and mask: one point for each token that repeats the prompt."""
    ends = tokens[:, 1:] == END
    mask = (ends.cumsum(1) - ends.long()) == 0  # the end itself counts
    hits = (tokens[:, 1:] == tokens[:, :1]) & mask
    return hits.sum(1).double() / LONGEST_SMALL, mask


def advantages(rewards):
    """Return how many standard deviations each reward is above its group's mean."""
    groups = rewards.view(-1, GROUP)
    spread = groups.std(1, keepdim=True) + 1e-4
    return ((groups - groups.mean(1, keepdim=True)) / spread).flatten()


# %% id="batch"
def of_tokens(model, tokens):
    """Return log-probabilities of the tokens after the prompt, `(answers, length)`."""
    hidden = model.model(tokens[:, :-1]).last_hidden_state
    targets = tokens[:, 1:]
    flat = log_probs(model.lm_head, hidden.flatten(0, 1), targets.flatten(), size=64)
    return flat.view_as(targets)


def make_batch(engine, reference, num_prompts=8):
    prompts = torch.randint(1, SIZES["vocab_size"], (num_prompts, 1))
    tokens = rollout(engine, prompts.repeat_interleave(GROUP, 0))
    rewards, mask = score(tokens)
    with torch.no_grad():
        before = torch.cat([of_tokens(reference, part) for part in tokens.split(16)])
    batch = {"tokens": tokens, "mask": mask, "reference": before}
    return batch | {"advantages": advantages(rewards)}, rewards


def split(batch, size):
    """Return micro-batches of `size` answers."""
    columns = (tensor.split(size) for tensor in batch.values())
    return [dict(zip(batch, row, strict=True)) for row in zip(*columns, strict=True)]


def token_losses(model, part):
    """Return each token's loss, `(answers, length)`; 0 after the end of an answer."""
    now = of_tokens(model, part["tokens"])
    apart, ratio = part["reference"] - now, (now - now.detach()).exp()
    penalty = 0.02 * (apart.exp() - apart - 1)
    return (penalty - ratio * part["advantages"][:, None]) * part["mask"]


policy, reference, engine = small(), small(), small()
torch.manual_seed(1)
batch, rewards = make_batch(engine, reference)
lengths = batch["mask"].sum(1)
print(f"tokens in an answer: {lengths.min()} to {lengths.max()}")


# %% [markdown] id="accumulate-text"
# **Write.** The rest of `accumulate`. Call backward for each micro-batch of `size` answers, so that
# the gradients add up to the gradient of the mean loss over all the tokens that count in `window`.


# %% id="accumulate"
def accumulate(model, window, size):
    """Add gradients of a window's mean loss to `.grad`, `size` answers at a time."""
    ### BEGIN SOLUTION
    tokens = window["mask"].sum()
    for part in split(window, size):
        loss = token_losses(model, part).sum() / tokens
        loss.backward()
    ### END SOLUTION


# %% id="check-accumulate"
# @title Check: run this cell
@blanks.check("accumulate", "call backward for each micro-batch")
def accumulates():
    torch.manual_seed(0)
    model, mask = small(), torch.arange(6) < torch.tensor([[1], [6], [2], [6]])
    window = {"tokens": torch.randint(5, (4, 7)), "mask": mask}
    window |= {"reference": -torch.rand(4, 6).double(), "advantages": torch.randn(4)}
    true, sizes, back, real = token_losses(model, window).sum(), [], [], token_losses
    wanted = torch.autograd.grad(true / mask.sum(), [*model.parameters()])

    def counted(model, part):
        sizes.append(len(part["mask"]))
        return real(model, part)

    model.model.norm.weight.register_hook(lambda _: back.append(len(sizes)))
    with patch.dict(globals(), token_losses=counted):
        accumulate(model, window, size=2)
    assert sizes == [2, 2], f"Expected losses of 2 and 2 answers, not {sizes}."
    assert back == [1, 2], "Call backward after each loss, or the graphs pile up."
    grads = [p.grad for p in model.parameters()]
    seen, right = (torch.cat([g.flatten() for g in of]) for of in (grads, wanted))
    times = (seen @ right / right.square().sum()).item()
    assert torch.allclose(seen, right), (
        f"The gradient is {times:.2f} times the whole window's, and apart from that "
        f"{((seen - times * right).norm() / right.norm()).item():.0%} off: every token "
        f"counts equally, and {mask.sum()} tokens count."
    )


# %% [markdown] id="reports-text"
# Three public threads from 2025 and 2026 describe four ways to get this division wrong. Our rollout
# has 64 answers, in 16 micro-batches of 4. It serves two updates, of eight micro-batches each.
#
# **Predict.** A trainer counts tokens once per rollout, so it divides each micro-batch's loss by
# the tokens of the whole *rollout*. How large is the first update's gradient, as a multiple of the
# right one?

# %% id="guess-reports"
guess = None  # times

# %% id="reports"
parts = split(batch, 4)
counts = [part["mask"].sum() for part in parts]
ours = sum(counts[:8])
DIVISORS = {
    "the update's tokens: right": [ours] * 8,
    "and by the trainer, by 8 (ms-swift#10117)": [8 * ours] * 8,
    "the rollout's tokens (trl#6024)": [sum(counts)] * 8,
    "four rollouts in an update (trl#6024)": [
        sum(counts[i - i % 2 : i - i % 2 + 2]) for i in range(8)
    ],
    "a micro-batch's own, then by 8 (trl#3021)": [8 * count for count in counts[:8]],
}


def gradient(divisors):
    model = small()
    for part, divisor in zip(parts, divisors, strict=False):  # the first eight
        (token_losses(model, part).sum() / divisor).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


# %% id="reports-table"
right, table = gradient(DIVISORS["the update's tokens: right"]), {}
for name, divisors in DIVISORS.items():
    seen = gradient(divisors)
    times = (seen @ right / right.square().sum()).item()
    away = ((seen / times - right).norm() / right.norm()).item()
    table[name] = [f"{times:.2f}", f"{away:.0%}"]
half = float(table["the rollout's tokens (trl#6024)"][0])
print(f"divided by the rollout's tokens: {half} times{beside(guess, half)}")
pd.DataFrame.from_dict(
    table, orient="index", columns=["times the right one", "besides, off by"]
)

# %% [markdown] id="read-reports"
# In the second row, the trainer also divides by its eight accumulation steps, so an eighth of the
# gradient is left. In the fourth row, an update has four rollouts' micro-batches, and each loss is
# divided only by its own rollout's tokens. The factors in the third and fourth rows would be a half
# and four if all answers were equally long.
#
# In the last two rows the *direction* is wrong too, because micro-batches with short answers weigh
# more.
#
# AdamW divides a gradient by its own size, so a constant factor hardly affects the loss curve. It
# does affect clipping and SGD.
#
# ## A run
#
# The small model reads a digit, and is rewarded for repeating it for 16 tokens. Its vocabulary has
# five tokens, and one of these ends the answer. At first the weights are random, so at each
# position the answer ends with a probability of about one fifth. Later answers are longer. **Does
# the peak grow with them?**


# %% id="step"
def grpo_step(policy, reference, engine, optimizer, size=32):
    """Run all three phases once; return the mean reward and the mean answer length."""
    wake(engine, policy)
    batch, rewards = make_batch(engine, reference)
    fall_asleep(engine)
    accumulate(policy, batch, size)
    optimizer.step()
    optimizer.zero_grad()  # now: otherwise the gradients stay during the rollout
    return rewards.mean().item(), batch["mask"].sum(1).double().mean().item()


optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3, weight_decay=0)
three = nn.ModuleList([policy, reference, engine])
fall_asleep(engine)
torch.manual_seed(1)
step = partial(grpo_step, policy, reference, engine, optimizer)
seen = [step()]
with memory.watch("The second step", model=three, optimizer=optimizer) as early:
    seen.append(step())
seen += [step() for _ in range(57)]
with memory.watch("The last step", model=three, optimizer=optimizer) as late:
    seen.append(step())

# %% id="curves"
longer = seen[-1][1] / seen[0][1]
print(f"answers are {longer:.1f} times as long as at first")
plots.training_curves(
    {
        "reward, 1 is all right": dict(enumerate(reward for reward, _ in seen)),
        "length, of 16 tokens": dict(enumerate(n / LONGEST_SMALL for _, n in seen)),
    },
    xlabel="steps of GRPO",
    ylabel="share",
    title="A model learns from rewards alone",
)

# %% id="timeline"
print(f"first peak: {early.peak_bytes}, last peak: {late.peak_bytes}")
plots.step_timeline(late)

# %% [markdown] id="read-timeline"
# Answers are now several times as long as at first, but the peak is the same. A batch is padded to
# its *longest* answer, and already in the second step, one of 64 answers reached the limit. So here
# the limit sets the peak. Test with answers of the maximum length.

# %% [markdown] id="on-paper"
# ## On paper
#
# **1.** Llama-3-8B has 32 blocks with 8 key-value heads of width 128. How much does one token's
# cache take in bfloat16, and how much do 64 answers of 4096 tokens take?
#
# <details><summary>Answer</summary>
#
# One token takes $2 \cdot 32 \cdot 8 \cdot 128 \cdot 2$ bytes, or 128 KiB. The answers have
# $2^{18}$ tokens, which take 32 GiB.
# </details>
#
# **2.** Two updates use the same rollout's answers. What must be stored for each token? And why
# would `now.detach()` in `token_losses` be wrong in the second update?
#
# <details><summary>Answer</summary>
#
# One number, the token's log-probability at the time of the rollout. At the second update the
# policy has changed, and the ratio must compare it with the policy that wrote the answer.
# </details>
#
# **3.** A rollout of 256 answers serves 4 updates. A trainer divides each loss by the whole
# rollout's tokens. You raise SGD's learning rate until the loss curve matches a correct trainer's.
# By what factor do you raise it?
#
# <details><summary>Answer</summary>
#
# By about 4. If answers differ in length, the four windows have different numbers of tokens, so no
# single factor is right for all.
# </details>
#
# ## What you can now do
#
# - Write a step's ledger by phase, and say which phase doesn't fit.
# - Free what a phase does not need: the engine's weights and cache, the logits.
# - Find out what a trainer divides by, and check its gradient against one whole window's.
