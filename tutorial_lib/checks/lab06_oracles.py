"""What the checks of lab 06 share: small models, one training observed, and slips by their number.

Everything is computed in float64, where two orders of one sum differ by 1e-15 or so: a larger
difference is a mistake, and a mistake has a gradient of its own that can be recognised.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tutorial_lib.checks.core import CheckError, Opaque, Result
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.vit import ViT, ViTConfig

EXACT = 1e-12  # relative, in float64

MicroBatch = tuple[Tensor, ...]


def tiny_vit(seed: int, dtype: torch.dtype = torch.float64) -> ViT:
    """Build a vision transformer of one block."""
    torch.manual_seed(seed)
    return ViT(ViTConfig(num_layers=1, num_heads=2, d_model=16)).to(dtype)


def tiny_gpt(seed: int, dtype: torch.dtype = torch.float64) -> GPT:
    """Build a GPT of one block, for 64 tokens."""
    torch.manual_seed(seed)
    return GPT(GPTConfig(vocab_size=64, seq_len=16, num_layers=1, num_heads=2, d_model=16)).to(
        dtype
    )


def image_window(sizes: Sequence[int], generator: torch.Generator) -> list[MicroBatch]:
    """Draw micro-batches of images `(size, 1, 8, 8)`, float64, and labels `(size,)`."""
    window: list[MicroBatch] = [
        (
            torch.randn(size, 1, 8, 8, generator=generator, dtype=torch.float64),
            torch.randint(10, (size,), generator=generator),
        )
        for size in sizes
    ]
    return window


def token_window(
    sizes: Sequence[int], generator: torch.Generator, masked: Sequence[int] = ()
) -> list[MicroBatch]:
    """Draw micro-batches of tokens and labels `(size, 12)`: prompt and padding have label -100.

    Args:
        sizes: Rows of each micro-batch.
        generator: Draws.
        masked: Micro-batches in which every label is -100.
    """
    window: list[MicroBatch] = []
    for place, size in enumerate(sizes):
        tokens = torch.randint(64, (size, 12), generator=generator)
        begin = torch.randint(0, 4, (size, 1), generator=generator)
        begin[0] = 0  # its first label is not masked, and nobody's target
        end = torch.randint(6, 13, (size, 1), generator=generator)
        position = torch.arange(12)
        labels = tokens.where((position >= begin) & (position < end), torch.tensor(-100))
        if place in masked:
            labels = torch.full_like(labels, -100)
        window.append((tokens, labels))
    return window


def whole(window: Sequence[MicroBatch]) -> MicroBatch:
    """Put the micro-batches of a window together again."""
    return tuple(torch.cat(parts) for parts in zip(*window, strict=True))


def vector(tensors: Sequence[Tensor]) -> Tensor:
    """Put tensors into one vector of float64."""
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def gradients_of(model: nn.Module) -> Tensor:
    """Put all gradients into one vector; a parameter without one counts as zeros."""
    return vector([torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()])


def gradient(loss: Tensor, model: nn.Module) -> Tensor:
    """Differentiate a loss by all parameters, into one vector; `.grad` is left alone."""
    parameters = list(model.parameters())
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    pairs = zip(found, parameters, strict=True)
    return vector([torch.zeros_like(p) if g is None else g for g, p in pairs])


def observe(
    train: Callable[[], Any], model: nn.Module, optimizer: Optimizer | None = None
) -> dict[str, Any]:
    """Run a training, and note what its optimizer got and how many rows the model saw at once.

    Returns:
        `returned`, `gradients` (a vector for each update), `parameters` after it, `rows` (of each
        forward).
    """
    gradients: list[Tensor] = []
    rows: list[int] = []

    def entered(module: nn.Module, args: Any, kwargs: Any) -> None:
        tensors = [value for value in [*args, *kwargs.values()] if isinstance(value, Tensor)]
        rows.extend(len(tensor) for tensor in tensors[:1])

    with contextlib.ExitStack() as hooks:
        handles = [model.register_forward_pre_hook(entered, with_kwargs=True)]
        if optimizer is not None:
            note = lambda *_: gradients.append(gradients_of(model))  # noqa: E731
            handles.append(optimizer.register_step_pre_hook(note))
        for handle in handles:
            hooks.callback(handle.remove)
        returned = train()
    parameters = vector(list(model.parameters()))
    return {
        "returned": returned,
        "gradients": gradients,
        "parameters": parameters,
        "rows": rows,
    }


def off(seen: Tensor, wanted: Tensor) -> float:
    """Give the relative difference of two vectors, in norm; nan and inf stay."""
    if torch.equal(seen, wanted):
        return 0.0
    size = float(wanted.norm())
    return float((seen - wanted).norm()) / size if size else math.inf


def is_close(seen: Tensor, wanted: Tensor, tolerance: float = EXACT) -> bool:
    """Tell whether two vectors are one, to rounding."""
    return off(seen, wanted) <= tolerance


def vectors(value: Any, size: int, name: str) -> list[Tensor]:
    """Read a list of vectors of one size out of a result.

    Raises:
        CheckError: When it is anything else.
    """
    if not isinstance(value, list) or not all(_is_vector(item, size) for item in value):
        raise CheckError(f"{name} cannot be read: was the model changed, or replaced?")
    return [item.double() for item in value]


def one_vector(value: Any, size: int, name: str) -> Tensor:
    """Read one vector out of a result.

    Raises:
        CheckError: When it is anything else.
    """
    return vectors([value], size, name)[0]


def _is_vector(value: Any, size: int) -> bool:
    return isinstance(value, Tensor) and value.shape == (size,) and value.is_floating_point()


def number(value: Any, name: str) -> float:
    """Read a float that was returned.

    Raises:
        CheckError: When it is anything else; a tensor would keep the graph alive.
    """
    if isinstance(value, Tensor):
        raise CheckError(
            f"{name} is a tensor, and should be a float: a loss that is kept as a tensor keeps "
            "its whole graph. Use .item()."
        )
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        seen = value.type_name if isinstance(value, Opaque) else repr(value)[:60]
        raise CheckError(f"{name} is {seen}, and should be a float.")
    return float(value)


def few_rows(result: Result, sizes: Sequence[int]) -> list[int]:
    """Demand that no forward saw more rows than the largest micro-batch has; gives them all.

    Raises:
        CheckError: When one did.
    """
    rows = result.get("rows")
    if not isinstance(rows, list) or not all(type(row) is int for row in rows):
        raise CheckError("the micro-batches that the model saw cannot be read.")
    if rows and max(rows) > max(sizes):
        raise CheckError(
            f"the model saw {max(rows)} rows at once, and the largest micro-batch has "
            f"{max(sizes)}: one micro-batch is all that fits into memory here."
        )
    return rows


def same_rows(result: Result, sizes: Sequence[int]) -> None:
    """Demand that the model saw every micro-batch by itself, once, in order.

    Raises:
        CheckError: When it saw others.
    """
    if (rows := few_rows(result, sizes)) != list(sizes):
        raise CheckError(
            f"the model saw micro-batches of {rows} rows, and was given {list(sizes)}: run each "
            "once, in order."
        )


def demand_gradient(
    seen: Tensor, wanted: Tensor, slips: Mapping[str, Tensor], where: str = ""
) -> None:
    """Demand a gradient; a known slip is told by the gradient that it gives.

    Args:
        seen: What the optimizer got.
        wanted: The gradient of the whole window at once.
        slips: From what to tell the learner to the gradient of that slip.
        where: Words for which update it was.

    Raises:
        CheckError: When they differ by more than rounding.
    """
    if is_close(seen, wanted):
        return
    if not bool(torch.isfinite(seen).all()):
        raise CheckError(f"{where}a gradient is nan or infinite: was there a division by nothing?")
    for words, slip in slips.items():
        if is_close(seen, slip):
            raise CheckError(f"{where}{words}")
    ratio = float(seen.norm() / wanted.norm())
    along = float(seen @ wanted) / max(float(seen.norm() * wanted.norm()), 1e-300)
    raise CheckError(
        f"{where}the gradient is {ratio:.4g} times as long as that of the whole window, with "
        f"cosine {along:.4f}, and it is none of the usual slips. Write the sum down for two "
        "micro-batches."
    )


def demand_loss(seen: Any, wanted: float, where: str, slips: Mapping[str, float]) -> None:
    """Demand the loss of the whole window.

    Raises:
        CheckError: When another was returned; a known slip is named.
    """
    value = number(seen, f"{where}the loss")
    if abs(value - wanted) <= 1e-9 * abs(wanted):
        return
    if math.isnan(value):
        raise CheckError(
            f"{where}the gradient is right, and the loss returned is nan: is there a mean over "
            "nothing? A sum of nothing is 0."
        )
    for words, slip in slips.items():
        if abs(value - slip) <= 1e-9 * abs(slip):
            raise CheckError(f"{where}the loss returned is wrong: {words}")
    raise CheckError(
        f"{where}the gradient is right, and the loss returned is {value / wanted:.4g} times that "
        "of the whole window: return what the update minimised."
    )
