"""Each private name of PyTorch that the library uses: what no longer works when a release moves it.

What only a PyTorch built for CUDA has is looked up in the stubs, which every build ships;
`test_emulated.py` runs it where there is such a build.
"""

import gc
import inspect
import logging
import pkgutil
import re
import subprocess
import sys
import weakref
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from tutorial_lib.instruments import private_torch as private
from tutorial_lib.instruments.private_torch import emulated_card, fakes, operations, patches
from tutorial_lib.memory import private_torch as meters

STUBS = Path(torch.__file__).parent / "_C" / "__init__.pyi"


def test_fake_tensors_have_a_shape_and_refuse_their_values():
    """Else `memory.predict` and `predicting` allocate, or do not say which line asks."""
    with meters.FakeTensorMode():
        x = torch.zeros(3)
        assert isinstance(x, meters.FakeTensor)
        with pytest.raises(private.DataDependentOutputException):
            x.sum().item()
        with pytest.raises(private.DynamicOutputShapeException):
            x.nonzero()


def test_a_fake_tensor_is_made_as_its_constructor_makes_it():
    """Else remembered operations answer with tensors that later ones take for something else."""
    with meters.FakeTensorMode() as mode:
        plain = torch.empty(4, 3)
        view = plain.t()[1:]
    maker = fakes.FakeMaker(mode)
    with fakes.asking_no_mode():
        made = maker.make(plain.dtype, plain.shape, plain.stride())
        of = maker.make_view(made, view.dtype, view.shape, view.stride(), 1)
    for mine, theirs in ((made, plain), (of, view)):
        assert type(mine) is meters.FakeTensor
        assert maker.makes(mine) is maker.makes(theirs) is True
        assert vars(mine) == vars(theirs)
        assert (mine.shape, mine.stride()) == (theirs.shape, theirs.stride())
        assert (mine.dtype, mine.device) == (theirs.dtype, theirs.device)
        assert torch._C._dispatch_key_set(mine) == torch._C._dispatch_key_set(theirs)
        with pytest.raises(RuntimeError):
            mine.data_ptr()
    assert meters.storage_key(made.untyped_storage()) == meters.storage_key(of.untyped_storage())


def test_a_fake_number_is_made_with_its_value_and_its_memory():
    """Else `torch.tensor(1.0).item()` is unknown, or a view of it takes memory of its own."""
    with meters.FakeTensorMode() as mode:
        maker = fakes.FakeMaker(mode)
        with fakes.asking_no_mode():
            number = maker.make_constant(torch.tensor(2.5))
            same = maker.make_constant(number.constant.detach(), number)
        view = number.view(1)
        same.add_(1)
        assert number.item() == same.item() == view.item() == 3.5
        keys = {meters.storage_key(x.untyped_storage()) for x in (number, same, view)}
        assert len(keys) == 1
        number.add_(torch.empty(()))
        assert number.constant is same.constant is None


class Seen(meters.TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.operations = []

    def run_operation(self, func, args, kwargs):
        self.operations.append(func)
        return func(*args, **kwargs)

    @property
    def names(self):
        return [operation.overloadpacket.__name__ for operation in self.operations]


def test_a_dispatch_mode_is_asked_about_every_operation_and_is_listed():
    """Else nothing is measured or capped, and a meter inside another mode gives no warning."""
    with Seen() as mode:
        torch.ones(2).add(1)
        assert meters.active_modes() == [mode]
    assert mode.names == ["ones", "add"]
    assert meters.active_modes() == []


def test_modes_and_kernels_that_intercept_are_listed(run_python):
    """Else an answer's mode that is left on, or its kernel, compares in the place of PyTorch's."""
    before = operations.interceptors()
    with Seen(), torch.overrides.BaseTorchFunctionMode():
        assert len(operations.interceptors()) == len(before) + 2
    assert operations.interceptors() == before
    with torch.device("cpu"):
        assert operations.interceptors() == before
    program = """if True:
        import torch
        from tutorial_lib.instruments.private_torch.operations import interceptors
        before = interceptors()
        library = torch.library.Library("aten", "IMPL")
        library.impl("equal", lambda a, b: True, "CPU")
        assert interceptors() != before"""
    assert run_python("-c", program).returncode == 0


def test_a_dispatch_mode_is_not_asked_where_a_fake_tensor_lies():
    """Else two of three calls are that question, and predictions take a third longer."""
    with meters.FakeTensorMode(), Seen() as mode:
        x = torch.ones(2, requires_grad=True)
        assert x.device == torch.device("cpu")
        x.mul(2).sum().backward()
    assert {"ones", "mul", "sum"} <= set(mode.names)
    assert "device" not in mode.names


def test_nested_values_are_taken_apart_and_put_together():
    """Else collectives count no bytes, and a planned call loses its arguments."""
    value = {"a": [1, (2.0, None)]}
    leaves, spec = private.tree_flatten(value)
    assert leaves == private.tree_leaves(value)
    assert isinstance(spec, private.TreeSpec)
    assert private.tree_unflatten(leaves, spec) == value
    assert private.tree_map_only(float, str, value) == {"a": [1, ("2.0", None)]}


def test_the_memory_format_of_a_result():
    """Else a predicted batch norm has another layout than a real one, and copies too often."""
    x = torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert private.suggest_memory_format(x) is torch.channels_last


def test_a_storage_has_one_key_and_views_share_it():
    """Else a view counts as memory of its own, in every measurement."""
    x, y = torch.ones(4), torch.ones(4)
    keys = [meters.storage_key(tensor.untyped_storage()) for tensor in (x, x[1:], y)]
    assert keys[0] == keys[1] != keys[2]


def test_writes_in_place_are_counted():
    """Else lab 01 does not see that an answer changed the model."""
    x = torch.ones(2)
    before = private.times_written(x)
    x.add_(1)
    assert private.times_written(x) == before + 1


def test_a_compiled_module_is_known_by_either_way():
    """Else `measure` gives a compiled model's bytes without the warning that they are not its."""
    assert not meters.is_compiled(nn.Linear(1, 1))
    assert meters.is_compiled(torch.compile(nn.Linear(1, 1)))
    assert meters.is_compiled(nn.Sequential(torch.compile(nn.Linear(1, 1))))
    by_call = nn.Sequential(nn.Linear(1, 1))
    by_call[0].compile()
    assert meters.is_compiled(by_call)


def test_a_whole_call_is_replaced_hooks_included():
    """Else plans run a stage without its hooks: FSDP gathers weights in one."""
    module, seen = nn.Identity(), []
    module.register_forward_pre_hook(lambda *of: seen.append("hook"))
    whole = getattr(module, private.CALL)
    vars(module)[private.CALL] = lambda x: whole(x) + 1
    assert (module(1), seen) == (2, ["hook"])


def test_backward_is_told_from_forward():
    """Else every phase is called forward, and nothing is ever called recomputed."""
    seen = []
    x = torch.ones(1, requires_grad=True)
    y = x * 2
    y.register_hook(lambda _: seen.append(meters.in_backward()))
    seen.append(meters.in_backward())
    y.backward()
    assert seen == [False, True]


def test_hooks_of_saved_tensors_are_pushed_by_these_functions():
    """Else lab 01 accepts an answer that counts what it should work out."""
    for name in private.PUSHES_SAVED_TENSOR_HOOKS:
        assert callable(pkgutil.resolve_name(name))
    assert "_push_saved_tensors_default_hooks(" in inspect.getsource(
        torch.autograd.graph.saved_tensors_hooks.__enter__
    )


def test_what_autocast_does_with_an_operation_is_known():
    """Else `predict` casts what this version of PyTorch does not cast."""
    assert "aten::mm" in operations.operation_names()
    assert operations.has_kernel("aten::mm", "AutocastCUDA")
    assert not operations.has_kernel("aten::relu", "AutocastCUDA")


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_a_kernel_is_replaced_in_a_block_and_below_it_autocast_is_off():
    """Else `predict` keeps the CPU's autocast policy, or never comes back to it."""

    def in_float32(*args):
        with operations.below_cpu_autocast():
            return torch.ops.aten.mm.default(*args)

    x = torch.ones(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert x.mm(x).dtype is torch.bfloat16
        with operations.overriding_kernels() as library:
            library.impl("mm", in_float32, "AutocastCPU", allow_override=True)
            assert x.mm(x).dtype is torch.float32
        assert x.mm(x).dtype is torch.bfloat16


def test_an_operation_says_its_overload_and_its_arguments():
    """Else CUDA's autocast of norms and sums is predicted in the wrong type."""
    assert operations.overload_name(torch.ops.aten.norm.ScalarOpt_dim) == "ScalarOpt_dim"
    assert operations.argument_names(torch.ops.aten.sum.dim_IntList)[:2] == ["self", "dim"]


def test_an_operation_says_whether_it_gives_a_view():
    """Else a plan's predicted seconds count views as copies."""
    views = [op for op in ("view", "t", "add", "relu_") if operations.gives_view(default_of(op))]
    assert views == ["view", "t"]


def default_of(name):
    return getattr(torch.ops.aten, name).default if name != "add" else torch.ops.aten.add.Tensor


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_cudas_attention_kernels_can_be_called_on_fake_tensors(half):
    """Else `predict` has no attention of a GPU."""
    with meters.FakeTensorMode():
        q = torch.zeros(1, 2, 16, 8, dtype=half)
        assert operations.FLASH_FORWARD(q, q, q, 0.0, False, False, scale=None)[0].shape == q.shape
        out = operations.EFFICIENT_FORWARD(q, q, q, None, True, 0.0, False, scale=None)[0]
        assert out.shape == q.shape


def test_softmax_reads_float16_and_writes_float32_in_one_kernel():
    """Else a predicted float16 softmax keeps a copy of its input that no GPU keeps."""
    with meters.FakeTensorMode():
        x = torch.zeros(2, 3, dtype=torch.float16, device="cuda")
        for fused in operations.HALF_TO_FLOAT.values():
            assert fused(x, -1, True).dtype is torch.float32


def test_a_composite_is_replaced_and_can_be_called():
    """Else a prediction takes a CPU's kernel of attention, norms and softmax."""
    x = torch.ones(1, 1, 4, 8)
    with operations.overriding_kernels() as library:
        operations.replace_composite(
            library, "group_norm", lambda plain, x, *settings: 2 * plain(x, *settings)
        )
        assert torch.equal(nn.functional.group_norm(x, 1, bias=x.new_ones(1)), 2 * x)
    assert torch.equal(nn.functional.group_norm(x, 1, bias=x.new_ones(1)), x)


def test_a_fake_tensor_that_refuses_prints_nothing(caplog, monkeypatch):
    for name, logger in logging.root.manager.loggerDict.items():
        if name.endswith(".fake_tensor"):  # a command that ran in this process silences it
            monkeypatch.setattr(logger, "disabled", False)

    def refuse():
        with meters.FakeTensorMode(), pytest.raises(RuntimeError):
            torch.ones(2, 3) @ torch.ones(2, 3)
        return caplog.text

    with patches.without_tracebacks_of_fake_tensors():
        assert refuse() == ""
    assert "failed while attempting to run meta" in refuse()


def test_an_operation_says_whether_it_makes_new_tensors():
    aten = torch.ops.aten
    assert operations.makes_new(aten.mm.default)
    assert not operations.makes_new(aten.view.default)
    assert not operations.makes_new(aten.add_.Tensor)
    assert operations.overloads("mm")[:1] == [aten.mm.default]
    assert aten.mm.out not in operations.overloads("mm")


def test_fake_tensors_pass_a_truncated_normal():
    """Else no vision transformer can be predicted: its initialisation looks at values."""
    with meters.FakeTensorMode(), patches.without_truncated_normal():
        nn.init.trunc_normal_(torch.zeros(3))
    x = torch.zeros(3)
    with patches.without_truncated_normal():
        nn.init.trunc_normal_(x)
    assert x.tolist() == [0.0] * 3


def test_tensors_with_weak_references_can_be_swapped():
    """Else `model.to(dtype)` fails in a predicted step."""
    x, y = torch.zeros(1), torch.ones(1)
    held = weakref.ref(x)
    with pytest.raises(RuntimeError, match="weakref"):
        torch.utils.swap_tensors(x, y)
    with patches.with_weak_references():
        torch.utils.swap_tensors(x, y)
    assert held() is x
    assert x.item() == 1


def test_packed_sequences_go_through_these_functions():
    """Else no recurrent layer runs on fake packed sequences."""
    asked = []

    def pad(data, sizes, *more):
        asked.append((type(sizes), more))
        return data, sizes

    def put(padded, lengths, *more):
        asked.append((type(lengths), more))
        return operations.PACK(padded, lengths, *more)

    with Seen() as mode, patches.with_packed_sequences(lambda fake: fake, pad, put):
        pack = nn.utils.rnn.pack_padded_sequence(torch.ones(2, 3, 4), torch.tensor([3, 2]), True)
    assert operations.PACK in mode.operations
    with patches.with_packed_sequences(lambda fake: pack.batch_sizes, pad, put):
        for kind in (nn.LSTM, nn.GRU, nn.RNN):
            assert kind(4, 4)(pack)[0].data.shape == (5, 4)
        nn.utils.rnn.pad_packed_sequence(nn.utils.rnn.PackedSequence(pack.data, pack.batch_sizes))
    assert asked == [(torch.Tensor, (True,)), (torch.Tensor, (False, 0.0, 3))]
    with meters.FakeTensorMode(), patches.with_packed_sequences(lambda fake: 1 / 0, pad, put):
        fake = torch.ones(2, dtype=torch.long)
        with pytest.raises(ZeroDivisionError):
            torch._VF.gru(torch.ones(5, 4), fake, torch.ones(1, 2, 4))
        assert nn.GRU(4, 4)(torch.ones(5, 2, 4))[0].shape == (5, 2, 4)  # has no sizes


def test_a_gradient_scaler_updates_without_a_look_at_values():
    """Else a predicted float16 step stops in the scaler."""
    with meters.FakeTensorMode(), patches.with_finite_gradients():
        weight = nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight])
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(weight.sum()).backward()
        updates = []
        optimizer.register_step_post_hook(lambda *_: updates.append(1))
        scaler.step(optimizer)
    assert updates == [1]


def test_a_gradient_scaler_for_cuda_stays_on_without_a_gpu():
    """Else a predicted float16 step of a GPU has no scaler."""
    with patches.with_gradient_scaler():
        assert torch.amp.GradScaler("cuda").is_enabled()


def test_torch_script_compiles_no_constructor_of_ours():
    """Else a module that is compiled by TorchScript cannot be imported in a prediction."""

    def read(*data, **settings):
        raise AssertionError

    with patches.with_constructor(read):
        assert torch.tensor is read
        assert torch.jit.script(make_one)().item() == 1


def test_after_it_a_device_in_force_is_the_constructors_too():
    """Else a weight made of a number stays on the CPU, in every model built after a prediction."""
    sys.modules["torch.utils._device"]._device_constructors.cache_clear()
    with patches.with_constructor(lambda data, **_: torch.zeros(2)), torch.device("meta"):
        torch.zeros(2)
    with torch.device("meta"):
        assert torch.tensor(1.0).is_meta


def make_one() -> torch.Tensor:
    return torch.tensor(1)


def test_an_optimizer_asks_by_these_names_what_a_device_can():
    """Else a predicted update of a GPU loops over its parameters, and refuses `capturable`."""
    chooser = sys.modules["torch.optim.optimizer"]
    weights = [nn.Parameter(torch.zeros(2))]
    assert chooser._default_to_fused_or_foreach(weights, False) == (False, False)
    with patches.with_optimizers_of_cuda():
        assert chooser._default_to_fused_or_foreach(weights, False) == (False, True)
        asked = sys.modules["torch.optim.adam"]._get_capturable_supported_devices()
    assert asked == ["cpu"] != sys.modules["torch.optim.adam"]._get_capturable_supported_devices()


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("_cuda_clearCublasWorkspaces", "a step's peak on a GPU depends on what ran before it"),
        ("_cuda_resetPeakMemoryStats", "`emulate` loses the peaks that a program resets"),
    ],
)
def test_what_only_a_build_for_cuda_has(name, broken):
    assert re.search(rf"^def {name}\(", STUBS.read_text(), flags=re.M), broken


@pytest.mark.parametrize(
    ("name", "arguments", "broken"),
    [
        ("_record_memory_history", ("enabled",), "`memory.snapshot` and `emulate`'s moment"),
        ("_dump_snapshot", ("filename",), "`memory.snapshot` and `emulate --snapshot`"),
        ("_snapshot", (), "`emulate`'s list of what was held at the peak"),
    ],
)
def test_the_allocators_record(name, arguments, broken):
    found = inspect.signature(getattr(torch.cuda.memory, name)).parameters
    assert set(arguments) <= set(found), f"{broken} need it"


def test_a_recorded_history_is_asked_for_and_written(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"device_traces": [["event"]]})
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **k: asked.append(k))
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", asked.append)
    meters.record_allocations(enabled=None)
    meters.write_snapshot("there.pickle")
    assert asked == [{"enabled": None}, "there.pickle"]
    assert emulated_card.recorded_allocations() == ["event"]


def test_something_happens_before_each_reset_of_the_peaks(monkeypatch):
    """Else `emulate` loses the peaks that a program resets."""
    order = []
    monkeypatch.setattr(
        torch._C, "_cuda_resetPeakMemoryStats", lambda index: order.append(index), raising=False
    )
    assert emulated_card.built_for_cuda()
    emulated_card.before_each_peak_reset(lambda: order.append("read"))
    torch._C._cuda_resetPeakMemoryStats(0)
    assert order == ["read", 0]
    assert "_cuda_resetPeakMemoryStats(" in inspect.getsource(torch.cuda.reset_peak_memory_stats)


def test_operations_with_a_kernel_for_a_card_are_listed():
    """Else an emulated card knows no values, and takes each mask for one that hides tokens."""
    found = {name: schema for schema, name in emulated_card.kernels_of_cuda()}
    assert "aten::copy_" in found  # no other has one in a build without CUDA
    assert [a.name for a in found["aten::copy_"].arguments if a.alias_info] == ["self"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA may have started here already")
def test_something_waits_for_cuda(monkeypatch):
    """Else `emulate` records nothing."""
    waiting = []
    monkeypatch.setattr(torch.cuda, "_queued_calls", waiting)
    emulated_card.once_cuda_starts(print)
    assert waiting[-1][0] is print


@pytest.mark.weekly
def test_the_compiler_can_be_imported_ahead():
    """Else each graded submission takes a second more, out of its own time."""
    code = (
        "import sys; from tutorial_lib.instruments.private_torch import import_compiler as i; i(); "
    )
    done = subprocess.run([sys.executable, "-c", code + "print('torch._dynamo' in sys.modules)"],
        capture_output=True, text=True)  # fmt: skip
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize("is_enabled", [True, False])
def test_no_garbage_is_looked_for_during_an_import(tmp_path, monkeypatch, is_enabled):
    """Afterwards it is as it was, also where the import failed."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "looks_for_it.py").write_text("import gc\nduring = gc.isenabled()\n")
    (gc.enable if is_enabled else gc.disable)()
    try:
        assert not private.imported("looks_for_it").during
        assert gc.isenabled() == is_enabled
        with pytest.raises(ModuleNotFoundError):
            private.imported("there_is_no_such_module")
        assert gc.isenabled() == is_enabled
    finally:
        gc.enable()


def test_operations_say_what_they_write_draw_and_ignore():
    x, y = torch.zeros(2), torch.ones(2)
    assert operations.written_arguments(torch.ops.aten.add_.Tensor, (x, y), {}) == [x]
    assert operations.written_arguments(torch.ops.aten.add.Tensor, (x, y), {}) == []
    assert operations.is_random(torch.ops.aten.randint.default)
    assert not operations.is_random(torch.ops.aten.ones.default)
    assert operations.is_uninitialised(torch.ops.aten.empty_like.default)
    assert operations.ignores_values(torch.ops.aten.ones_like.default)
    assert not operations.ignores_values(torch.ops.aten.rand_like.default)
    assert operations.GROUPED_MATMUL.namespace == "aten"
    assert operations.gives_indices(torch.ops.aten.topk.default)
    assert not operations.gives_indices(torch.ops.aten.argmax.default)


def test_cells_have_fused_kernels():
    """Else a predicted cell keeps what a CPU's keeps, or lacks what its bias's gradient takes."""
    for kernel, state in zip(operations.FUSED_CELLS, ("cx", "hx"), strict=True):
        assert operations.argument_names(kernel)[:3] == ["input_gates", "hidden_gates", state]
    assert operations.argument_names(operations.LSTM_CELL_BACKWARD)[4:] == ["workspace", "has_bias"]
    names = ["grad_hy", "workspace", "has_bias"]
    assert operations.argument_names(operations.GRU_CELL_BACKWARD) == names


def test_softmax_goes_backward_by_an_operation_of_its_own():
    """Else the tensor that CUDA's kernel makes there is not predicted."""
    with Seen() as mode:
        torch.ones(2, requires_grad=True).softmax(0).sum().backward()
    assert operations.SOFTMAX_BACKWARD in mode.operations
    for backward in (operations.FLASH_BACKWARD, operations.EFFICIENT_BACKWARD):
        assert operations.argument_names(backward)[1:3] == ["query", "key"]
        assert operations.argument_names(backward)[3] == "value"
    for forward in (operations.FLASH_FORWARD, operations.EFFICIENT_FORWARD):
        assert operations.argument_names(forward)[:3] == ["query", "key", "value"]
    assert operations.argument_names(operations.FLASH_FORWARD)[3] == "dropout_p"
    assert operations.argument_names(operations.FLASH_BACKWARD)[4] == "out"
    assert operations.is_elementwise(torch.ops.aten.add.Tensor)
    assert not operations.is_elementwise(torch.ops.aten.view.default)


def test_a_graph_names_its_leaves():
    """Else a leaf that only the graph holds is in no count."""
    one, other = (torch.ones(2, requires_grad=True) for _ in range(2))
    twice = one.exp() * other + one
    assert {id(leaf) for leaf in meters.leaves_of(twice)} == {id(one), id(other)}
    assert list(meters.leaves_of(one)) == list(meters.leaves_of(twice.detach())) == []


def test_sparse_tensors_show_their_parts():
    matrix = torch.eye(3).to_sparse()
    assert [part.numel() for part in meters.sparse_parts(matrix)] == [6, 3]
    assert [part.numel() for part in meters.sparse_parts(matrix.to_sparse_csr())] == [4, 3, 3]
    assert meters.sparse_parts(torch.eye(3)) == meters.sparse_parts(2.0) == []
    assert operations.is_empty_sparse(torch.zeros(3, 3).to_sparse())
    assert not operations.is_empty_sparse(matrix)
    made = operations.sparse(torch.zeros(2, 5).long(), torch.ones(5), matrix)
    assert made.shape == (3, 3)


def test_a_selective_checkpoints_policy_is_found():
    def policy(context, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE

    contexts = create_selective_checkpoint_contexts(policy)
    assert [private.policy_of(one) for one in (contexts[0], nullcontext())] == [policy, None]


def test_types_that_hold_other_tensors_are_known():
    from torch.distributed.tensor import DTensor

    assert meters.is_wrapper(DTensor)
    assert not meters.is_wrapper(torch.Tensor)


def test_real_computation_within_fake_tensors():
    with meters.FakeTensorMode():
        assert meters.is_fake(torch.ones(2))
        with private.without_modes():
            assert torch.ones(2).sum().item() == 2
        with pytest.raises(private.LOOKS_AT_VALUES):
            torch.rand(2).sum().item()


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_backward_that_keeps_a_graph_is_told_from_one_that_does_not(create_graph):
    """Else a step that differentiates twice seems to recompute."""
    seen, x = [], torch.ones(2, requires_grad=True)
    with meters.watched_backwards() as running:
        (y := x * 2).register_hook(lambda _: seen.extend(running))
        torch.autograd.grad((y * y).sum(), x, create_graph=create_graph)
        assert not running
    torch.autograd.grad((x * 2).sum(), x)
    assert seen == [create_graph]


def test_compiled_code_is_told_of_and_run_as_it_was():
    """Else a compiled loss is measured uncompiled, and nothing says so."""
    called, compiled = [], []
    double = torch.compile(lambda x: 2 * x, backend=lambda *_: compiled.append)
    with meters.run_uncompiled(lambda: called.append(1)):
        assert double(torch.ones(2)).tolist() == [2, 2]
        torch.compiler.disable(lambda: None)()
    assert (called, compiled) == ([1], [])


def test_functions_that_torch_func_transforms_are_known():
    """Else hooks on what they save, which `grad` refuses, end plans and judgements."""
    seen = []
    one, transforms = torch.ones(2), (torch.func.grad, torch.func.vmap)
    for transform in transforms:
        transform(lambda x: seen.append(meters.in_transform()) or x.sum())(one)
    torch.func.jvp(lambda x: seen.append(meters.in_transform()) or x, (one,), (one,))
    with torch.autograd.forward_ad.dual_level():
        seen.append(meters.in_transform())
    assert seen == [True] * 4
    assert not meters.in_transform()


def test_what_a_checkpoint_recomputes_is_told_by_its_frame():
    """Else what it recomputes in a backward that keeps a graph would be called an activation.

    And hooks of a model's own would be called checkpoints.
    """
    seen = []

    def block(x):
        names = ("checkpoint", "unpack_hook")
        seen.append([meters.in_checkpoint(sys._getframe(), name) for name in names])
        return x.exp()

    x = torch.ones(2, requires_grad=True)
    (checkpoint(block, x, use_reentrant=False) * block(x)).sum().backward()
    assert seen == [[True, False], [False, False], [False, True]]
