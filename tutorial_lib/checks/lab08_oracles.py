"""The oracles of lab 08: a small diffusion U-Net, what an update drew, plain loops over it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tutorial_lib import memory
from tutorial_lib.checks.core import Case, CheckError, Result
from tutorial_lib.checks.results import error_of, tensors

SIDE = 8
Drawn = tuple[Tensor, Tensor, Tensor]


def make_unet(case: Case) -> nn.Module:
    """Build the U-Net of a case from its seed, where random numbers then go on."""
    from diffusers import UNet2DModel  # it takes seconds, and other labs do without

    torch.manual_seed(case["seed"])
    levels, channels = case.get("levels", 2), case.get("channels", 1)
    unet: nn.Module = UNet2DModel(
        sample_size=SIDE,
        in_channels=channels,
        out_channels=channels,
        block_out_channels=(8, 16, 16)[:levels],
        layers_per_block=case.get("layers", 1),
        norm_num_groups=4,
        dropout=case.get("dropout", 0.0),
        add_attention=False,
        down_block_types=("DownBlock2D",) * levels,
        up_block_types=("UpBlock2D",) * levels,
    )
    if case.get("dtype") == "float64":
        nn.Module.double(unet)  # diffusers' own `to` has doubts, and says so
    return unet


def make_drawn(case: Case, num: int) -> Drawn:
    """Make noisy images, times and noise; the global random state stays."""
    generator = torch.Generator().manual_seed(case["seed"])
    dtype = getattr(torch, case.get("dtype", "float32"))
    shape = (num, case.get("channels", 1), SIDE, SIDE)
    noisy, noise = (torch.randn(shape, generator=generator, dtype=dtype) for _ in range(2))
    return noisy, torch.randint(100, (num,), generator=generator), noise


def loss_of(unet: nn.Module, noisy: Tensor, times: Tensor, noise: Tensor) -> Tensor:
    """Give the mean squared error of the guessed noise."""
    return F.mse_loss(unet(noisy, times).sample, noise)


def backward(unet: nn.Module, drawn: Drawn, micro_batch: int) -> float:
    """Add the gradient of the mean loss to `.grad`, so many images at a time."""
    total, num = 0.0, len(drawn[0])
    for start in range(0, num, micro_batch):
        part = [tensor[start : start + micro_batch] for tensor in drawn]
        loss = loss_of(unet, *part) * (len(part[0]) / num)
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total


@contextlib.contextmanager
def rows_seen(unet: nn.Module) -> Iterator[list[int]]:
    """List how many images each forward of a U-Net is given."""
    rows: list[int] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        sample = args[0] if args else kwargs.get("sample")
        rows.append(len(sample) if isinstance(sample, Tensor) else 0)

    handle = unet.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield rows
    finally:
        handle.remove()


def fill_gradients(model: nn.Module) -> None:
    """Give every parameter a gradient of ones, as an earlier backward may have left it."""
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)


def gradients_of(model: nn.Module) -> list[Tensor | None]:
    """List the gradients of a model's parameters."""
    return [parameter.grad for parameter in model.parameters()]


def peak_above(step: Callable[[], Any], model: nn.Module) -> int:
    """Give the most bytes that a step held above what was there before it."""
    with memory.watch(model=model) as report:
        step()
    return report.peak_bytes - report.baseline_bytes


def worst_error(result: Result, exact: Sequence[Tensor | None], key: str = "gradients") -> float:
    """Give the largest relative error of tensors in a result.

    Raises:
        CheckError: When they are no list of tensors of that length.
    """
    seen = tensors(result.get(key), len(exact), key)
    pairs = zip(seen, exact, strict=True)
    return max(error_of(a, b) for a, b in pairs if b is not None)


def demand_words(said: str, kind: str, words: Sequence[int], where: str) -> None:
    """Demand that an error is of a kind and names certain numbers, as bytes or with commas.

    Raises:
        CheckError: With what came instead.
    """
    bare = said.replace(",", "").replace("_", "")
    found = {int(digits) for digits in re.findall(r"\d+", f"{said} {bare}")}
    missing = [word for word in words if word not in found]
    if not said.startswith(kind) or missing:
        names = f" that names {' and '.join(map(str, words))}" if words else ""
        came = repr(said[:200]) if said else "nothing"
        raise CheckError(f"{where}, a {kind}{names} is wanted, and {came} came.")
