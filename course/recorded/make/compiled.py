"""What a step holds at its peak as PyTorch's default compiler runs it, on a CPU.

    python course/recorded/make/compiled.py

prints the rows of `course/recorded/compiled.csv`: bytes above the model, its gradients and the
batch, as `torch.profiler` counts each allocation, and the CPU seconds that compiling took. The
step is that of pytorch/pytorch#193193: the same blocks run twice, first alone and then with a
context to look at (CoCa). Compiling on a CPU needs a C++ compiler. It takes some minutes.
"""

import os
import sys

import torch
from torch import Tensor, nn
from torch._inductor import config
from torch.nn import functional as F
from torch.profiler import profile
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS, ROWS, TOKENS = 128, 4, 4, 256
SETTINGS = (  # blocks, the passes through them, checkpointed, what is compiled
    *((3, "one", False, compiled) for compiled in ("nothing", "step", "block")),
    *((3, "one", True, compiled) for compiled in ("nothing", "step", "block")),
    *((3, "two", True, compiled) for compiled in ("nothing", "step", "block")),
    (3, "two, graph break between", True, "step"),
    *((6, "one", True, compiled) for compiled in ("nothing", "step", "block")),
)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.both = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        query = self.query(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        key, value = self.both(seen).unflatten(-1, (2, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(query, key, value)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.own, self.cross = Attention(), Attention()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        normed = self.norms[0](x)
        x = x + self.own(normed, normed)
        if context is not None:
            x = x + self.cross(self.norms[1](x), context)
        return x + self.down(F.gelu(self.up(self.norms[2](x))))


def through(blocks: nn.ModuleList, checkpointed: bool, x: Tensor, context: Tensor | None) -> Tensor:
    for block in blocks:
        if checkpointed:
            x = checkpoint(block, x, context, use_reentrant=False)
        else:
            x = block(x, context)
    return x.square().mean()


def loss_of(blocks: nn.ModuleList, passes: str, on: bool, x: Tensor, context: Tensor) -> Tensor:
    loss = through(blocks, on, x, None)
    if passes == "one":
        return loss
    if "break" in passes:
        torch._dynamo.graph_break()
    return loss + through(blocks, on, x, context)


def cpu_seconds() -> float:
    return sum(os.times()[:4])  # the C++ compiler's, too


def row(depth: int, passes: str, checkpointed: bool, compiled: str) -> tuple[int, float]:
    """Bytes at the peak of the third step, and CPU seconds of the first beyond the second."""
    torch.compiler.reset()
    torch.manual_seed(0)
    blocks = nn.ModuleList(Block() for _ in range(depth))
    for parameter in blocks.parameters():
        parameter.grad = torch.zeros_like(parameter)
    x, context = torch.randn(2, ROWS, TOKENS, WIDTH)
    run = torch.compile(loss_of) if compiled == "step" else loss_of
    for block in blocks if compiled == "block" else []:
        block.compile()

    def step() -> None:
        run(blocks, passes, checkpointed, x, context).backward()

    ends = [cpu_seconds()]
    for _ in range(2):
        step()
        ends.append(cpu_seconds())
    with profile(profile_memory=True) as profiler:
        step()
    events = profiler.profiler.kineto_results.events()
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes() if event.name() == "[memory]" else 0
        most = max(most, held)
    return most, ends[1] - ends[0] - (ends[2] - ends[1])


def main() -> None:
    torch.set_num_threads(1)
    config.force_disable_caches = True  # else a second run compiles nothing
    config.compile_threads = 1  # in this process, whose seconds are counted
    torch.compile(lambda x: x.exp().sum())(torch.ones(8, requires_grad=True)).backward()
    print("blocks,passes,checkpointed,compiled,torch,peak_bytes,compile_seconds", flush=True)
    for setting in SETTINGS if len(sys.argv) == 1 else [SETTINGS[int(i)] for i in sys.argv[1:]]:
        depth, passes, checkpointed, compiled = setting
        most, seconds = row(*setting)
        fields = depth, f'"{passes}"', checkpointed, compiled, torch.__version__, most
        print(*fields, f"{seconds:.0f}", sep=",", flush=True)


if __name__ == "__main__":
    main()
