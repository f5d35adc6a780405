"""What compiling changes: python tests/benchmarks/compiled_peak.py [--batch 8] [--layers 4]

Under the meter a compiled model runs uncompiled, so its reading is a bound for the compiled step
only as far as fusing saves and does not cost. Here: a training step's peak above what stood before,
counted by the meter, and profiled plain and compiled (inductor: needs a C++ compiler, on a GPU
Triton). The profiler sees every request to the CPU's allocator, workspace included.
"""

import argparse

import numpy as np
import torch

from tutorial_lib import memory
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.units import human_bytes


def profiled_bytes(step):
    with torch.profiler.profile(profile_memory=True) as profiler:
        step()
    events = profiler.profiler.kineto_results.events()
    requests = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    return max(np.cumsum([num_bytes for _, num_bytes in requests]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--layers", type=int, default=4)
    arguments = parser.parse_args()
    config = GPTConfig(vocab_size=1000, seq_len=128, num_layers=arguments.layers, d_model=256)
    model = GPT(config)
    tokens = torch.randint(0, config.vocab_size, (arguments.batch, config.seq_len))

    def step(loss=model.loss):
        model.zero_grad()
        loss(tokens).backward()

    report = memory.measure(step, model=model)
    counted = report.peak_bytes - report.at_peak["parameters"] - tokens.nbytes
    model.zero_grad()
    plain = profiled_bytes(step)
    loss = torch.compile(model.loss)
    step(loss)
    model.zero_grad()
    compiled = profiled_bytes(lambda: step(loss))
    for name, peak in {"counted": counted, "plain": plain, "compiled": compiled}.items():
        print(f"{name:<9} {human_bytes(peak):>9}  {peak / counted:.3f} of the counted peak")


if __name__ == "__main__":
    main()
