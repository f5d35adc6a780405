"""An optimizer's states without forward and backward."""

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from tutorial_lib.instruments.segments.structure import map_leaves


def update_once(optimizer: Optimizer) -> None:
    """Create an optimizer's states by an update alone, without forward and backward."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


def create_states(optimizer: Optimizer) -> None:
    """Create the same states, those of like parameters as copies; none may be shared."""
    groups = [group["params"] for group in optimizer.param_groups]
    firsts: dict[Any, Tensor] = {}
    for parameters in groups:
        for p in parameters:
            firsts.setdefault(_kind(p), p)
    for group in optimizer.param_groups:
        group["params"] = [p for p in group["params"] if firsts[_kind(p)] is p]
    update_once(optimizer)
    for group, parameters in zip(optimizer.param_groups, groups, strict=True):
        group["params"] = parameters
    states = dict(optimizer.state)
    optimizer.state.clear()
    for p in (p for parameters in groups for p in parameters):
        if (state := states.get(firsts[_kind(p)])) is not None:
            is_first = firsts[_kind(p)] is p
            optimizer.state[p] = state if is_first else map_leaves(Tensor, Tensor.clone, state)


def _kind(parameter: Tensor) -> Any:
    """Return what decides on the sizes of a parameter's states."""
    return type(parameter), parameter.shape, parameter.stride(), parameter.dtype
