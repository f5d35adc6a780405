import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tutorial_lib import memory


def test_a_storage_counts_once_however_often_it_is_saved():
    x = torch.randn(100, requires_grad=True)
    seen = memory.saved(lambda: (x * x).sum() + (x * 3).sum() + x.view(10, 10).pow(2).sum())
    assert seen.num_bytes == 400


def test_sizes_print_themselves():
    x = torch.randn(32, 16, requires_grad=True)
    seen = memory.saved(lambda: (x * x).exp())
    assert str(seen.num_bytes) == "4.00 KiB"
    assert str(list(seen.by("shape").values())) == "[4.00 KiB]"
    assert [str(row.num_bytes) for row in seen.rows] == ["2.00 KiB"] * 2
    assert str(memory.saved(lambda: None).num_bytes) == "0 B"


def test_parameters_are_counted_unless_told():
    layer = nn.Linear(10, 10, bias=False)
    x = torch.randn(2, 10, requires_grad=True)
    assert memory.saved(lambda: layer(x)).num_bytes == 400 + 80
    assert memory.saved(lambda: layer(x), params_of=layer).num_bytes == 80


def test_rows_name_shape_dtype_op_and_module():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())
    seen = memory.saved(lambda: model(torch.randn(2, 4)), params_of=model)
    last = seen.rows[-1]
    assert (last.shape, last.dtype, last.module) == ((2, 4), "float32", "1")
    assert seen.by("module") == {"0": 32, "1": 32}
    assert "64 B saved" in str(seen)
    assert "64 B saved" in seen._repr_html_()


def test_gradients_off_is_refused_and_hooks_go_after_an_error():
    with torch.no_grad(), pytest.raises(RuntimeError, match="gradients are off"):
        memory.saved(lambda: None)
    hooks = len(torch.nn.modules.module._global_forward_hooks)

    def failing():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        memory.saved(failing)
    assert len(torch.nn.modules.module._global_forward_hooks) == hooks
    x = torch.randn(3, requires_grad=True)
    F.gelu(x).sum().backward()  # no hook is left to pack
    assert x.grad is not None


def test_rows_name_the_line_that_called_and_a_long_table_is_cut():
    def twice(x):
        return (x.exp() * x.sin()).sum()  # the line to be named

    x = torch.randn(2, 3, 4, 5, requires_grad=True)
    table = memory.saved(lambda: twice(x))
    line = twice.__code__.co_firstlineno + 1
    assert set(table.by("line")) == {f"test_saved.py:{line}"}
    many = memory.saved(lambda: [x.exp() for _ in range(50)])
    assert len(str(many).splitlines()) < 50
    assert "more" in str(many).splitlines()[-1]
