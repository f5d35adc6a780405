"""The training steps that lab 02 measures, small and each with a trap in it, and its run halves."""

import gc
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tutorial_lib.checks.given import Answer, Case, Result, observe, run_half
from tutorial_lib.models.gpt import GPT, GPTConfig

from .machine import NO_INSTRUMENTS, PretendGPU, without_instruments

# foreach makes a scalar that no operation shows: a meter takes it for an input of the step
make_optimizer = partial(observe.make_optimizer, foreach=False)


def make_mlp(widths: Sequence[int]) -> nn.Sequential:
    """Build linear layers of these widths with a GELU between each two."""
    pairs = itertools.pairwise(widths)
    layers = [layer for i, o in pairs for layer in (nn.Linear(i, o), nn.GELU())]
    return nn.Sequential(*layers[:-1])


class ColdStep:
    """A training step whose first call tries out kernels, with `workspace` floats for each.

    Every step leaves `kept` floats behind.
    """

    def __init__(self, case: Case) -> None:
        self._case, self.calls, self.kept = case, 0, list[Tensor]()
        self.model = make_mlp(case["widths"])
        self.optimizer = make_optimizer(case["optimizer"], self.model.parameters())
        self.x = torch.randn(case["rows"], case["widths"][0])

    def __call__(self) -> None:
        """Do one step: zero, forward, backward, update."""
        self.calls += 1
        self.optimizer.zero_grad()
        self.kept.append(torch.zeros(self._case["kept"]))
        if self.calls == 1:
            torch.zeros(self._case["workspace"])
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


def make_forward(case: Case) -> tuple[nn.Module, Callable[[], Tensor]]:
    """Build the model of a case, and its forward on one batch."""
    width, rows = case["width"], case["rows"]
    if case["kind"] == "picker":
        picker, x = Picker(width), torch.randn(rows, width)
        return picker, lambda: picker(x).sum()
    sizes = {"vocab_size": 96, "seq_len": 24, "num_layers": 2, "num_heads": 4, "d_model": width}
    gpt = GPT(GPTConfig(**sizes, attention="sdpa"))
    tokens = torch.randint(0, 96, (rows, 24))
    return gpt, lambda: gpt.loss(tokens)


class TimedBlock(nn.Module):
    """An MLP with a residual, whose forward and backward launch work on a pretended machine."""

    def __init__(self, gpu: PretendGPU, case: Case) -> None:
        super().__init__()
        self.gpu, self._case, width = gpu, case, case["width"]
        self.layers = make_mlp([width, 4 * width, width])

    def forward(self, x: Tensor) -> Tensor:
        """Map `(rows, width)` to `(rows, width)`."""
        self.gpu.launch(self._case["forward_seconds"])
        y: Tensor = x + self.layers(x)
        if y.requires_grad:
            y.register_hook(self._launch_backward)  # type: ignore[no-untyped-call]
        return y

    def _launch_backward(self, gradient: Tensor) -> None:
        self.gpu.launch(self._case["backward_seconds"])


class TimedTraining:
    """Timed blocks, plain or each checkpointed, and their optimizer.

    The loss takes `scratch` floats for a moment.
    """

    def __init__(self, gpu: PretendGPU, case: Case) -> None:
        self.gpu, self._case, self.updates = gpu, case, 0
        self.model = nn.ModuleList(TimedBlock(gpu, case) for _ in range(case["num_blocks"]))
        self.optimizer = make_optimizer(case["optimizer"], self.model.parameters())
        self.x = torch.randn(case["rows"], case["width"])
        self.optimizer.register_step_post_hook(self._updated)

    def loss(self) -> Tensor:
        """Run forward."""
        h = self.x
        for block in self.model:
            checkpointed = self._case["checkpointed"]
            h = checkpoint(block, h, use_reentrant=False) if checkpointed else block(h)
        scratch = torch.zeros(self._case["scratch"])
        return F.mse_loss(h, self.x) + scratch.sum()

    def _updated(self, *_: Any) -> None:
        # Every third step writes to a disk, and the first one starts everything up.
        slow = 40 if self.updates == 0 else 5 if self.updates % 3 == 0 else 1
        self.gpu.launch(self._case["update_seconds"] * slow)
        self.updates += 1


class SelfReference:
    """Refers to itself, as objects with callbacks do: only Python's collector frees it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.myself = tensor, self


class LeakyTraining:
    """A training step with the leak that `leak` names, or with nothing but garbage.

    Slices have `keep` columns.
    """

    def __init__(self, case: Case) -> None:
        self._case, self.calls = case, 0
        self.model = make_mlp([case["width"], case["hidden"], case["width"]])
        self.optimizer = make_optimizer(case["optimizer"], self.model.parameters())
        self.x = torch.randn(case["rows"], case["width"])
        self.views: list[Tensor] = []
        self.kept: list[Tensor] = []
        self.garbage_bytes: list[int] = []
        self.ones = torch.ones(case["rows"], case["hidden"] + 1)
        self.written = torch.empty_like(self.ones)

    def __call__(self) -> Tensor:
        """Do one step: zero, forward, backward, update, and the leak; gives the loss."""
        self.calls += 1
        self.optimizer.zero_grad()
        out = self.model(self.x)
        loss: Tensor = (out - self.x).square().mean()  # mse_loss takes more than four bytes
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self._keep(out.detach(), self._case["keep"])
        return loss

    def _keep(self, out: Tensor, columns: int) -> None:
        match self._case["leak"]:
            case "nothing":
                garbage = SelfReference(out[:, :columns].clone())
                self.garbage_bytes = [garbage.tensor.nbytes]
            case "slices":
                self.views = [out[:, :columns], out[:, columns : 3 * columns].relu_()]
                self.kept += self.views
            case "a loss with its graph":
                labels = torch.zeros(len(self.x), dtype=torch.long)
                # as of a validation step; its log-probabilities are made where Python does not see
                self.kept.append(F.cross_entropy(self.model(self.x), labels))
            case "a sum in an old tensor":
                torch.add(self.ones, self.ones, out=self.written)
            case "views of old tensors":
                self.kept += [self.x[:, 1:columns], next(self.model.parameters()).t()]


@run_half("2.1", forbidden=NO_INSTRUMENTS)
def step_seconds(answer: Answer, case: Case) -> Result:
    gpu = PretendGPU(slowness=case["slowness"])
    readings: list[float] = []

    def clock() -> float:
        readings.append(gpu.now())
        return readings[-1]

    def step() -> None:
        PretendGPU.launch(gpu, case["seconds"])  # whatever an answer makes of gpu.launch

    with without_instruments():
        seconds = answer(step, gpu, clock, warmup=case["warmup"], repeats=case["repeats"])
    return {"seconds": seconds, "runs": gpu.num_launches, "readings": len(readings)}


@run_half("2.2", forbidden=NO_INSTRUMENTS)
def slowdown(answer: Answer, case: Case) -> Result:
    gpu = PretendGPU(slowness=case["slowness"])
    order: list[str] = []

    def make_step(name: str, seconds: float) -> Callable[[], None]:
        def step() -> None:
            order.append(name)
            PretendGPU.launch(gpu, seconds)  # whatever an answer makes of gpu.launch

        return step

    plain = make_step("plain", case["seconds"])
    other = make_step("other", case["seconds"] * case["ratio"])
    with without_instruments():
        ratio = answer(plain, other, gpu, gpu.now, repeats=case["repeats"])
    return {"ratio": ratio, "order": order}


@run_half("2.3", forbidden=NO_INSTRUMENTS)
def steady_peak(answer: Answer, case: Case) -> Result:
    with PretendGPU() as gpu:
        torch.zeros(case["earlier"])  # the run before this one
        left = torch.zeros(case["left"])
        step = ColdStep(case)
        with without_instruments():
            peak = answer(step, gpu, warmup=case["warmup"])
    del left  # it has lain there all the time
    return {"bytes": peak, "calls": step.calls}


@run_half("2.4", forbidden=NO_INSTRUMENTS)
def activation_bytes(answer: Answer, case: Case) -> Result:
    model, forward = make_forward(case)
    with PretendGPU(model) as gpu:
        forward()  # makes the inputs known
        before = gpu.memory_allocated()
        gpu.reset_peak_memory_stats()
        with without_instruments():
            num_bytes = answer(forward, model)
        gc.collect()
        resident = {t.untyped_storage() for t in (*model.parameters(), *model.buffers())}
        held = gpu.max_memory_allocated() - sum(storage.nbytes() for storage in resident)
        went_backward = any(parameter.grad is not None for parameter in model.parameters())
        left_behind = gpu.memory_allocated() - before
    seen = {"bytes": num_bytes, "left_behind": left_behind, "went_backward": went_backward}
    return {**seen, "held": held}


@run_half("2.5", forbidden=NO_INSTRUMENTS)
def find_leaks(answer: Answer, case: Case) -> Result:
    training = LeakyTraining(case)
    with without_instruments():
        leaks = answer(training, training.model, training.optimizer)
    return {"leaks": leaks, "calls": training.calls}


@run_half("2.6", forbidden=NO_INSTRUMENTS)
def profile_step(answer: Answer, case: Case) -> Result:
    with PretendGPU() as gpu:
        training = TimedTraining(gpu, case)
        options = {"num_samples": case["num_samples"], "repeats": case["repeats"]}
        with without_instruments():
            profile = answer(training.loss, training.optimizer, gpu, gpu.now, **options)
    return {"profile": profile, "updates": training.updates}


@run_half("2.7", forbidden=NO_INSTRUMENTS)
def smallest_card(answer: Answer, case: Case) -> Result:
    with without_instruments():
        return {"memory": answer(dict(case["run"]), list(map(tuple, case["cards"])))}
