"""Saved tensors: what autograd keeps between forward and backward, counted tensor by tensor."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from tutorial_lib.memory import private_torch
from tutorial_lib.memory.lines import calling_line
from tutorial_lib.memory.storages import list_tensors
from tutorial_lib.units import Bytes

_SHOWN = 40  # rows of a printed table


@dataclass(frozen=True)
class SavedTensor:
    """One tensor that autograd keeps for the backward pass."""

    shape: tuple[int, ...]
    dtype: str  # its element type, as in `float32`
    num_bytes: Bytes  # size of its storage
    # name of the operation that made it; empty when none with a gradient did: an input of
    # the forward, or a statistic that an operation keeps for its own backward
    op: str
    module: str  # path of the module whose forward saved it
    line: str = ""  # file and line, outside PyTorch, that called the operation


@dataclass(frozen=True)
class SavedTensors:
    """All that autograd saved in one forward, in the order in which it was saved.

    All numbers of bytes are `units.Bytes`, which print themselves as text, as in ``1.50 GiB``.
    """

    rows: tuple[SavedTensor, ...]

    @property
    def num_bytes(self) -> Bytes:
        """Bytes of all saved storages."""
        return sum((row.num_bytes for row in self.rows), Bytes(0))

    @property
    def num_storages(self) -> int:
        """Number of saved storages, each counted once."""
        return len(self.rows)

    def by(self, key: str) -> dict[str, Bytes]:
        """Add up the bytes by `module`, `op`, `line`, `shape` or `dtype`.

        Returns:
            From each name to its bytes, the largest first.
        """
        sums: dict[str, Bytes] = {}
        for row in self.rows:
            name = str(getattr(row, key))
            sums[name] = row.num_bytes + sums.get(name, 0)
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def __str__(self) -> str:
        total = f"{self.num_storages} storages, {self.num_bytes} saved"
        lines = [
            f"  {cells[0]:<24}{cells[1]:<18}{cells[2]:>10}  {cells[3]}" for cells in self._cells()
        ]
        return "\n".join([total, *lines, *self._rest()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
            for cells in self._cells()
        )
        return (
            f"<b>{self.num_storages} storages, {self.num_bytes} saved</b><table>"
            "<thead><tr><th>module</th><th>made by</th><th>bytes</th><th>shape</th></tr></thead>"
            f"<tbody>{rows}</tbody></table>{''.join(self._rest())}"
        )

    def _rest(self) -> list[str]:
        hidden = self.rows[_SHOWN:]
        size = sum(row.num_bytes for row in hidden)
        return [f"  and {len(hidden)} more, {size}: see by('module')"] if hidden else []

    def _cells(self) -> Iterator[tuple[str, str, str, str]]:
        for row in self.rows[:_SHOWN]:
            shape = f"{row.dtype} {row.shape}"
            yield row.module or "-", row.op or "-", str(row.num_bytes), shape


def saved(forward: Callable[[], Any], *, params_of: nn.Module | None = None) -> SavedTensors:
    """Count the bytes that autograd keeps between forward and backward.

    A storage counts once, however many views of it are saved.

    Args:
        forward: Called once. Its output may be anything; no backward is run.
        params_of: Module whose parameters and buffers are not counted, since they are resident
            anyway. Its submodules' names stand in the rows.

    Returns:
        Every saved tensor, with shape, bytes, operation and module.

    Raises:
        RuntimeError: When gradients are off, since then nothing is ever saved.

    Source:
        Counts what `torch.autograd.graph.saved_tensors_hooks` reports. Blind to kernel workspace,
        and to what hooks inside `forward` keep in its place (a checkpoint's recompute inputs are
        counted, an offloaded copy is not).

    Example:
        >>> x = torch.zeros(256, 1024, requires_grad=True)
        >>> saved(lambda: x.exp().sin()).num_bytes  # exp saves its output, which is sin's input
        1.00 MiB
    """
    if not torch.is_grad_enabled():
        raise RuntimeError(
            "gradients are off here, so autograd saves nothing: call saved() outside no_grad()."
        )
    recorder = _Recorder(params_of)
    hooks = [
        module_hooks.register_module_forward_pre_hook(recorder.enter),
        module_hooks.register_module_forward_hook(recorder.leave, always_call=True),
    ]
    try:
        with torch.autograd.graph.saved_tensors_hooks(recorder.pack, lambda tensor: tensor):
            forward()
    finally:
        for hook in hooks:
            hook.remove()
    return SavedTensors(tuple(recorder.rows))


class _Recorder:
    """Writes a row for each tensor that autograd packs."""

    def __init__(self, params_of: nn.Module | None) -> None:
        resident = [*params_of.parameters(), *params_of.buffers()] if params_of else []
        self.seen = {private_torch.storage_key(x.untyped_storage()) for x in list_tensors(resident)}
        self.names = {id(m): name for name, m in params_of.named_modules()} if params_of else {}
        self.rows: list[SavedTensor] = []
        self.modules: list[str] = []
        # Held until the count is done, so that no storage is freed and its address reused.
        self.held: list[Tensor] = []

    def enter(self, module: nn.Module, args: Any) -> None:
        self.modules.append(self.names.get(id(module), type(module).__name__))

    def leave(self, module: nn.Module, args: Any, out: Any) -> None:
        self.modules.pop()

    def pack(self, tensor: Tensor) -> Tensor:
        for part in list_tensors([tensor]):
            storage = part.untyped_storage()
            if (key := private_torch.storage_key(storage)) not in self.seen:
                self.seen.add(key)
                self._write(part, storage.nbytes(), tensor.grad_fn)
        # The alias without its graph: keeping `tensor` itself would tie a knot that only the
        # garbage collector undoes.
        self.held.append(tensor.detach())
        return self.held[-1]

    def _write(self, tensor: Tensor, num_bytes: int, grad_fn: Any) -> None:
        op = grad_fn.name().removesuffix("0") if grad_fn else ""
        shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        module = self.modules[-1] if self.modules else ""
        line = calling_line(sys._getframe(2))
        self.rows.append(SavedTensor(shape, dtype, Bytes(num_bytes), op, module, line))
