"""What one of four FSDP2 ranks holds on an emulated card, with CPUOffloadPolicy and without.

    python -m tutorial_lib emulate --card a10 -- python course/recorded/make/fsdp_offload.py

prints the rows of `course/recorded/fsdp_offload.csv`: bytes of a GPT four times as wide as chapter
13d's, whose other three ranks are pretended, between steps and at the peak of the third step.
"""

import gc
import os

from functools import partial

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.nn import functional as F
from torch.optim import AdamW
from torch.utils.checkpoint import checkpoint

from tutorial_lib.instruments import ranks
from tutorial_lib.models.gpt import GPT, GPTConfig

os.environ["CUBLAS_WORKSPACE_CONFIG"] = (
    ":16:8"  # (and a warning): next to nothing: only tensors are to be seen
)


def row(offload: bool, recomputed: bool) -> tuple[int, int, int]:
    """Train three steps; bytes of the weights, of the card between steps, and of the last peak."""
    model = GPT(GPTConfig(num_layers=8, d_model=512, tie_weights=False))
    weights = sum(parameter.nbytes for parameter in model.parameters())
    choices = {"offload_policy": CPUOffloadPolicy(pin_memory=False)} if offload else {}
    if not offload:
        model.cuda()
    for block in model.blocks if recomputed else []:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    for module in (*model.blocks, model):
        fully_shard(module, mesh=init_device_mesh("cuda", (4,)), **choices)
    optimizer = AdamW(model.parameters(), foreach=False)
    tokens = torch.zeros(2, 128, dtype=torch.long, device="cuda")
    for _ in range(3):
        optimizer.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
    return weights, torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()


if __name__ == "__main__":
    print("offload,checkpoint,weights,between,peak")
    with ranks.pretend(4):
        for recomputed in (False, True):
            for offload in (False, True):
                print(offload, recomputed, *row(offload, recomputed), sep=",")
                gc.collect()
