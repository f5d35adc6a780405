import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

from tutorial_lib import memory

SETUP = """
import torch
from tutorial_lib import memory
from tutorial_lib.models.gpt import GPT, GPTConfig
model = GPT(GPTConfig())
optimizer = torch.optim.AdamW(model.parameters())
tokens = torch.zeros(2, 64, dtype=torch.long)
def step():
    optimizer.zero_grad(); model.loss(tokens).backward(); optimizer.step()
step()
"""


@pytest.fixture
def shell():
    shell = InteractiveShell()
    shell.run_cell("%load_ext tutorial_lib").raise_error()
    shell.run_cell(SETUP).raise_error()
    return shell


def test_magic_context_manager_and_measure_agree(shell):
    by_magic = shell.run_cell("%%memory one step\nstep()\n").result
    names = shell.user_ns
    with memory.watch("one step", model=names["model"], optimizer=names["optimizer"]) as by_watch:
        names["step"]()
    measured = memory.measure(
        names["step"], model=names["model"], optimizer=names["optimizer"], label="one step"
    )
    assert by_magic.peak_bytes == by_watch.peak_bytes == measured.peak_bytes
    assert by_magic.at_peak == by_watch.at_peak == measured.at_peak
    assert by_magic.label == "one step"
    assert names["memory_report"] is by_magic


def test_an_error_comes_once_and_the_meter_is_free_again(shell):
    result = shell.run_cell("%%memory\nraise KeyError('mine')\n")
    assert isinstance(result.error_in_exec, KeyError)
    with memory.watch() as report:
        torch.ones(2)
    assert report.peak_bytes == 8
