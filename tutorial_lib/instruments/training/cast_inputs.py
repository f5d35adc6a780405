"""Cast the batch of a user's function to the precision that its model gets."""

from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.instruments.segments.structure import map_leaves


def cast_inputs(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast the floating-point tensors that a loss hands to a model, from now on.

    Training in bfloat16 throughout needs the batch cast as well as the model, since kernels refuse
    two types. What the model itself makes in another type is left alone, as are the targets. The
    cast is a part of autograd's graph.

    Args:
        model: With parameters of that type. A model without a forward of its own holds several:
            each of its children is handed its inputs in that type.
        dtype: The type.
    """

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    def enter(module: nn.Module, args: Any, kwargs: Any) -> Any:
        return map_leaves(Tensor, cast, (args, kwargs))

    holds_several = type(model).forward is nn.Module.forward
    for module in model.children() if holds_several else [model]:
        module.register_forward_pre_hook(enter, with_kwargs=True)
