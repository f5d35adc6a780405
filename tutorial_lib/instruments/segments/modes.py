"""The modes of PyTorch under which a model calls something: gradients and autocast."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import torch

_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Modes:
    """Whether gradients are on, and what autocast does, at one place of a program."""

    gradients: bool
    autocast: tuple[tuple[bool, torch.dtype], ...]  # by device: whether it is on, and its type

    @classmethod
    def now(cls) -> Modes:
        """Return the modes at this place."""
        kinds = [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES]
        return cls(torch.is_grad_enabled(), tuple(kinds))

    def restored(self) -> contextlib.ExitStack:
        """Set the modes again until the returned context closes, where they differ."""
        here, undo = Modes.now(), contextlib.ExitStack()
        if here.gradients != self.gradients:
            undo.enter_context(torch.set_grad_enabled(self.gradients))
        pairs = zip(_DEVICES, self.autocast, here.autocast, strict=True)
        for device, (is_on, dtype), now in pairs:
            if (is_on, dtype) != now:
                undo.callback(torch.clear_autocast_cache)  # a recomputation would keep its casts
                undo.enter_context(torch.autocast(device, dtype=dtype, enabled=is_on))
        return undo
