"""The kernels that a CUDA GPU would take, on fake tensors and without a GPU.

A CPU and a GPU run the same step with different kernels, which save different bytes: dropout keeps
a float mask on a CPU and a bool mask on a GPU, attention falls back to written-out scores on a CPU
when there is dropout, and autocast computes norms and softmax in float32 on a GPU alone. Inside
`cuda_kernels()` operations on CPU tensors save what they would save on an Ampere GPU or newer.

What each rule says is shown by `test_predicted_kernels_save_what_a_cuda_build_saves` in
tests/test_emulated.py: PyTorch's CUDA builds (2.13 and 2.15), on an emulated card, save the same
bytes.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tutorial_lib.instruments.predicting.autocast import cuda_autocast_policy
from tutorial_lib.instruments.predicting.release import is_since
from tutorial_lib.instruments.predicting.values import Values
from tutorial_lib.instruments.predicting.workspace import workspace_bytes
from tutorial_lib.instruments.private_torch import operations, patches, without_modes
from tutorial_lib.memory.private_torch import active_modes
from tutorial_lib.memory.storages import StorageLog

_start_autocast = torch.autocast.__init__
_SWITCHES: Any = torch.backends.cuda


@contextlib.contextmanager
def cuda_kernels() -> Iterator[None]:
    """Make CPU operations save what their CUDA kernels save, until the block ends."""
    with contextlib.ExitStack() as stack:
        told = staticmethod(workspace_bytes)
        stack.enter_context(mock.patch.object(StorageLog, "workspace_of", told))
        stack.enter_context(patches.with_loss_options_of_cuda())
        stack.enter_context(mock.patch.object(torch.autocast, "__init__", _autocast))
        stack.enter_context(mock.patch.object(save_on_cpu, "__init__", _save_elsewhere))
        stack.enter_context(patches.with_gradient_scaler())
        stack.enter_context(patches.with_optimizers_of_cuda())
        stack.enter_context(cuda_autocast_policy())
        stack.enter_context(_fused_operations())
        yield


def _dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """Keep a bool mask, as the fused kernel does that CUDA takes; in place CUDA keeps floats."""
    if not train or p == 0:
        return input
    return torch.native_dropout(input, p, train)[0]


def _attention(
    written_out: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Take flash attention, else memory-efficient attention, else the written-out one.

    What `torch.nn.attention.sdpa_kernel` switches off is not taken.

    Source:
        Who is eligible for which: torch/nn/attention/__init__.py and the warnings of
        `torch.backends.cuda.can_use_flash_attention` (2.13). Flash takes 16-bit types, no mask,
        and heads of up to 256; the efficient kernel a head's width in steps of 16 bytes, and
        groups of heads from 2.14 on (`minimum_gemm_alignment` and
        `check_batch_size_and_num_heads_dense` in aten/src/ATen/native/transformers/cuda/
        sdp_utils.cpp). From then on both take three dimensions too.
    """
    options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
    if query.dim() == 3 and is_since("2.14"):
        if attn_mask is not None and attn_mask.dim() == 3:
            attn_mask = attn_mask.unsqueeze(0)
        q, k, v = (x.unsqueeze(0) for x in (query, key, value))
        out = _attention(written_out, q, k, v, attn_mask, dropout_p, is_causal, **options)
        return out.squeeze(0)
    half = query.dtype in (torch.float16, torch.bfloat16)
    width = query.size(-1)
    flash = half and attn_mask is None and width <= 256 and _SWITCHES.flash_sdp_enabled()
    aligned = all(x.size(-1) % (8 if half else 4) == 0 for x in (query, value))
    grouped = query.dim() == 4 and query.size(1) != key.size(1)
    efficient = aligned and (not grouped or is_since("2.14"))
    efficient = efficient and _SWITCHES.mem_efficient_sdp_enabled()
    if not _are_alike(query, key, value) or not (flash or efficient):
        with sdpa_kernel(SDPBackend.MATH):
            return written_out(query, key, value, attn_mask, dropout_p, is_causal, **options)
    if flash:
        pad = (0, -width % 8)  # the kernel takes widths in steps of 8
        q, k, v = (F.pad(x, pad) if width % 8 else x for x in (query, key, value))
        out = operations.FLASH_FORWARD(q, k, v, dropout_p, is_causal, False, scale=scale)[0]
        return out[..., :width]  # type: ignore[no-any-return]
    if attn_mask is not None:
        keys = attn_mask.size(-1)
        if attn_mask.dtype == torch.bool:
            bias = torch.zeros_like(attn_mask, dtype=query.dtype)
            attn_mask = bias.masked_fill_(attn_mask.logical_not(), float("-inf"))
        *strides, last = attn_mask.stride()
        if any(stride % 8 for stride in strides) or last != 1:
            # The kernel reads rows in steps of 8 (`preprocess_mask` in attention.cpp, 2.13).
            attn_mask = F.pad(attn_mask, (0, 8 - keys % 8))[..., :keys]
        attn_mask = attn_mask.expand(*query.shape[:-1], key.size(-2))
    settings = attn_mask, torch.is_grad_enabled(), dropout_p, is_causal
    return operations.EFFICIENT_FORWARD(query, key, value, *settings, scale=scale)[0]  # type: ignore[no-any-return]


def _are_alike(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Tell whether a fused kernel takes them; else the written-out one does, or says why not."""
    alike = len({(x.dim(), x.dtype, x.size(0)) for x in (query, key, value)}) == 1
    fits = query.size(-1) == key.size(-1) and key.shape[1:-1] == value.shape[1:-1]
    return query.dim() == 4 and alike and fits


def _save_elsewhere(hooks: Any, pin_memory: bool = False, device_type: str = "cuda") -> None:
    """Make `save_on_cpu` take what is saved off the card, and allocate it again for backward."""
    values = next((mode for mode in active_modes() if isinstance(mode, Values)), None)

    def pack(tensor: Tensor) -> Tensor:
        is_known = values is not None and not tensor.is_floating_point() and values.knows(tensor)
        if is_known or tensor.layout is not torch.strided:
            return tensor  # small, and its values may decide
        with without_modes():
            kept = torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta"
            )
            return kept.new_empty(kept.shape) if pin_memory else torch.empty_like(kept)

    def unpack(kept: Tensor) -> Tensor:
        if not kept.is_meta:
            return kept
        made = torch.empty_strided(kept.size(), kept.stride(), dtype=kept.dtype)
        if values is not None:
            values.forget([made])
        return made

    saved_tensors_hooks.__init__(hooks, pack, unpack)


def _softmax(
    fused: Callable[..., Tensor],
    composite: Callable[..., Tensor],
    input: Tensor,
    dim: int,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Read float16 and write float32 in one kernel (aten/src/ATen/native/SoftMax.cpp, 2.13)."""
    if (input.dtype, dtype) == (torch.float16, torch.float32):
        return fused(input, dim, True)
    return composite(input, dim, dtype)


def _group_norm(composite: Callable[..., Tensor], input: Tensor, *settings: Any) -> Tensor:
    """Lay channels-last images out anew (aten/src/ATen/native/group_norm.cpp, 2.13)."""
    return composite(input.contiguous(), *settings)


def _rms_norm(
    composite: Callable[..., Tensor],
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Take the fused kernel, which keeps its input and one number a row.

    Mixed types take the written-out one, as the warning of `F.rms_norm` says (2.13).
    """
    if weight is not None and weight.dtype != input.dtype:
        return composite(input, normalized_shape, weight, eps)
    if weight is None:
        weight = input.new_ones(normalized_shape)
    normalised: Tensor = _FusedRMSNorm.apply(input, weight, eps or torch.finfo(input.dtype).eps)  # type: ignore[no-untyped-call]
    return normalised


class _FusedRMSNorm(torch.autograd.Function):
    """The bytes of CUDA's kernel: no temporary of the input's size, forward or backward."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, eps: float) -> Tensor:
        dims = tuple(range(-weight.dim(), 0))
        norm = torch.linalg.vector_norm(input, dim=dims, keepdim=True, dtype=torch.float32)
        scale = (norm.square_().div_(weight.numel()).add_(eps)).rsqrt_()
        ctx.save_for_backward(input, weight, scale)
        return torch.mul(input, scale.to(input.dtype)).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        input, weight, _ = ctx.saved_tensors
        grad = grads[0].new_empty(input.shape)  # reads the output's gradient, so that it is seen
        return grad, torch.empty_like(weight), None


@contextlib.contextmanager
def _fused_operations() -> Iterator[None]:
    """Take CUDA's kernels, whatever name an operation is called by, in C++ too.

    Those of cells keep each gate.

    Source:
        `LSTMCell` and `GRUCell` in aten/src/ATen/native/RNN.cpp, aten/src/ATen/native/cuda/RNN.cu
        (2.13).
    """
    (lstm, gru), gru_backward = operations.FUSED_CELLS, operations.GRU_CELL_BACKWARD

    def lstm_cell(x: Tensor, hx: list[Tensor], w_ih: Tensor, w_hh: Tensor, *biases: Any) -> Any:
        return lstm(x.matmul(w_ih.t()), hx[0].matmul(w_hh.t()), hx[1], *biases)[:2]

    def gru_cell(x: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, *biases: Any) -> Any:
        return gru(x.matmul(w_ih.t()), hx.matmul(w_hh.t()), hx, *biases)[0]

    # Fake tensors know no shapes of a GRU's cell, nor of an LSTM's without biases.
    def lstm_shapes(gates: Tensor, _: Tensor, cx: Tensor, *biases: Any) -> list[Tensor]:
        return [torch.empty_like(cx), torch.empty_like(cx), torch.empty_like(gates)]

    def gru_shapes(_: Tensor, __: Tensor, hx: Tensor, *biases: Any) -> list[Tensor]:
        return [torch.empty_like(hx), hx.new_empty(hx.size(0), 5 * hx.size(1))]

    def gru_backward_shapes(grad: Tensor, _: Tensor, has_bias: bool) -> list[Tensor | None]:
        gates = [grad.new_empty(grad.size(0), 3 * grad.size(1)) for _ in range(2)]
        biases = [gate.sum(0) if has_bias else None for gate in gates]
        return [*gates, torch.empty_like(grad), *biases]

    composites: dict[str, Callable[..., Tensor]] = {
        "scaled_dot_product_attention": _attention,
        "rms_norm": _rms_norm,
        "group_norm": _group_norm,
        **{n: functools.partial(_softmax, op) for n, op in operations.HALF_TO_FLOAT.items()},
    }
    with operations.overriding_kernels() as library:
        for name, instead in composites.items():
            operations.replace_composite(library, name, instead)
        for fused in (_dropout, lstm_cell, gru_cell):
            name = fused.__name__.lstrip("_")
            library.impl(name, fused, "CompositeImplicitAutograd", allow_override=True)
        library.impl(lstm, lstm_shapes, "Meta", allow_override=True)
        library.impl(gru, gru_shapes, "Meta")
        library.impl(gru_backward, gru_backward_shapes, "Meta")
        yield


def _autocast(
    autocast: torch.autocast, device_type: str, dtype: torch.dtype | None = None, **kwargs: Any
) -> None:
    """Start autocast for `cuda`, which turns itself off where no GPU is, on the CPU's tensors."""
    if device_type == "cuda":
        device_type, dtype = "cpu", dtype or torch.float16  # CUDA's default
    _start_autocast(autocast, device_type, dtype, **kwargs)
