"""What metering costs: python tests/benchmarks/meter_cost.py [--batch 8] [--pairs 15]

A training step of a 12-layer transformer of width 256, plain, under this course's meter, and under
PyTorch's own MemTracker, in turn. Printed: the medians of the paired ratios. Set-up and evaluation
(garbage collection, the report) are outside: they are paid once, however many steps are metered.
"""

import argparse
import statistics
import time

import torch
from torch.distributed._tools.mem_tracker import MemTracker

from tutorial_lib import memory
from tutorial_lib.models.gpt import GPT, GPTConfig


def seconds(step):
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=15)
    arguments = parser.parse_args()
    config = GPTConfig(vocab_size=1000, seq_len=128, num_layers=12, num_heads=4, d_model=256)
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = torch.randint(0, config.vocab_size, (arguments.batch, config.seq_len))

    def step():
        optimizer.zero_grad()
        model.loss(tokens).backward()
        optimizer.step()

    def metered():
        with memory.watch(model=model, optimizer=optimizer):
            return seconds(step)

    def tracked():
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            return seconds(step)

    for warm in (step, metered, tracked):
        warm()
    ratios = {"meter": [], "MemTracker": []}
    for _ in range(arguments.pairs):
        ratios["meter"].append(metered() / seconds(step))
        ratios["MemTracker"].append(tracked() / seconds(step))
    for name, values in ratios.items():
        spread = f"{min(values):.2f} to {max(values):.2f}"
        print(f"{name:<11} {statistics.median(values):.3f} of a plain step ({spread})")


if __name__ == "__main__":
    main()
