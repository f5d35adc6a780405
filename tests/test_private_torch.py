"""Private names of PyTorch whose loss no test of what they are used for would name.

The other names of private_torch are seen by the tests of predictions, meters, plans and judgements.

What only a PyTorch built for CUDA has is looked up in the stubs, which every build ships;
`test_emulated.py` runs it where there is such a build.
"""

import inspect
import pkgutil
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tutorial_lib.instruments import private_torch as private
from tutorial_lib.instruments.private_torch import emulated_card, operations, patches
from tutorial_lib.memory import private_torch as meters

STUBS = Path(torch.__file__).parent / "_C" / "__init__.pyi"


def test_a_whole_call_is_replaced_hooks_included():
    """Else plans run a stage without its hooks: FSDP gathers weights in one."""
    module, seen = nn.Identity(), []
    module.register_forward_pre_hook(lambda *of: seen.append("hook"))
    whole = getattr(module, private.CALL)
    vars(module)[private.CALL] = lambda x: whole(x) + 1
    assert (module(1), seen) == (2, ["hook"])


def test_hooks_of_saved_tensors_are_pushed_by_these_functions():
    """Else lab 01 accepts an answer that counts what it should work out."""
    for name in private.PUSHES_SAVED_TENSOR_HOOKS:
        assert callable(pkgutil.resolve_name(name))
    assert "_push_saved_tensors_default_hooks(" in inspect.getsource(
        torch.autograd.graph.saved_tensors_hooks.__enter__
    )


def test_an_operation_says_its_overload_and_its_arguments():
    """Else CUDA's autocast of norms and sums is predicted in the wrong type."""
    assert operations.overload_name(torch.ops.aten.norm.ScalarOpt_dim) == "ScalarOpt_dim"
    assert operations.argument_names(torch.ops.aten.sum.dim_IntList)[:2] == ["self", "dim"]


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
