"""A search that is stopped, or that meets a step which does not run, as `plan` and `predict` do."""

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

from tutorial_lib.instruments import planning
from tutorial_lib.school.commands.main import run
from tutorial_lib.units import GIB

HERE = f"{__file__}:"


def one_type_of_its_own(micro_batch=2):
    """Multiplies by a matrix of its own making: autocast casts it, but bf16 does not."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(micro_batch, 4, 8)
    return (lambda: torch.bmm(model(x), torch.ones(micro_batch, 8, 8)).sum()), model


def wrong_value(micro_batch=2):
    raise ValueError(f"no data for {micro_batch} samples")


def missing_file(micro_batch=2):
    return Path("no-such-folder/images.npy").read_bytes()


def targets_too_few(micro_batch=2):
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(micro_batch, 8)
    labels = torch.zeros(micro_batch + 1, dtype=torch.long)
    return (lambda: nn.functional.cross_entropy(model(x), labels)), model


def jagged(micro_batch=2):
    """Sequences of several lengths in one nested tensor."""
    model, rows = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(micro_batch, 4, 8)
    batch = torch.nested.nested_tensor([*rows], layout=torch.jagged)
    return (lambda: model(batch).values().square().mean()), model


def own_kernel(micro_batch=2):
    """Hands an address to a kernel, as code in C or Triton does."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(micro_batch, 8)

    def loss():
        y = model(x)
        return y.square().mean() * (y.data_ptr() > 0)

    return loss, model


def by_forward_mode(micro_batch=2):
    """A norm's formula for it makes numbers that no tensor without memory takes."""
    model = nn.Sequential(nn.Linear(1, 8), nn.LayerNorm(8), nn.Linear(8, 1))
    t = torch.randn(micro_batch, 1)

    def loss():
        return torch.func.jvp(model, (t,), (torch.ones_like(t),))[1].square().mean()

    return loss, model


def by_hessian(micro_batch=2):
    """A second derivative is forward mode over reverse mode, here of a sum."""
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    points = torch.rand(micro_batch, 2)

    def loss():
        value = lambda x: (x.sum() + model(x)).squeeze(0)  # noqa: E731
        bent = torch.func.vmap(torch.func.hessian(value))(points)
        return bent.square().mean() + model(points).square().mean()

    return loss, model


# Takes minutes to take apart, and says by a file that it has begun; imported by a bare process.
SLOW = """
import os, pathlib, time
import torch

def make_loss(micro_batch=2):
    if micro_batch == 1:
        pathlib.Path(__file__).with_name(f"{os.getpid()}.started").touch()
        time.sleep(600)
    model, x = torch.nn.Linear(8, 8), torch.randn(micro_batch, 8)
    return (lambda: model(x).sum()), model
"""


def fit(name, **asked):
    return planning.fit(HERE + name, budget_bytes=GIB, effective_batch=4, **asked)


def test_a_second_precision_that_does_not_run_is_left_out_by_name(capfd):
    found = fit("one_type_of_its_own", precisions=["bf16-amp", "bf16"])
    assert found.best.is_verified
    assert {candidate.precision for candidate in found.candidates} == {"bf16-amp"}
    assert list(found.not_tried) == ["bf16"]
    assert found.not_tried["bf16"].startswith("RuntimeError: ")
    line = f"bf16 was not tried, as the step does not run in it: {found.not_tried['bf16']}"
    assert line in str(found)
    assert capfd.readouterr().err == ""
    with pytest.raises(RuntimeError, match="Float"):
        fit("one_type_of_its_own", precisions=["bf16"])


@pytest.mark.parametrize("words", ["predict", "plan --budget 1GiB --effective-batch 4"])
@pytest.mark.parametrize(
    ("function", "said", "line"),
    [
        (wrong_value, "ValueError: no data for", "raise ValueError("),
        (missing_file, "FileNotFoundError: [Errno 2]", "images.npy"),
        (targets_too_few, "ValueError: Expected input batch_size", "cross_entropy(model(x)"),
    ],
)
def test_an_error_of_ones_own_keeps_its_words_and_its_line(words, function, said, line, capsys):
    command, *more = words.split()
    assert run([command, HERE + function.__name__, *more]) == 2
    printed = capsys.readouterr().err
    assert f"Your code raised {said}" in printed
    assert line in printed
    assert not any(word in printed for word in ("needs a function", "predicted tensor"))


NEEDS_MEMORY = "needs a tensor's memory itself"


@pytest.mark.parametrize("words", ["predict", "plan --budget 1GiB --effective-batch 4"])
@pytest.mark.parametrize(
    ("function", "where", "why"),
    [
        (jagged, "in jagged (`", NEEDS_MEMORY),
        (own_kernel, "in loss (`", NEEDS_MEMORY),
        (by_forward_mode, "in loss (`", "takes a derivative in forward mode"),
        (by_hessian, "", "takes a derivative in forward mode"),
    ],
)
def test_what_cannot_be_predicted_is_no_error_of_ones_own(words, function, where, why, capsys):
    function()[0]().backward()  # it trains
    command, *more = words.split()
    assert run([command, HERE + function.__name__, *more]) == 2
    printed = capsys.readouterr().err
    assert where in printed
    assert why in printed
    wrong = ("Your code", "Memory ran out", "made outside", "Traceback")
    assert not any(word in printed for word in wrong)
    gc.collect()  # what PyTorch keeps of an error turned autograd off here
    assert function()[0]().requires_grad


def wait_until(is_so):
    end = time.monotonic() + 120
    while not is_so() and time.monotonic() < end:
        time.sleep(0.05)
    assert is_so(), "it never got that far"


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is sent in another way there")
@pytest.mark.parametrize("words", ["plan --budget 1GiB --effective-batch 4", "predict"])
def test_ctrl_c_ends_it_with_a_sentence(words, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW, encoding="utf-8")
    command, *more = words.split()
    process = subprocess.Popen(
        [sys.executable, "-m", "tutorial_lib", command, f"{tmp_path}/slow.py:make_loss", *more],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's & ignores it
    )
    try:
        wait_until(lambda: len(list(tmp_path.glob("*.started"))) == 1)
        assert not psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=120)[1]
        assert process.returncode == 130
        assert "Traceback" not in said
        assert said.endswith("Stopped: run the same command again to go on.\n")
    finally:
        process.kill()
