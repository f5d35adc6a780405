"""A loss that 10.3's answers know nothing of, and the dtypes of matmuls in an answer to 10.5."""

from typing import Any

import torch
from torch import Tensor

from tutorial_lib.checks.given import Case
from tutorial_lib.memory.private_torch import TorchDispatchMode

_MATMULS = {torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm}


def squares(hidden: Tensor, targets: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return half the sum of the squares of `hidden @ weight.T + bias - targets`."""
    rest = hidden @ weight.T + bias - targets[:, None]
    loss: Tensor = rest.square().sum() / 2
    return loss


def squares_of_chunk(
    hidden: Tensor, targets: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the same of a chunk, and its gradients; None for a bias that is frozen."""
    rest = (hidden @ weight.T).add_(bias).sub_(targets[:, None])
    of_bias = rest.sum(0) if bias.requires_grad else None
    return rest.square().sum() / 2, rest @ weight, rest.T @ hidden, of_bias


class Matmuls(TorchDispatchMode):
    """Note the dtypes of all matmuls with as much work as one token's logits, or more."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.least, self.types = case["vocab"] * case["width"], set[str]()

    def run_operation(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Note the type of a large matmul."""
        made = func(*args, **kwargs)
        if func.overloadpacket in _MATMULS:
            first, second = [a for a in args if isinstance(a, Tensor)][-2:]
            if first.numel() * second.shape[-1] >= self.least:
                self.types.add(str(made.dtype).removeprefix("torch."))
        return made
