"""AdamW whose two states take a byte each: slow, readable, and as large as the real ones.

It stands in for the CUDA kernels of bitsandbytes, which run on no CPU and on no fake tensor: its
states have their sizes, and its update is one operation that makes no tensor.
"""

import itertools
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

BLOCK = 256  # values that share a scale: 2048 in the paper, 256 in bitsandbytes since 0.44
SMALLEST = 4096  # tensors with fewer values keep float32 states, as in bitsandbytes
_CHUNK = 4096 * BLOCK  # values updated at once: bounds the workspace to some tens of MiB


class AdamW8bit(Optimizer):
    """AdamW with 8-bit states, quantised block by block.

    A state of n values is n codes (`uint8`) and a float32 scale for each 256 of them. Each code
    stands for an entry of a table of 256 numbers between -1 and 1 (0 and 1 for the second state)
    that lie closer together near 0. States of small tensors stay float32.

    Args:
        parameters: What to update, of any float type; the arithmetic is float32.
        lr: Learning rate.
        betas: Decay of the running means of gradient and squared gradient.
        eps: Added to the root of the second.
        weight_decay: Decoupled, as in AdamW.

    Raises:
        ValueError: When a setting is out of its range.

    Source:
        Dettmers et al. (2022), 8-bit Optimizers via Block-wise Quantization, arXiv 2110.02861,
        section 2, without its stable embedding layer. Unchecked against bitsandbytes' own
        numbers; checked against `torch.optim.AdamW`.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        if lr < 0 or eps < 0 or weight_decay < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(
                f"lr (={lr}), eps (={eps}) and weight_decay (={weight_decay}) must not be negative,"
                f" and betas (={betas}) must be at least 0 and below 1."
            )
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(parameters, defaults)
        if any(one.is_complex() for group in self.param_groups for one in group["params"]):
            raise ValueError("AdamW8bit quantises real numbers, but one is complex: try AdamW.")
        self._tables: dict[torch.device, dict[str, Tensor]] = {}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient; it takes no closure."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state; without the base class's cast to the parameters' type."""
        super().load_state_dict(state_dict)
        saved = itertools.chain.from_iterable(g["params"] for g in state_dict["param_groups"])
        ours = itertools.chain.from_iterable(g["params"] for g in self.param_groups)
        for index, parameter in zip(saved, ours, strict=True):
            values = state_dict["state"].get(index, {})
            for name, value in values.items():
                if isinstance(value, Tensor):
                    self.state[parameter][name] = value.to(parameter.device, copy=True)
            if "signed" in values:
                self.state[parameter].update(self._tables_on(parameter.device))

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state.update(self._new_state(parameter))
        state["step"] += 1
        beta_1, beta_2 = group["betas"]
        corrections = 1 - beta_1 ** state["step"], math.sqrt(1 - beta_2 ** state["step"])
        _adamw_8bit(
            parameter,
            parameter.grad,
            state["mean"],
            state["square"],
            state.get("mean_scale"),
            state.get("square_scale"),
            state.get("signed"),
            state.get("unsigned"),
            [group["lr"], beta_1, beta_2, group["eps"], group["weight_decay"], *corrections],
        )

    def _new_state(self, parameter: Tensor) -> dict[str, Any]:
        def zeros(size: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=parameter.device)

        count = parameter.numel()
        if count < SMALLEST:
            means = {name: zeros(count, torch.float32) for name in ("mean", "square")}
            return {"step": 0, **means}
        state: dict[str, Any] = {"step": 0, **self._tables_on(parameter.device)}
        for name in ("mean", "square"):
            state[name] = zeros(count, torch.uint8)
            state[f"{name}_scale"] = zeros(math.ceil(count / BLOCK), torch.float32)
        return state

    def _tables_on(self, device: torch.device) -> dict[str, Tensor]:
        """Both tables, which all parameters of a device share."""
        if device not in self._tables:
            self._tables[device] = {
                "signed": dynamic_table(signed=True).to(device),
                "unsigned": dynamic_table(signed=False).to(device),
            }
        return self._tables[device]


def dynamic_table(*, signed: bool) -> Tensor:
    """Return the 256 numbers that codes stand for, float32 `(256,)`, in ascending order.

    Seven decades end at 1, 0.1, ... 1e-6; each holds evenly spaced numbers, twice as many as the
    decade below it. Signed, half of them are negative; else each decade has twice as many.

    Source:
        Dettmers et al. (2022), section 1.3, dynamic quantisation, as tabulated in bitsandbytes.
    """
    numbers = [torch.tensor([0.0, 1.0])]
    for decade in range(7):
        edges = torch.linspace(0.1, 1, 2 ** (decade if signed else decade + 1) + 1)
        middles = (edges[:-1] + edges[1:]) / 2 * 10.0 ** (decade - 6)
        numbers += [middles, -middles] if signed else [middles]
    return torch.cat(numbers).sort().values


@torch.library.custom_op(
    "tutorial_lib::adamw_8bit",
    mutates_args=("parameter", "mean", "square", "mean_scale", "square_scale"),
)
def _adamw_8bit(
    parameter: Tensor,
    grad: Tensor,
    mean: Tensor,
    square: Tensor,
    mean_scale: Tensor | None,
    square_scale: Tensor | None,
    signed: Tensor | None,
    unsigned: Tensor | None,
    settings: list[float],
) -> None:
    """Update one parameter and its states in place, chunk by chunk."""
    lr, beta_1, beta_2, eps, weight_decay, correction_1, correction_2 = settings
    values, grads = parameter.reshape(-1), grad.reshape(-1)
    for start in range(0, values.numel(), _CHUNK):
        part = slice(start, start + _CHUNK)
        blocks = slice(start // BLOCK, (start + _CHUNK) // BLOCK)
        value, gradient = values[part].float(), grads[part].float()
        m = _decoded(mean[part], mean_scale, signed, blocks)
        v = _decoded(square[part], square_scale, unsigned, blocks)
        m.lerp_(gradient, 1 - beta_1)
        v.mul_(beta_2).addcmul_(gradient, gradient, value=1 - beta_2)
        value.mul_(1 - lr * weight_decay)
        value.addcdiv_(m, v.sqrt().div_(correction_2).add_(eps), value=-lr / correction_1)
        values[part] = value
        _encode(m, mean[part], mean_scale, signed, blocks)
        _encode(v, square[part], square_scale, unsigned, blocks)
    if not parameter.is_contiguous():  # then `values` is a copy
        parameter.copy_(values.view(parameter.shape))


_adamw_8bit.register_fake(lambda *_: None)  # in place, it gives nothing


def _decoded(codes: Tensor, scale: Tensor | None, table: Tensor | None, blocks: slice) -> Tensor:
    """Float32 values; a float32 state is its own."""
    if scale is None or table is None:
        return codes
    scales = scale[blocks].repeat_interleave(BLOCK)[: codes.numel()]
    return table[codes.long()] * scales


def _encode(
    values: Tensor, codes: Tensor, scale: Tensor | None, table: Tensor | None, blocks: slice
) -> None:
    """Write each block's largest absolute value to `scale`, and the nearest codes to `codes`."""
    if scale is None or table is None:
        return
    padded = nn.functional.pad(values, (0, -values.numel() % BLOCK)).view(-1, BLOCK)
    largest = padded.abs().amax(1)
    shares = padded / largest.clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(1)
    nearest = torch.bucketize(shares, (table[1:] + table[:-1]) / 2)
    codes.copy_(nearest.view(-1)[: codes.numel()])
    scale[blocks] = largest
