"""The training steps that lab 02's checks measure: small, and each with a trap in it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn import functional as F

from tutorial_lib.checks.core import Case
from tutorial_lib.checks.given import observe
from tutorial_lib.checks.lab02.machine import PretendGPU

Step = Callable[[], Any]


def make_mlp(widths: Sequence[int]) -> nn.Sequential:
    """Build linear layers of these widths with a GELU between each two."""
    layers: list[nn.Module] = []
    for inner, outer in itertools.pairwise(widths):
        layers += [nn.Linear(inner, outer), nn.GELU()]
    return nn.Sequential(*layers[:-1])


# foreach makes a scalar that no operation shows: a meter takes it for an input of the step
make_optimizer = partial(observe.make_optimizer, foreach=False)


class ColdStep:
    """A training step whose first call tries out kernels, with workspace for each.

    Args:
        case: `widths`, `rows`, `optimizer`, `workspace`, in floats, and `kept`, the floats that
            each step leaves behind.
    """

    def __init__(self, case: Case) -> None:
        self.workspace = case["workspace"]
        self.model = make_mlp(case["widths"])
        self.optimizer = make_optimizer(case["optimizer"], self.model.parameters())
        self.x = torch.randn(case["rows"], case["widths"][0])
        self.num_kept, self.kept = case["kept"], list[Tensor]()
        self.calls = 0

    def __call__(self) -> None:
        """Do one step: zero, forward, backward, update."""
        self.calls += 1
        self.optimizer.zero_grad()
        self.kept.append(torch.zeros(self.num_kept))
        if self.calls == 1:
            torch.zeros(self.workspace)
        self.model(self.x).square().mean().backward()
        self.optimizer.step()


class Picker(nn.Module):
    """Keeps half of a wide result as a view, normalises, and gates by a softmax.

    Autograd saves views that keep more alive than they show, one storage through two views,
    weights behind a transpose, running averages, a buffer that no state_dict has, and a result of
    its own operation.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.norm = nn.BatchNorm1d(2 * width)
        self.gate = nn.Linear(2 * width, 2 * width)
        self.scale: Tensor
        self.register_buffer("scale", torch.linspace(1, 2, width), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(rows, width)` to `(rows, width)`."""
        picked, _ = self.up(x).chunk(2, dim=-1)  # the other half stays alive with it
        left, right = self.gate(self.norm(picked.square())).softmax(-1).chunk(2, dim=-1)
        gated: Tensor = left * right * self.scale
        return gated


class TimedBlock(nn.Module):
    """An MLP with a residual, whose forward and backward launch work on a pretended machine."""

    def __init__(self, gpu: PretendGPU, case: Case) -> None:
        super().__init__()
        width = case["width"]
        self.layers = make_mlp([width, 4 * width, width])
        self.gpu, self.forward_seconds = gpu, case["forward_seconds"]
        self.backward_seconds = case["backward_seconds"]

    def forward(self, x: Tensor) -> Tensor:
        """Map `(rows, width)` to `(rows, width)`."""
        self.gpu.launch(self.forward_seconds)
        y: Tensor = x + self.layers(x)
        if y.requires_grad:
            y.register_hook(self._launch_backward)  # type: ignore[no-untyped-call]
        return y

    def _launch_backward(self, gradient: Tensor) -> None:
        self.gpu.launch(self.backward_seconds)


class TimedTraining:
    """Twelve timed blocks, plain or each checkpointed, and their optimizer.

    Args:
        gpu: Where work is launched.
        case: `width`, `rows`, `optimizer`, `checkpointed`, `scratch` (floats that the loss takes
            for a moment), and the seconds of a block's forward and backward and of an update.
    """

    def __init__(self, gpu: PretendGPU, case: Case) -> None:
        self.gpu, self.case = gpu, case
        blocks = (TimedBlock(gpu, case) for _ in range(case["num_blocks"]))
        self.model = nn.ModuleList(blocks)
        self.optimizer = make_optimizer(case["optimizer"], self.model.parameters())
        self.x = torch.randn(case["rows"], case["width"])
        self.updates = 0
        self.optimizer.register_step_post_hook(self._updated)

    def loss(self) -> Tensor:
        """Run forward."""
        h = self.x
        for block in self.model:
            if self.case["checkpointed"]:
                h = torch.utils.checkpoint.checkpoint(block, h, use_reentrant=False)
            else:
                h = block(h)
        scratch = torch.zeros(self.case["scratch"])
        return F.mse_loss(h, self.x) + scratch.sum()

    def _updated(self, *_: Any) -> None:
        # Every third step writes to a disk, and the first one starts everything up.
        slow = 40 if self.updates == 0 else 5 if self.updates % 3 == 0 else 1
        self.gpu.launch(self.case["update_seconds"] * slow)
        self.updates += 1


class SelfReference:
    """Refers to itself, as objects with callbacks do: only Python's collector frees it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.myself = tensor, self


class LeakyTraining:
    """A training step that keeps something, or nothing but garbage.

    Args:
        case: `rows`, `width`, `hidden`, `optimizer`, `keep` (columns of a slice) and `leak`, what
            the step keeps.
    """

    def __init__(self, case: Case) -> None:
        self.case, self.calls = case, 0
        self.model = make_mlp([case["width"], case["hidden"], case["width"]])
        self.weight: Tensor = next(self.model.parameters())
        self.optimizer = make_optimizer(case["optimizer"], self.model.parameters())
        self.x = torch.randn(case["rows"], case["width"])
        self.views: list[Tensor] = []
        self.kept: list[Tensor] = []
        self.garbage_bytes: list[int] = []
        self.ones = torch.ones(case["rows"], case["hidden"] + 1)
        self.written = torch.empty_like(self.ones)

    def __call__(self) -> Tensor:
        """Do one step: zero, forward, backward, update, and what it keeps; gives the loss."""
        self.calls += 1
        self.optimizer.zero_grad()
        out = self.model(self.x)
        loss: Tensor = (out - self.x).square().mean()  # mse_loss takes more than four bytes
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self._keep(out.detach())
        return loss

    def _keep(self, out: Tensor) -> None:
        columns = self.case["keep"]
        if self.case["leak"] == "nothing":
            garbage = SelfReference(out[:, :columns].clone())
            self.garbage_bytes = [garbage.tensor.nbytes]
        elif self.case["leak"] == "slices":
            self.views = [out[:, :columns], out[:, columns : 3 * columns].relu_()]
            self.kept += self.views
        elif self.case["leak"] == "a loss with its graph":
            labels = torch.zeros(len(self.x), dtype=torch.long)
            # as of a validation step; its log-probabilities are made where Python does not see
            self.kept.append(F.cross_entropy(self.model(self.x), labels))
        elif self.case["leak"] == "a sum in an old tensor":
            torch.add(self.ones, self.ones, out=self.written)
        else:
            self.kept += [self.x[:, 1:columns], self.weight.t()]
