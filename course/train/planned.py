"""Fine-tune a Llama by a plan: `python course/train/planned.py plan.json` proves one on a twin.

A plan names a function for each of four choices: how rows become a batch, how a block is called,
how the loss is taken, what is trained. The plainest ones come first. The notebook
`14_putting_it_together` writes others by hand; those below are what libraries have ready.
"""

import json
import sys
from functools import partial
from pathlib import Path

import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.optim import AdamW
from torch.utils.checkpoint import checkpoint

from tutorial_lib import data
from tutorial_lib.checks import assert_same_training
from tutorial_lib.instruments import published, segments

NAME = "llama-3-8b"
FULL = {"dtype": torch.bfloat16}
TWIN = {
    **{"dtype": torch.float32, "hidden_size": 64, "intermediate_size": 128},
    **{"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2},
    "vocab_size": 256,
}
LENGTHS = (5800, 1300, 700, 392)  # tokens of the four conversations of the case
ROWS = data.encode(data.text())[:82].split((58, 13, 7, 4))  # four texts for the twin


def next_tokens(row):
    """What each token is to guess; the last one has no next, and counts for nothing."""
    return F.pad(row[1:], (0, 1), value=-100)


def padded(rows):
    """Tokens, targets and positions, each of the shape (rows, longest row)."""
    ids = pad_sequence(rows, batch_first=True)
    targets = [next_tokens(row) for row in rows]
    targets = pad_sequence(targets, batch_first=True, padding_value=-100)
    return ids, targets, torch.arange(ids.size(1)).expand_as(ids)


def plainly(block, *args, **kwargs):
    """Call a block as it is."""
    return block(*args, **kwargs)


def usual(head, hidden, targets):
    """The loss of the tokens that count, summed."""
    return F.cross_entropy(head(hidden).float(), targets, reduction="sum")


def whole(model):
    """Train all weights."""
    return model


PLAINEST = {"batch": padded, "block": plainly, "loss": usual, "model": whole}


def make(plan, shape):
    """The model, random and by the plan, and the optimizer of what it trains."""
    torch.manual_seed(0)
    model = published.build(NAME, device=torch.get_default_device(), **shape)
    model = plan["model"](model)
    trained = [p for p in model.parameters() if p.requires_grad]
    return model, AdamW(trained, lr=1e-4, fused=True)


def update(plan, rows, model, optimizer):
    """Do one update; return the mean loss, a tensor without history."""
    optimizer.zero_grad()
    ids, targets, positions = plan["batch"](rows)
    with segments.called_through(plan["block"], model.model.layers):
        hidden = model.model(input_ids=ids, position_ids=positions).last_hidden_state
        loss = plan["loss"](model.lm_head, hidden.flatten(0, 1), targets.flatten())
        loss = loss / (targets >= 0).sum()
        loss.backward()
    optimizer.step()
    return loss.detach()


def first_loss(plan):
    """The twin's loss before the first update."""
    return update(plan, ROWS, *make(plan, TWIN)).item()


def make_step(plan):
    """The step of the full size, its model and its optimizer, for `memory.predict`."""
    rows = [torch.zeros(length, dtype=torch.long) for length in LENGTHS]
    model, optimizer = make(plan, FULL)
    return partial(update, plan, rows, model, optimizer), model, optimizer


def replace_linear(model, replacement):
    """Put `replacement(layer)` in the place of each linear layer of the blocks."""
    for module in list(model.model.layers.modules()):
        for name, layer in list(module.named_children()):
            if isinstance(layer, nn.Linear):
                setattr(module, name, replacement(layer))
    return model


def to_4_bits(weight):
    """Round to 15 even steps; two numbers in a byte, and a scale for each 64 of them."""
    rows = weight.detach().reshape(-1, 64)
    scale = rows.abs().amax(dim=1, keepdim=True) / 7
    number = (rows / scale).round().add(8).to(torch.uint8)
    return number[:, ::2] * 16 + number[:, 1::2], scale


def from_4_bits(pairs, scale, shape):
    """The whole weight again."""
    number = torch.stack([pairs // 16, pairs % 16], dim=2).flatten(1)
    return ((number.to(scale.dtype) - 8) * scale).view(shape)


class FourBitLinear(nn.Module):
    """A frozen linear layer in 4 bits; `function` computes, from x, pairs, scale and shape."""

    def __init__(self, linear, function):
        super().__init__()
        self.function, self.shape = function, linear.weight.shape
        pairs, scale = to_4_bits(linear.weight)
        self.register_buffer("pairs", pairs)
        self.register_buffer("scale", scale)

    def forward(self, x):
        return self.function(x, self.pairs, self.scale, self.shape)


def packed(rows):
    """The same as `padded`, all rows one after the other, each of the shape (1, tokens)."""
    parts = rows, map(next_tokens, rows), (torch.arange(len(row)) for row in rows)
    return tuple(torch.cat(tuple(part))[None] for part in parts)


def checkpointed(block, *args, **kwargs):
    """Call a block under a checkpoint."""
    return checkpoint(block, *args, use_reentrant=False, **kwargs)


def offloaded(block, *args, **kwargs):
    """The same, and its inputs wait on the host."""
    with save_on_cpu():
        return checkpointed(block, *args, **kwargs)


def chunked(head, hidden, targets, size=512):
    """The usual loss, a chunk of tokens at a time, so that the logits are never whole."""
    total = 0
    for part, theirs in zip(hidden.split(size), targets.split(size), strict=True):
        total = total + checkpoint(usual, head, part, theirs, use_reentrant=False)
    return total


def lora(model):
    """Train LoRA's matrices alone, beside each linear layer of the blocks."""
    names = {module: name for name, module in model.named_modules()}
    linear = [m for m in model.model.layers.modules() if isinstance(m, nn.Linear)]
    config = LoraConfig(r=16, lora_alpha=32, target_modules=[names[m] for m in linear])
    return inject_adapter_in_model(config, model)


LEVERS = {
    **{function.__name__: function for function in (*PLAINEST.values(), packed, checkpointed)},
    **{function.__name__: function for function in (offloaded, chunked, lora)},
    "lora_on_4_bits": lora,  # 4 bits need a library for GPUs, and both runs would round alike
}


def read_plan(path):
    """Read a plan's four functions from a JSON file.

    Raises:
        SystemExit: When it can't be read, or a choice is missing or is none of `LEVERS`.
    """
    try:
        named = dict(json.loads(Path(path).read_text(encoding="utf-8")))
    except json.JSONDecodeError as error:
        raise SystemExit(f"{path} is no JSON, in line {error.lineno}: {error.msg}.") from None
    except (OSError, TypeError, ValueError) as error:
        raise SystemExit(
            f"{path} is no plan, an object with {', '.join(PLAINEST)}: {error}."
        ) from None
    for part in PLAINEST:
        if named.get(part) not in LEVERS:
            raise SystemExit(f"{part} is {named.get(part)!r}: name one of {', '.join(LEVERS)}.")
    return {part: LEVERS[named[part]] for part in PLAINEST}


def main(path):
    """Train the twin by a plan and with the plainest batch, block and loss; stop if they differ."""
    plan = read_plan(path)
    plain = PLAINEST | {"model": plan["model"]}
    steps = partial(update, plain, ROWS), partial(update, plan, ROWS)
    assert_same_training(*steps, make=partial(make, plan, TWIN), calls=3)


if __name__ == "__main__":
    main(sys.argv[1])
