"""The dtypes in which an answer to 10.5 multiplies matrices."""

from typing import Any

import torch
from torch import Tensor

from tutorial_lib.checks.given import Case
from tutorial_lib.memory.private_torch import TorchDispatchMode

_MATMULS = {torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm}


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
