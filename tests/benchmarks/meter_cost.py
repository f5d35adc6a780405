"""What metering costs: python tests/benchmarks/meter_cost.py [--only unet] [--pairs 15] [--tracker]

Training steps, plain and under this course's meter in turn, in CPU seconds of this process on one
thread. `step` is the metered step alone: set-up and evaluation (garbage collection, the report)
are outside, for they are paid once, however many steps are metered. `whole` is all of
`measure(warmup=0)`. Printed: the medians of the paired ratios. `--tracker` adds PyTorch's own
MemTracker.
"""

import argparse
import statistics
import time

import torch
from torch.distributed._tools.mem_tracker import MemTracker

from tutorial_lib import memory
from tutorial_lib.data import image_batch
from tutorial_lib.instruments import published
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.unet import UNet, UNetConfig


def gpt(batch):
    config = GPTConfig(vocab_size=1000, seq_len=128, num_layers=12, num_heads=4, d_model=256)
    model = GPT(config)
    tokens = torch.randint(0, config.vocab_size, (batch, config.seq_len))
    return model, lambda: model.loss(tokens)


def resnet50():
    model = published.build("resnet50", device="cpu")
    batch = published.batch("resnet50", 2, size=128)
    return model, lambda: published.loss("resnet50", model, batch)


def unet():
    model = UNet(UNetConfig())
    images, noise = image_batch(8, 1, 32), image_batch(8, 1, 32, seed=1)
    timesteps = torch.arange(8)
    return model, lambda: model.loss(images, timesteps, noise)


STEPS = {"gpt-8": lambda: gpt(8), "gpt-2": lambda: gpt(2), "resnet50": resnet50, "unet": unet}


def seconds(action):
    start = time.process_time()
    action()
    return time.process_time() - start


def ways(name):
    """Give the plain step, and by name what each way to meter it takes."""
    model, loss = STEPS[name]()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step():
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    def metered():
        with memory.watch(model=model, optimizer=optimizer):
            return seconds(step)

    def whole():
        return seconds(lambda: memory.measure(step, model=model, optimizer=optimizer, warmup=0))

    def tracked():
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            return seconds(step)

    return step, {"step": metered, "whole": whole, "MemTracker": tracked}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(STEPS))
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--tracker", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in [arguments.only] if arguments.only else STEPS:
        step, metered = ways(name)
        if not arguments.tracker:
            del metered["MemTracker"]
        for warm in (step, *metered.values()):
            warm()
        ratios = {way: [] for way in metered}
        for _ in range(arguments.pairs):
            for way, run in metered.items():
                ratios[way].append(run() / seconds(step))
        for way, values in ratios.items():
            spread = f"{min(values):.2f} to {max(values):.2f}"
            middle = statistics.median(values)
            print(f"{name:<9} {way:<11} {middle:.3f} of a plain step ({spread})", flush=True)


if __name__ == "__main__":
    main()
