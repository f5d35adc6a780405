"""Patches of names that PyTorch keeps to itself, and may move in any release.

For fake tensors and for ranks that are not there, which PyTorch's own code does not expect. Each
name says the file of PyTorch 2.13 that it was read in. Patches are functions: mock's `return_value`
would remember the tensors that it is called with.
"""

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from tutorial_lib.instruments.private_torch import without_modes
from tutorial_lib.memory.private_torch import FakeTensor
from tutorial_lib.memory.storages import list_tensors

Patch = contextlib.AbstractContextManager[Any]


def fake_store() -> Any:
    """Store of the `fake` backend, whose import makes that backend known.

    torch/testing/_internal/distributed/fake_pg.py. What collectives do with fake tensors is in
    torch/distributed/_meta_registrations.py, or before 2.11 in _tools/fake_collectives.py.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if importlib.util.find_spec("torch.distributed._meta_registrations") is None:
        importlib.import_module("torch.distributed._tools.fake_collectives")
    return FakeStore()


@contextlib.contextmanager
def with_loss_options_of_cuda() -> Iterator[None]:
    """Choose the pieces and types of `linear_cross_entropy` as on a GPU (Ampere or newer).

    `_adjust`, `_resolve_auto_acc_dtype`: torch/nn/modules/linear_cross_entropy_options.py.
    """
    options: Any = getattr(nn, "LinearCrossEntropyOptions", None)
    if options is None:
        yield
        return
    adjust, resolve = options._adjust, options._resolve_auto_acc_dtype

    def adjust_for_cuda(self: Any, *args: Any, **kwargs: Any) -> Any:
        return adjust(self, *args, **{**kwargs, "device": torch.device("cuda")})

    def resolve_as_a_cpu(dtype: torch.dtype, _: Any) -> Any:  # asks a GPU that is not there
        return resolve(dtype, torch.device("cpu"))

    with (
        mock.patch.object(options, "_adjust", adjust_for_cuda),
        mock.patch.object(options, "_resolve_auto_acc_dtype", staticmethod(resolve_as_a_cpu)),
    ):
        yield


@contextlib.contextmanager
def with_ranks_on_the_fake_backend() -> Iterator[None]:
    """Make DDP train where no gradient is sent: the fake backend's answer is not what it expects.

    `_comm_hooks`, `_verify_param_shape_across_processes`: torch/nn/parallel/distributed.py. What
    a hook gets and gives back has the bytes of the built-in all-reduce. And leave out the whole
    tensors of which DTensor asks a shape: torch/distributed/tensor/_sharding_prop.py.
    """
    parallel = torch.nn.parallel.distributed
    forward = parallel.DistributedDataParallel.forward
    tensors = importlib.import_module("torch.distributed.tensor._sharding_prop")
    asker, name = tensors.ShardingPropagator, "_propagate_tensor_meta_non_cached"

    def all_reduce(group, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        torch.distributed.all_reduce(bucket.buffer(), group=group)
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def forward_with_hook(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._comm_hooks:
            self.register_comm_hook(self.process_group, all_reduce)
        return forward(self, *args, **kwargs)  # type: ignore[no-untyped-call]

    with (
        mock.patch.object(asker, name, without_modes()(getattr(asker, name))),  # type: ignore[operator]
        mock.patch.object(parallel.DistributedDataParallel, "forward", forward_with_hook),
        mock.patch.object(parallel, "_verify_param_shape_across_processes", _never),
    ):
        yield


def without_truncated_normal() -> Patch:
    """Make `trunc_normal_` leave tensors as they are: its rejection sampling looks at values.

    `_no_grad_trunc_normal_`: torch/nn/init.py (2.12 and up).
    """
    return mock.patch.object(nn.init, "_no_grad_trunc_normal_", lambda tensor, *_, **__: tensor)


def without_tracebacks_of_fake_tensors() -> Patch:
    """Keep fake tensors from printing refusals (`log`: torch/_subclasses/fake_tensor.py)."""
    return mock.patch("torch._subclasses.fake_tensor.log.disabled", True)


def without_printed_tensors() -> Patch:
    """Name devices in errors: where printing a tensor fails, autograd stays off (render_call)."""
    devices = lambda _, *given: str([tensor.device for tensor in list_tensors(given)])  # noqa: E731
    return mock.patch("torch._subclasses.fake_tensor.render_call", devices)


def with_weak_references() -> Patch:
    """Make `module.to` swap parameters that have weak references, as all fake ones have.

    `getweakrefs`, asked by `swap_tensors`: torch/utils/__init__.py.
    """
    return mock.patch("torch.utils.weakref.getweakrefs", lambda _: [])  # noqa: PT008


def _never(*_: Any) -> bool:
    return False


def with_finite_gradients() -> Patch:
    """Make a gradient scaler update without a look whether all gradients are finite.

    `_maybe_opt_step`: torch/amp/grad_scaler.py.
    """

    def update(_: Any, optimizer: Any, __: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)

    return mock.patch.object(torch.amp.GradScaler, "_maybe_opt_step", update)


def with_constructor(read: Callable[..., Tensor]) -> Patch:
    """Put a function in the place of `torch.tensor`, which TorchScript need not compile.

    `_register_builtin`: torch/jit/_builtins.py. `_device_constructors`: torch/utils/_device.py,
    a list that is made once, by the first `with torch.device(...)`, and for good: made from now on
    it would lack `torch.tensor`, and weights would stay on the CPU.
    """
    importlib.import_module("torch.utils._device")._device_constructors()
    importlib.import_module("torch.jit._builtins")._register_builtin(read, "aten::tensor")
    return mock.patch.object(torch, "tensor", read)


@contextlib.contextmanager
def with_packed_sequences(read: Callable[[Tensor], Tensor], pad: Any, pack: Any) -> Iterator[None]:
    """Make recurrent layers take fake packed sequences, whose sizes they read from memory.
    `_VF`, called with data, sizes, states and a list of weights; of padded sequences without sizes:
    torch/nn/modules/rnn.py. What takes the place of what pads and packs: torch/nn/utils/rnn.py.
    """

    def reading(kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(data: Tensor, second: Any, third: Any, *more: Any) -> Any:
            is_sizes = isinstance(second, FakeTensor) and not isinstance(third, list)
            return kernel(data, read(second) if is_sizes else second, third, *more)

        return run

    kernels: Any = torch._VF
    made = {n: reading(getattr(kernels, n)) for n in ("lstm", "gru", "rnn_tanh", "rnn_relu")}
    others = {"_pad_packed_sequence": pad, "_pack_padded_sequence": pack}
    with contextlib.ExitStack() as stack:
        for name, kernel in (made | others).items():
            stack.enter_context(mock.patch.object(kernels, name, kernel))
        yield


def without_new_buckets() -> Patch:
    """Make DDP keep its first buckets: to choose others it looks into a tensor's memory.

    All buckets together have the same bytes. `_rebuild_buckets`: torch/_C/_distributed_c10d.pyi.
    """
    if not torch.distributed.is_available():
        return contextlib.nullcontext()
    reducer = vars(torch.distributed)["Reducer"]
    return mock.patch.object(reducer, "_rebuild_buckets", _never)


def with_gradient_scaler() -> Patch:
    """Keep a gradient scaler for `cuda` on where there is no GPU.

    `amp_definitely_not_available`: torch/cuda/amp/common.py, asked in torch/amp/grad_scaler.py.
    """
    return mock.patch("torch.cuda.amp.common.amp_definitely_not_available", return_value=False)


@contextlib.contextmanager
def with_optimizers_of_cuda() -> Iterator[None]:
    """Make optimizers choose for tensors on the CPU, fake ones too, what they choose on CUDA.

    That is `foreach`, where the user chose nothing and PyTorch has it for the optimizer, and
    `capturable`, where the user asked for it. `_default_to_fused_or_foreach`,
    `_get_capturable_supported_devices`: torch/optim/optimizer.py.
    """
    chooser: Any = sys.modules["torch.optim.optimizer"]
    kinds = [*chooser._foreach_supported_types, FakeTensor]
    name = "_get_capturable_supported_devices"
    askers = [one for at, one in sys.modules.items() if at.startswith("torch.optim.")]
    changed: list[Patch] = [
        mock.patch.object(chooser, "_foreach_supported_types", kinds),
        mock.patch.object(chooser, "_get_foreach_kernels_supported_devices", _on_the_cpu),
        *(mock.patch.object(one, name, _on_the_cpu) for one in askers if name in vars(one)),
    ]
    with contextlib.ExitStack() as stack:
        for patch in changed:
            stack.enter_context(patch)
        yield


def _on_the_cpu(supports_xla: bool = True) -> list[str]:  # TorchScript compiles it
    return ["cpu"]
