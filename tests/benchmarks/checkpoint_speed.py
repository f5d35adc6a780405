"""Lab 03's checkpoint beside PyTorch's: python tests/benchmarks/checkpoint_speed.py [--pairs 25]

Forward and backward of a 12-layer transformer of width 256, dropout on, every block checkpointed,
by the lab's solution and by PyTorch's non-reentrant form. In turn, the order swapped each time;
printed: both counted peaks, whether all gradients are the same bits as without a checkpoint, and
the median of the paired ratios with its quartiles. One thread, since other cores may be busy.
"""

import argparse
import statistics
import time
from functools import partial
from pathlib import Path

import torch
from torch.utils.checkpoint import checkpoint as torchs_checkpoint

from tutorial_lib import memory
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.school import authoring

SOLUTION = Path(__file__).resolve().parents[2] / "solutions" / "lab03_my_checkpoint.ipynb"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=25)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = GPTConfig(
        vocab_size=1000, seq_len=128, num_layers=12, num_heads=4, d_model=256, dropout=0.1
    )
    model = GPT(config)
    tokens = torch.randint(0, config.vocab_size, (arguments.batch, config.seq_len))
    calls = {
        "plain": lambda function, *args: function(*args),
        "torch": partial(torchs_checkpoint, use_reentrant=False),
        "lab03": authoring.load_definitions(SOLUTION).checkpoint,
    }

    def step(name):
        for block in model.blocks:
            block.forward = partial(calls[name], partial(type(block).forward, block))
        model.zero_grad()
        torch.manual_seed(0)
        model.loss(tokens).backward()

    def seconds(name):
        start = time.process_time()
        step(name)
        return time.process_time() - start

    exact = None
    for name in calls:
        step(name)
        gradients = [parameter.grad for parameter in model.parameters()]
        exact = exact or gradients
        same = all(map(torch.equal, gradients, exact))
        peak = memory.measure(partial(step, name), model=model).peak_bytes
        print(f"{name}: peak {peak:,} bytes, gradients {'equal' if same else 'DIFFERENT'}")
    ratios = []
    for number in range(arguments.pairs):
        order = ["lab03", "torch"] if number % 2 else ["torch", "lab03"]
        taken = {name: seconds(name) for name in order}
        ratios.append(taken["lab03"] / taken["torch"])
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"lab03 / torch: {middle:.3f} of the time (quartiles {low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
