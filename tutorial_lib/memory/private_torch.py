"""The names that the meters use, and that PyTorch keeps to itself: they may move in any release.

Each name says the file of PyTorch 2.13 that it was read in; where one is gone, `memory.release`
names the function that needs it. What `instruments` needs of the kind stands in
`instruments/private_torch`.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, Self
from unittest import mock

import torch
from torch import Tensor, nn

# torch/_subclasses/fake_tensor.py: tensors with a shape and no memory.
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

# torch/utils/_python_dispatch.py: modes that are asked about every operation.
from torch.utils import _python_dispatch, checkpoint
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

__all__ = ["FakeTensor", "FakeTensorMode"]
_DEVICE_OF = torch.ops.prim.device.default


class TorchDispatchMode(_python_dispatch.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """PyTorch's mode that is asked about operations, but not for the device of a fake tensor.

    Autograd asks for that device twice for each operation: answered here, a prediction takes a
    quarter less time. `memory.meter` keeps compiled code out, so that the guard that PyTorch puts
    around each call is left away (`_should_skip_dynamo`).
    """

    takes_wrappers = False  # they take themselves apart, and their parts come by here

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)  # type: ignore[no-untyped-call]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        # A prediction remembers results, and gives them faster to who asks it and not PyTorch.
        quick = getattr([None, *active_modes()][-1], "run_above", None)
        self.run_below: Callable[..., Any] = quick or (lambda func, args, kw: func(*args, **kw))
        return super().__enter__()  # type: ignore[no-untyped-call, no-any-return]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is _DEVICE_OF and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        if types and not self.takes_wrappers and any(map(is_wrapper, types)):
            return NotImplemented
        return self.run_operation(func, args, kwargs or {})

    def run_operation(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation, and do what the mode is there for."""
        return func(*args, **kwargs)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def storage_key(storage: torch.UntypedStorage) -> int:
    """Identify a storage as long as it lives (`_cdata`: torch/_C/__init__.pyi, StorageBase)."""
    key: int = storage._cdata
    return key


def storage_keys(tensors: Sequence[Tensor]) -> list[int]:
    """`storage_key` of each tensor's storage; 0 where it has none, as sparse ones.

    `vmap` and `grad` wrap tensors that are seen before (`is_functorch_wrapped_tensor`:
    torch/_C/_functorch.pyi).
    """
    try:
        return [tensor.untyped_storage()._cdata for tensor in tensors]
    except NotImplementedError:
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor
        pairs = [(t, t.layout is torch.strided and not wrapped(t)) for t in tensors]
        return [t.untyped_storage()._cdata if strided else 0 for t, strided in pairs]


def active_modes() -> list[_python_dispatch.TorchDispatchMode]:
    """List the dispatch modes that are active, innermost last (torch/utils/_python_dispatch.py)."""
    return _get_current_dispatch_mode_stack()


def is_fake(tensor: Tensor) -> bool:
    """Tell whether a tensor has a shape and no memory (torch/_subclasses/fake_tensor.py)."""
    return isinstance(tensor, FakeTensor)


@functools.cache
def is_wrapper(kind: type) -> bool:
    """Tell whether tensors of a type hold others, and no memory of their own (sharded ones do).

    torch/utils/_python_dispatch.py, `is_traceable_wrapper_subclass_type`.
    """
    return hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__")


def is_compiled(module: nn.Module) -> bool:
    """Tell whether `module.compile()` or `torch.compile(module)` was called, or of a part of it.

    `_compiled_call_impl`: torch/nn/modules/module.py; `_orig_mod`: torch/_dynamo/eval_frame.py.
    """
    return any(
        part._compiled_call_impl is not None or "_orig_mod" in part._modules
        for part in module.modules()
    )


@contextlib.contextmanager
def compiling_nothing() -> Iterator[None]:
    """Run compiled code as it was in a block; a budget for a region of it, which raises then, too.

    `region_activation_memory_budget`, which older releases do not have: torch/autograd/graph.py.
    """
    region = torch.autograd.graph, "region_activation_memory_budget", contextlib.nullcontext
    with torch.compiler.set_stance("force_eager"), mock.patch.object(*region, create=True):
        yield


@contextlib.contextmanager
def run_uncompiled(called: Callable[[], None]) -> Iterator[None]:
    """Run compiled code as it was in a block, and tell of each call of it.

    `_callback_from_stance`, which compiled code asks how to run: torch/_dynamo/eval_frame.py.
    """
    with compiling_nothing():
        chooser = sys.modules["torch._dynamo.eval_frame"]
        plain = vars(chooser)["_callback_from_stance"]

        def choose(callback: Any) -> Any:
            if callback not in (None, False):  # as of what is to stay uncompiled
                called()
            return plain(callback)

        with mock.patch.object(chooser, "_callback_from_stance", choose):
            yield


def in_backward() -> bool:
    """Tell whether autograd's engine is at work here, recomputation within it included.

    `_current_graph_task_id`: torch/_C/__init__.pyi; -1 outside the engine.
    """
    return torch._C._current_graph_task_id() != -1


@contextlib.contextmanager
def watched_backwards() -> Iterator[list[bool]]:
    """Yield a list that says of each backward that is running whether it keeps a graph of its own.

    `_engine_run_backward`, which `backward` and `grad` call with `create_graph` as their third
    argument after the outputs: torch/autograd/__init__.py.
    """
    running: list[bool] = []
    plain = vars(torch.autograd)["_engine_run_backward"]

    def run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        running.append(bool(args[2]))
        try:
            return plain(outputs, *args, **kwargs)
        finally:
            running.pop()

    with mock.patch.object(torch.autograd, "_engine_run_backward", run):
        yield running


def in_checkpoint(frame: FrameType | None, function: str = "checkpoint") -> bool:
    """Tell whether a frame was called by a checkpoint; by `unpack_hook`, to recompute.

    `checkpoint`, and `unpack_hook` of `_checkpoint_hook`: torch/utils/checkpoint.py.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_name == function and code.co_filename == checkpoint.__file__:
            return True
        frame = frame.f_back
    return False


def leaves_of(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the leaves that the graph behind a tensor holds, for their gradients.

    `variable` of an AccumulateGrad node: torch/csrc/autograd/functions/accumulate_grad.h.
    """
    nodes: list[Any] = [tensor.grad_fn]
    seen: set[Any] = {None}
    while nodes:
        if (node := nodes.pop()) not in seen:
            seen.add(node)
            nodes += [before for before, _ in node.next_functions]
            if hasattr(node, "variable"):
                yield node.variable


def sparse_parts(tensor: Any) -> list[Tensor]:
    """List the tensors that a sparse one consists of (`_indices`: native_functions.yaml)."""
    if not isinstance(tensor, Tensor):
        return []
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []


# ---- CUDA's allocator ----


def release_cublas_workspaces() -> None:
    """Free the memory that cuBLAS keeps (torch/_C/__init__.pyi)."""
    torch._C._cuda_clearCublasWorkspaces()


def record_allocations(**settings: Any) -> None:
    """Begin to record what the allocator does; `enabled=None` ends it (torch/cuda/memory.py)."""
    torch.cuda.memory._record_memory_history(**settings)


def write_snapshot(path: str) -> None:
    """Write the record for PyTorch's memory viewer (`_dump_snapshot`: torch/cuda/memory.py)."""
    torch.cuda.memory._dump_snapshot(path)  # type: ignore[no-untyped-call]
