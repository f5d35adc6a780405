"""Fine-tune a Llama on one card of 16 GiB: LoRA beside weights of 4 bits, and four levers more.

    python course/train/qlora.py --text my.txt --model FOLDER   a Llama from its folder
    python course/train/qlora.py --text my.txt      random weights, as many as Llama 3.2 3B
    python course/train/qlora.py --twin             a small one, on any computer

Each lever can be left out: `--without packing`, and so on; without checkpoints nothing is offloaded
either. The losses stay the same; what is in memory doesn't. bitsandbytes' layers do what
`FourBitLinear` does, in kernels for GPUs.
"""

import argparse
from functools import partial
from pathlib import Path

import planned
import torch
from peft.tuners.lora import Linear as LoRA
from torch import nn
from torch.nn import functional as F
from torch.optim import AdamW
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM

from tutorial_lib import data, device, memory
from tutorial_lib.instruments import published, segments

LEVERS = ("packing", "chunks", "checkpoints", "offload", "four-bits")
SHAPE = {  # of Llama 3.2 3B
    **{"hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24},
    "tie_word_embeddings": True,
}
TWIN = planned.TWIN | {"hidden_size": 128}
ROWS = (5800, 1300, 700, 392)  # tokens of the four texts of one update


def linear_of_4_bits(x, *four_bits):
    """Compute a linear layer; backward makes its whole weight once more."""

    def compute(x):
        return F.linear(x, planned.from_4_bits(*four_bits).to(x.dtype))

    return checkpoint(compute, x, use_reentrant=False)


def rounded(linear):
    """Return the same layer with the numbers that 4 bits hold, in its own dtype."""
    weight = planned.from_4_bits(*planned.to_4_bits(linear.weight), linear.weight.shape)
    linear.weight = nn.Parameter(weight.to(linear.weight.dtype), requires_grad=False)
    return linear


def with_lora(model, four_bits=True):
    """Put LoRA's matrices beside each linear layer of the blocks, and round what they are beside.

    The matrices are float32, and all that is trained.
    """
    to_4_bits = partial(planned.FourBitLinear, function=linear_of_4_bits)
    for module in planned.lora(model).modules():
        if isinstance(module, LoRA):
            module.lora_A.float()
            module.lora_B.float()
            module.base_layer = (to_4_bits if four_bits else rounded)(module.base_layer)
    return model


def update(rows, levers, model, optimizer, scaler):
    """Do one update with some texts, each a tensor of tokens; return the mean loss, a tensor."""
    optimizer.zero_grad()
    place = model.lm_head.weight.device
    batch = (planned.packed if "packing" in levers else planned.padded)(rows)
    ids, targets, positions = (tensor.to(place) for tensor in batch)
    called = planned.offloaded if "offload" in levers else planned.checkpointed
    block = called if "checkpoints" in levers else planned.plainly
    loss_of = planned.chunked if "chunks" in levers else planned.usual
    with segments.called_through(block, model.model.layers):
        hidden = model.model(input_ids=ids, position_ids=positions).last_hidden_state
        loss = loss_of(model.lm_head, hidden.flatten(0, 1), targets.flatten())
        loss = loss / (targets >= 0).sum()
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


def make(shape, levers, folder=None):
    """Return the model, the optimizer of what it trains, and a scaler, which float16 needs."""
    torch.manual_seed(0)
    if folder:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=shape["dtype"])
    else:
        model = published.build(planned.NAME, device=torch.get_default_device(), **shape)
    model = with_lora(model.requires_grad_(False), "four-bits" in levers)
    trained = [p for p in model.parameters() if p.requires_grad]
    scaler = torch.amp.GradScaler("cuda", enabled=shape["dtype"] == torch.float16)
    return model, AdamW(trained, lr=1e-4), scaler


def make_step(without="", tokens=ROWS):
    """Return an update of the full size, for `memory.predict` and `predict FILE:FUNCTION`."""
    levers = set(LEVERS) - {without}
    rows = [torch.zeros(length, dtype=torch.long) for length in tokens]
    model, optimizer, scaler = make(SHAPE | {"dtype": torch.bfloat16}, levers)
    return partial(update, rows, levers, model, optimizer, scaler), model, optimizer


def main(options):
    """Train, and print the loss of each update; on a GPU its peak, too."""
    levers = set(LEVERS) - set(options.without)
    place = torch.device("cpu") if options.twin else device.pick()
    kind = torch.bfloat16 if place.type == "cpu" or torch.cuda.is_bf16_supported(False) else None
    shape = TWIN if options.twin else SHAPE | {"dtype": kind or torch.float16}
    model, optimizer, scaler = make(shape, levers, options.model)
    model.to(place)
    text = data.encode(Path(options.text).read_text("utf-8") if options.text else data.text())
    sizes = [length // 64 if options.twin else length for length in ROWS]
    for number in range(options.updates):
        rows = text.roll(-number * sum(sizes))[: sum(sizes)].split(sizes)
        with memory.watch(model=model) as report:
            loss = update(rows, levers, model, optimizer, scaler)
        print(f"update {number + 1}: loss {loss.item():.4f}, peak {report.peak_bytes}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--twin", action="store_true", help="a small model, on the CPU")
    parser.add_argument("--model", help="folder of a Llama's checkpoint")
    parser.add_argument("--text", help="a text file [default: Python's standard library]")
    parser.add_argument("--updates", type=int, default=8)
    parser.add_argument("--without", action="append", default=[], choices=LEVERS)
    main(parser.parse_args())
