"""A PyTorch that is newer than all that were tried, and the names that it may no longer have."""

import pytest
import torch

from tutorial_lib import memory

NEWER = """
import torch, warnings
from torch.torch_version import TorchVersion
torch.__version__ = TorchVersion("2.16.0")
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    from tutorial_lib import memory

    def make_step():
        model = torch.nn.Linear(4, 4)
        return (lambda: model(torch.ones(2, 4)).sum().backward()), model, None

    step, model, _ = make_step()
    assert memory.measure(step, model=model).peak_bytes
    assert memory.predict(make_step).peak_bytes
print(*[one.message for one in seen if "last one" in str(one.message)], sep="\\n")
"""


def test_a_newer_pytorch_gets_one_warning_and_instruments_go_on(run_python):
    done = run_python("-c", NEWER)
    assert done.stdout.count("PyTorch 2.16.0 is newer than 2.15, the last one") == 1, done.stderr


@pytest.mark.parametrize("meter", ["measure", "predict"])
def test_a_private_name_that_is_gone_is_named_with_who_needed_it(meter, monkeypatch):
    monkeypatch.delattr(torch._C, "_current_graph_task_id")

    def make_step():
        model = torch.nn.Linear(4, 4)
        return (lambda: model(torch.ones(2, 4)).sum().backward()), model, None

    with pytest.raises(RuntimeError, match=r"in_backward\(\) needs '_current_graph_task_id'.*2.15"):
        memory.predict(make_step) if meter == "predict" else memory.measure(make_step()[0])


def test_an_error_of_the_step_stays_what_it_is():
    with pytest.raises(AttributeError, match="nowhere"):
        memory.measure(lambda: torch.nowhere)
