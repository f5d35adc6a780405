"""A host's memory that the meter cannot see, and the half that runs the answers to 5.5."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.checks.given import exam, observe, outside, run_half
from tutorial_lib.checks.given.values import Answer, Case, CheckError, Result
from tutorial_lib.models.gpt import GPT

from .modules import context_of, make_gpt

ADDRESS = "you took two storages for one: a freed storage's address is used again."
TWO_BACKWARDS = (
    "after backward(retain_graph=True), a second one may come: unpack must not remove anything."
)
_EQUAL = 32  # numbers of an exam's rows, at places that are drawn
_SAVED = (
    "What is copied to the host takes no memory on the device here, and nothing else may hold "
    "it: pack returns only the copy."
)


class Host:
    """Holds copies of storages, and counts them.

    On a CPU a copy is a NumPy array, which no meter takes for a tensor: what tensors still hold is
    what would be held on a GPU. From a GPU, a copy goes to pinned memory.
    """

    def __init__(self) -> None:
        self.copied_bytes = 0  # since the beginning
        self.held_bytes = 0  # now

    def put(self, tensor: Tensor) -> HostCopy:
        """Copy the whole storage in which a tensor lies, also where the tensor is a part of it."""
        copy = self._make(tensor)
        self._add(copy.num_bytes)
        self.copied_bytes += copy.num_bytes
        outside.report(f"copied {copy.num_bytes}")
        weakref.finalize(copy, self._add, -copy.num_bytes)
        return copy

    def _make(self, tensor: Tensor) -> HostCopy:
        return HostCopy(tensor)

    def _add(self, num_bytes: int) -> None:
        self.held_bytes += num_bytes


class HostCopy:
    """A storage's copy; its memory is given back when nobody holds the copy any more."""

    def __init__(self, tensor: Tensor) -> None:
        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        whole.set_(tensor.untyped_storage())
        self.num_bytes: int = whole.numel()
        self._device = tensor.device
        self._array: Any = None
        if tensor.is_cuda:
            self._array = torch.empty(whole.shape, dtype=torch.uint8, pin_memory=True).copy_(whole)
        else:
            self._array = whole.numpy().copy()

    def get(
        self, dtype: torch.dtype, size: torch.Size, stride: tuple[int, ...], offset: int
    ) -> Tensor:
        """Bring the part of the storage that a tensor covers back to the device.

        Args:
            dtype: The tensor's.
            size: The tensor's.
            stride: The tensor's; steps in the storage, in elements.
            offset: `tensor.storage_offset()`: where in the storage it begins, in elements.
        """
        whole = self._whole().view(dtype)
        return whole.as_strided(size, stride, offset).to(self._device, copy=True)

    def _whole(self) -> Tensor:
        return torch.as_tensor(self._array)


def make_step(case: Case) -> tuple[nn.Module, Callable[[], None]]:
    """Make a model, and a step that has gone backward when it returns."""
    if case["step"] in ("one step", "two backwards"):
        gpt, tokens = make_gpt(case)
        return gpt, partial(_step, gpt, tokens, twice=case["step"] == "two backwards")
    torch.manual_seed(case["seed"])
    # a transposed weight is saved as a view: it is no Parameter, and lies in a parameter's storage
    layers = nn.Sequential(nn.Linear(24, 64), nn.Sigmoid(), nn.Linear(64, 48), nn.Tanh())
    kind = torch.float64 if case["step"] == "micro-batches" else torch.float32
    observe.fill_gradients(layers.to(kind), 0)
    steps = {"parts of a storage": _parts, "micro-batches": _micro_batches}
    rows = torch.randn(3, 16, 24, dtype=kind)
    return layers, partial(steps.get(case["step"], _double), layers, rows)


def _step(gpt: GPT, tokens: Tensor, *, twice: bool) -> None:
    loss: Any = gpt.loss(tokens)
    if twice:
        loss.backward(retain_graph=True)
    loss.backward()


def _parts(layers: nn.Module, rows: Tensor) -> None:
    wide = layers(rows[0])
    left, right = wide[:, 4:24].t(), wide.t()[28:]
    mean = wide.mean(0, keepdim=True).expand(16, -1)
    ((left * right).square().sum() + (mean * wide).sum()).backward()


def _micro_batches(layers: nn.Module, rows: Tensor) -> None:
    buffer, losses = torch.zeros_like(rows[0]), []
    for micro_batch in rows:
        buffer.copy_(micro_batch)
        # earlier graphs are held, so that copies of earlier fillings are there to be mistaken
        losses.append(layers(buffer).square().sum())
        losses[-1].backward(retain_graph=True)


def _double(layers: nn.Module, rows: Tensor) -> None:
    layers(rows[1])  # dropped before any backward: nothing of it may stay
    x = rows[0].clone().requires_grad_()
    (slope,) = torch.autograd.grad(layers(x).sum(), x, create_graph=True)
    loss: Any = slope.square().sum()
    loss.backward()


class _ExamHost(Host):
    """Keeps one of all equal numbers, so that its copies take next to nothing of the limit.

    `group` has the group of each number in a storage of the exam; any other storage is kept whole.
    """

    def __init__(self, group: Tensor) -> None:
        super().__init__()
        self.group, self.firsts = group, group.argsort()[::_EQUAL].clone()

    def _make(self, tensor: Tensor) -> HostCopy:
        return _ExamCopy(tensor, self)


class _ExamCopy(HostCopy):
    def __init__(self, tensor: Tensor, host: _ExamHost) -> None:
        super().__init__(tensor)
        self._host, self._firsts = host, torch.empty(0)
        whole = super()._whole()
        if self.num_bytes == 4 * len(host.group):
            self._firsts = whole.view(torch.float32)[host.firsts]
            if torch.equal(whole, self._whole()):
                self._array = None

    def _whole(self) -> Tensor:
        is_short = len(self._firsts) > 0
        return self._firsts[self._host.group].view(torch.uint8) if is_short else super()._whole()


def _exam(answer: Answer, case: Case) -> Result:
    generator = torch.Generator().manual_seed(case["seed"])
    num = exam.ROWS * exam.WIDTH
    group = torch.randperm(num, generator=generator) // _EQUAL
    rows = torch.randn(num // _EQUAL, generator=generator)[group].view(exam.ROWS, exam.WIDTH)
    weights = torch.randn(exam.NUM_BLOCKS, exam.DEPTH, 1, generator=generator) / 2
    chain = exam.Chain(*map(exam.Block, weights))  # equal numbers stay equal
    with context_of(answer(_ExamHost(group), chain, rows.nbytes), "offloading"):
        exam.half_squares(chain(rows.requires_grad_())).backward()
    return exam.gradients(chain)


@run_half("5.5", exam=exam.of(_exam, _SAVED))
def offloading(answer: Answer, case: Case) -> Result:
    model, step = make_step(case)
    host = Host()

    def offloaded() -> None:
        with context_of(answer(host, model, case["min_bytes"]), "offloading"):
            step()
            left.append(host.held_bytes)  # the graph is gone, and the hooks are still there

    left: list[int] = []
    try:
        peak, stayed = observe.peak_above(offloaded, model)
    except RuntimeError as error:
        if "out of bounds" not in str(error):
            raise
        words = "what was asked for is outside the copy. Offset and stride count elements; or"
        raise CheckError(f"{case['step']}: {words} {ADDRESS}") from error
    except (KeyError, IndexError) as error:
        if case["step"] == "two backwards":
            raise CheckError(f"{case['step']}: {TWO_BACKWARDS}") from error
        if isinstance(error, IndexError):
            raise
        raise CheckError(
            f"{case['step']}: a KeyError. If nothing was put in, .get returns None. A "
            "WeakValueDictionary forgets at once what nothing else holds: give a new copy a name "
            "first."
        ) from error
    gradients = observe.gradients_of(model)
    counts = {"copied": host.copied_bytes, "left": left[0], "stayed": stayed, "peak": peak}
    return {"gradients": gradients, **counts}
