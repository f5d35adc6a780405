"""The check of 5.5: saved tensors that wait on the host."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.given import observe
from tutorial_lib.checks.lab05 import models
from tutorial_lib.checks.lab05.host import Host
from tutorial_lib.checks.vocabulary import expect, read
from tutorial_lib.memory.private_torch import storage_key

_ADDRESS = "two storages went for one. An address is used again when its storage is gone."
# What to try where the gradients of a kind of step are wrong.
_ADVICE = {
    "one step": f"other numbers came back, or {_ADDRESS}",
    "parts of a storage": (
        "a saved tensor may be a slice, a transpose or an expansion: size, stride and offset say "
        "where its numbers lie in the storage."
    ),
    "micro-batches": (
        "the batch lies in a buffer that is filled in place before each micro-batch, under the "
        "same hooks: the copy of an earlier filling is stale."
    ),
    "two backwards": (
        "after backward(retain_graph=True) a second backward asks for everything again: unpack "
        "must use nothing up."
    ),
    "double backward": "a gradient is differentiated again, and its graph is cut somewhere.",
}


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    sizes = models.draw_sizes(draw)
    limits = {step: draw.randint(900, 1500) for step in _ADVICE}
    # to the byte what a norm puts out: a storage of exactly this size is copied
    limits["one step"] = 4 * sizes["batch"] * math.prod(sizes["sizes"].values())
    limits["parts of a storage"] = draw.randint(1300, 1500)  # a small result and a view stay
    limits["double backward"] += 2200  # the result of Tanh is smaller, and stays
    return [{**sizes, "step": step, "min_bytes": limits[step]} for step in _ADVICE]


def _make(case: Case) -> tuple[nn.Module, Callable[[], Tensor]]:
    """Make a model, and a step that has gone backward when it returns."""
    if case["step"] in ("one step", "two backwards"):
        gpt, tokens = models.make_gpt(case)
        return gpt, partial(_step, gpt, tokens, twice=case["step"] == "two backwards")
    torch.manual_seed(case["seed"])
    # a transposed weight is saved as a view: it is no Parameter, and lies in a parameter's storage
    layers = nn.Sequential(nn.Linear(24, 64), nn.Sigmoid(), nn.Linear(64, 48), nn.Tanh())
    models.fill_with_zeros(layers)
    steps = {"parts of a storage": _parts, "micro-batches": _micro_batches}
    return layers, partial(steps.get(case["step"], _double), layers, torch.randn(3, 16, 24))


def _step(gpt: Any, tokens: Tensor, *, twice: bool) -> Tensor:
    loss: Tensor = gpt.loss(tokens)
    if twice:
        loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def _parts(layers: nn.Module, rows: Tensor) -> Tensor:
    wide = layers(rows[0])
    left, right = wide[:, 4:24].t(), wide.t()[28:]
    mean = wide.mean(0, keepdim=True).expand(16, -1)
    loss: Tensor = (left * right).square().sum() + (mean * wide).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def _micro_batches(layers: nn.Module, rows: Tensor) -> Tensor:
    buffer, losses = torch.zeros(16, 24), []
    for micro_batch in rows:
        buffer.copy_(micro_batch)
        # earlier graphs are held, so that copies of earlier fillings are there to be mistaken
        losses.append(layers(buffer).square().sum())
        losses[-1].backward(retain_graph=True)
    return torch.stack(losses).detach().sum()


def _double(layers: nn.Module, rows: Tensor) -> Tensor:
    layers(rows[1])  # dropped before any backward: nothing of it may stay
    x = rows[0].clone().requires_grad_()
    (slope,) = torch.autograd.grad(layers(x).sum(), x, create_graph=True)
    loss: Tensor = slope.square().sum()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


class Kept:
    """A case's step without hooks, and with hooks that only look."""

    def __init__(self, case: Case) -> None:
        model, step = _make(case)
        self.peak, _ = observe.peak_above(step, model)
        self.limit, self.gradients = case["min_bytes"], observe.gradients_of(model)
        model, step = _make(case)
        resident = {storage_key(p.untyped_storage()) for p in model.parameters()}
        # of each saved tensor its storage, bytes of both, and whether it is a parameter's
        self.saved: list[tuple[int, int, int, bool]] = []
        alive = []  # else an address is used twice

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            key = storage_key(storage)
            self.saved.append((key, storage.nbytes(), tensor.nbytes, key in resident))
            alive.append(tensor.detach())
            return alive[-1]

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            step()

    def copied(
        self,
        *,
        small: bool = False,
        above: int = 0,
        parameters: bool = False,
        each: bool = False,
        part: bool = False,
    ) -> int:
        """Add up the bytes that should be copied, where no word is given."""
        rows = [
            (key, whole)
            for key, whole, own, is_parameter in self.saved
            if (small or (own if part else whole) >= self.limit + above)
            and (parameters or not is_parameter)
        ]
        return sum(num_bytes for _, num_bytes in (rows if each else set(rows)))


def _run(answer: Callable[..., Any], case: Case) -> Result:
    model, step = _make(case)
    host = Host()

    def offloaded() -> None:
        with models.context_of(answer(host, model, case["min_bytes"]), "offloading"):
            step()
            left.append(host.held_bytes)  # the graph is gone, and the hooks are still there

    left: list[int] = []
    try:
        peak, stayed = observe.peak_above(offloaded, model)
    except RuntimeError as error:
        if "out of bounds" not in str(error):
            raise
        raise CheckError(f"{case['step']}: {_ADDRESS}") from error
    except (KeyError, IndexError) as error:
        if case["step"] == "two backwards":
            raise CheckError(f"{case['step']}: {_ADVICE['two backwards']}") from error
        if isinstance(error, IndexError):
            raise
        raise CheckError(
            f"{case['step']}: a KeyError. A WeakValueDictionary forgets at once what nothing else "
            "holds: give a new copy a name before you put it in."
        ) from error
    gradients = observe.gradients_of(model)
    counts = {"copied": host.copied_bytes, "left": left[0], "stayed": stayed, "peak": peak}
    return {"gradients": gradients, **counts}


def _judge(case: Case, result: Result, kept: Kept) -> None:
    step = case["step"]
    where = f"{step}: "
    seen = read.integer(result.get("copied"), f"{where}copied bytes")
    if step in ("one step", "parts of a storage"):
        expect.close(
            seen,
            kept.copied(),
            _copy_faults(kept),
            otherwise=f"{seen:,} bytes were copied to the host, and {kept.copied():,} should be: "
            + (_ADDRESS if seen < kept.copied() else "each large storage once, no parameter's."),
            tolerance=0,
            where=where,
        )
    differ = f"{where}gradients differ from those without hooks: {_ADVICE[step]}"
    models.expect_gradients(result, kept.gradients, differ)
    stayed = read.integer(result.get("stayed"), f"{where}bytes that stayed")
    if stayed:
        raise CheckError(
            f"{where}{stayed:,} bytes were still on the device after the step, held by a cycle: "
            "a tensor that pack leaves where it is must come back as tensor.detach(), for an "
            "operation's own result would otherwise hold its graph."
        )
    peak = read.integer(result.get("peak"), f"{where}the peak")
    if step == "one step" and kept.peak - peak < kept.copied() // 2:
        raise CheckError(
            f"{where}the peak is {peak:,} bytes, and {kept.peak:,} without hooks: the copied "
            "tensors were still on the device. pack gives the copy alone, and unpack brings it "
            "back."
        )
    left = read.integer(result.get("left"), f"{where}bytes left on the host")
    if left:
        raise CheckError(
            f"{where}{left:,} bytes were left on the host after the step, inside `with`: the graph "
            "is gone, and something of yours still holds the copies, as a plain dictionary does. "
            "A weakref.WeakValueDictionary holds none."
        )


def _copy_faults(kept: Kept) -> expect.Faults:
    yield "nothing was copied to the host.", 0
    yield (
        "parameters were copied too, and they stay on the device anyway. A saved weight may be a "
        "view, such as its transpose: compare storages.",
        kept.copied(parameters=True),
    )
    yield "small storages were copied too: min_bytes is the smallest.", kept.copied(small=True)
    yield (
        "a storage of exactly min_bytes stayed: min_bytes is the smallest that is copied.",
        kept.copied(above=1),
    )
    yield (
        "min_bytes was compared with the bytes of tensors. A tensor may be a small part of its "
        "storage, or an expansion of it: compare `storage.nbytes()`.",
        kept.copied(part=True),
    )
    yield (
        "storages were copied once for each tensor that was saved: several tensors may lie in one.",
        kept.copied(each=True),
    )


offloading = Check(
    "lab05.offloading",
    "5.5",
    "five kinds of steps: gradients to the bit, each large storage copied once, nothing left over",
    _cases,
    _run,
    _judge,
    oracle=Kept,
)
