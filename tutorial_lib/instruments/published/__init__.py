"""Published models at their published sizes, with random weights and no download.

Each is built from a configuration class of transformers, diffusers or this course. On the `meta`
device a model has shapes and no memory, so that a laptop can count the parameters of a 7B model.
All of it also works under `FakeTensorMode`, where whole training steps can be predicted:

    model = published.build("gpt2", device="cpu")
    batch = published.batch("gpt2", 2, seq=128)
    published.loss("gpt2", model, batch).backward()
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tutorial_lib import device as devices
from tutorial_lib.instruments.private_torch import patches
from tutorial_lib.instruments.published.catalogue import PUBLISHED, find
from tutorial_lib.instruments.published.entry import Published
from tutorial_lib.instruments.published.libraries import construct, full_config, quiet
from tutorial_lib.instruments.published.steps import batch, loss
from tutorial_lib.memory import private_torch

__all__ = ["PUBLISHED", "Published", "batch", "build", "find", "loss"]


def build(
    name: str,
    *,
    device: torch.device | str = "meta",
    dtype: torch.dtype | None = None,
    attention: str = "sdpa",
    **overrides: Any,
) -> nn.Module:
    """Build a published model with random weights, ready to train.

    Args:
        name: A key of `PUBLISHED`.
        device: `meta` for shapes without memory, or a device that is there.
        dtype: Of all parameters; `None` means float32.
        attention: `sdpa` for PyTorch's fused kernels, `eager` for eager attention; no
            effect on a model without attention.
        **overrides: Fields of the model's configuration class, as in `n_layer=2`.

    Returns:
        The model in training mode, its dropout as published. The weights come from the global
        random state: see `torch.manual_seed`.

    Raises:
        ValueError: When the name, the device, the attention or an override is not known, or the
            model has no eager attention in its library.
    """
    model = find(name)
    if str(device) != "meta":
        device = devices.pick(device)
    if attention not in ("sdpa", "eager"):
        raise ValueError(f"attention (={attention!r}) must be 'sdpa' or 'eager'.")
    with quiet(), _default_dtype(dtype or torch.float32), torch.device(device), _fake_safe_init():
        built: Any = construct(model, full_config(model, overrides), attention)
        if model.family == "causal-lm":
            built.loss_type = "ForCausalLM"  # what GPT-2 takes anyway, after a warning
    trainable: nn.Module = built.train()
    return trainable


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    # Not module.to(dtype) afterwards: that needs both copies, and fails on fake parameters.
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _fake_safe_init() -> contextlib.AbstractContextManager[Any]:
    """Make `trunc_normal_` pass on fake tensors, whose values it would look at."""
    if isinstance(torch.empty(0), private_torch.FakeTensor):
        return patches.without_truncated_normal()
    return contextlib.nullcontext()
