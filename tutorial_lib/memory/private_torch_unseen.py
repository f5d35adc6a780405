"""What PyTorch's own instruments do not see: the inside of a loss with its head, and some FLOPs.

An LSTM has none in PyTorch's list, though a GRU, which a CPU runs as matmuls, has them there.

The operations are by names that PyTorch keeps to itself (native_functions.yaml, and
torch/nn/modules/linear_cross_entropy.py), 2.13.
"""

import functools
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import flop_counter as _flops
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode, flop_registry
from torch.utils.module_tracker import ModuleTracker

_aten = torch.ops.aten
# Not in PyTorch's list: matmuls in place, and up to 2.14 the attention of a CPU. Their arguments
# are those of what is.
_ALIKE = {
    _aten.addmm_: _aten.addmm,
    _aten.baddbmm_: _aten.baddbmm,
    _aten._scaled_dot_product_flash_attention_for_cpu: _aten._scaled_dot_product_flash_attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        _aten._scaled_dot_product_flash_attention_backward
    ),
}


def _of_groups(formula: Callable[..., int], *shapes: Any) -> int:
    """Count attention whose keys have fewer heads than its queries, refused up to 2.11."""
    *_, query, key, value = shapes
    return formula(*shapes[:-2], *((b, query[1], *rest) for b, _, *rest in (key, value)))


for _name in ("sdpa_flop_count", "sdpa_backward_flop_count"):
    setattr(_flops, _name, functools.partial(_of_groups, getattr(_flops, _name)))


def run_opaque(
    mode: TorchDispatchMode, operation: Any, args: Any, kwargs: Any, *, halves: bool
) -> Any:
    """Return what an operation of `torch.nn` gives, with the mode asked about its inside too.

    `linear_cross_entropy` with options is one operation. A GPU runs something else inside it in 16
    bits: `halves=False` leaves those alone. `OPDEFS`, `_init_fn`: torch/_library/custom_ops.py;
    `__enter__` of the class itself: torch/utils/_python_dispatch.py.
    """
    known = sys.modules["torch._library.custom_ops"].OPDEFS.get(operation.name())
    if known is None or not (halves or args[0].element_size() > 2):
        return operation(*args, **kwargs)
    anew: Any = TorchDispatchMode
    anew.__enter__(mode)
    try:
        return known._init_fn(*args, **kwargs)
    finally:
        anew.__exit__(mode, None, None, None)


def _of_a_head(input: Tensor, head: Tensor, *settings: Any, **_: Any) -> int:
    """Count the matmuls of a loss with its head, whose gradients are made in forward if at all."""
    matmuls = 1 + sum(settings[-3:-1]) if len(settings) == 13 else 1  # of reduction="none": loss
    return 2 * input.numel() * head.size(0) * matmuls


def _of_rnn(rows: Tensor, weights: Any, more: Any, *_: Any, times: int = 1, **__: Any) -> int:
    """Count what multiplies each step of each row: a layer's two matrices, or all in a list."""
    pair = [weights, more]
    matrices = [w for w in weights if w.dim() == 2] if isinstance(weights, list) else pair
    per_row = sum(matrix.numel() for matrix in matrices)
    return int(2 * times * per_row * (rows.numel() // rows.size(-1)))


def _of_convolution(above: Tensor, rows: Tensor, weights: Tensor, *more: Any, **_: Any) -> int:
    """Count a convolution's backward; PyTorch's counts one of groups that many times."""
    positions = (rows if more[-4] else above).numel()  # of a transposed one its input's
    return int(2 * weights[0].numel() * positions * sum(more[-1][:2]))


_BACKWARD: dict[Any, Callable[..., int]] = {_aten.convolution_backward: _of_convolution}
_OF_RNN: dict[Any, Callable[..., int]] = {
    _aten.mkldnn_rnn_layer: _of_rnn,
    _aten.mkldnn_rnn_layer_backward: functools.partial(_of_rnn, times=2),
    _aten._cudnn_rnn: _of_rnn,
    _aten._cudnn_rnn_backward: functools.partial(_of_rnn, times=2),
}


def flops_of(operation: Any) -> Callable[..., int] | None:
    """Return what counts the FLOPs of an operation; `None` for an LSTM and all but matmuls."""
    packet = operation.overloadpacket
    return _BACKWARD.get(packet) or flop_registry.get(_ALIKE.get(packet, packet))


class _Tracker(ModuleTracker):
    """PyTorch's tracker, which has no hooks on leaves: `autograd.grad` by an input refuses them.

    `_fw_pre_hook`, `_fw_post_hook`: torch/utils/module_tracker.py.
    """

    def _fw_pre_hook(self, mod: Any, input: Any) -> None:
        super()._fw_pre_hook(mod, tree_map_only(Tensor, _made, input))

    def _fw_post_hook(self, mod: Any, input: Any, output: Any) -> None:
        super()._fw_post_hook(mod, input, tree_map_only(Tensor, _made, output))


def _made(tensor: Tensor) -> Tensor | None:
    return None if tensor.is_leaf else tensor


def flop_counter() -> FlopCounterMode:
    """Return PyTorch's FLOP counter, which here also counts what its list leaves out.

    Source:
        PyTorch's formulas for a GPU's fused attention: two matmuls forward, and five backward,
        since the scores are recomputed. A causal mask halves none of them.
    """
    counter = FlopCounterMode(display=False)
    counter.mod_tracker = _Tracker()
    counter.flop_registry |= {unlisted: flop_registry[known] for unlisted, known in _ALIKE.items()}
    counter.flop_registry |= _OF_RNN | _BACKWARD
    if importlib.util.find_spec("torch.nn.modules.linear_cross_entropy"):  # 2.13 on
        importlib.import_module("torch.nn.modules.linear_cross_entropy")
        name = "_linear_cross_entropy_batch_chunked"
        losses = (name, f"{name}_no_reduction")
        counter.flop_registry |= {getattr(torch.ops.torch_nn, n): _of_a_head for n in losses}
    return counter
