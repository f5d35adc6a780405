"""A step that cannot run is refused by a prediction in the words of the real step."""

import traceback

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tutorial_lib import memory

BF16, INT = torch.bfloat16, torch.int32
x = lambda: torch.randn(4, 8)  # noqa: E731 - made inside each step
images = lambda channels=3, size=8: torch.randn(2, channels, size, size)  # noqa: E731


def linear():
    return nn.Linear(8, 8)


def conv():
    return nn.Conv2d(3, 8, 3)


# A model, and a step with it that must be refused.
SHAPES = {
    "mm": (linear, lambda m: m(torch.randn(4, 9))),
    "matmul": (linear, lambda m: m(x()) @ x()),
    "bmm": (linear, lambda m: torch.bmm(m(x())[None], torch.randn(3, 8, 2))),
    "einsum": (linear, lambda m: torch.einsum("ij,jk->ik", m(x()), torch.randn(7, 3))),
    "add": (linear, lambda m: m(x()) + torch.randn(4, 7)),
    "conv, channels": (conv, lambda m: m(images(4))),
    "conv of 2 GB": (conv, lambda m: m(torch.randn(1, 4, 12000, 12000))),
    "pooling": (conv, lambda m: F.max_pool2d(m(images(size=4)), 4)),
    "view, size": (linear, lambda m: m(x()).view(3, 8)),
    "view, strides": (linear, lambda m: m(x()).t().view(32)),
    "reshape": (linear, lambda m: m(x()).reshape(5, -1)),
    "cat": (linear, lambda m: torch.cat([m(x()), torch.randn(4, 7)])),
    "row": (linear, lambda m: m(x())[7]),
    "scatter": (linear, lambda m: m(x()).scatter(0, torch.zeros(5, 9).long(), 1)),
    "layer norm": (lambda: nn.LayerNorm(9), lambda m: m(x())),
    "batch norm": (lambda: nn.BatchNorm1d(9), lambda m: m(x())),
    "cross-entropy": (linear, lambda m: F.cross_entropy(m(x()), torch.zeros(5).long())),
    "attention": (
        lambda: nn.MultiheadAttention(8, 2),
        lambda m: m(torch.randn(4, 2, 8), torch.randn(4, 3, 8), torch.randn(4, 3, 8))[0],
    ),
    "fused attention": (
        linear,
        lambda m: F.scaled_dot_product_attention(
            *(m(torch.randn(2, 2, 4, 8)), torch.randn(2, 2, 4, 7), torch.randn(2, 2, 4, 8))
        ),
    ),
    "key": (linear, lambda m: {"x": m(x())}["y"]),
    "nothing": (linear, lambda m: m(x()) + None),
    "backward of rows": (linear, lambda m: m(x()).backward()),
    "no gradient": (linear, lambda m: m(x()).detach().sum().backward()),
    "truth of rows": (linear, lambda m: m(x()) if m(x()) > 0 else None),
    "numpy": (linear, lambda m: m(x()).numpy()),
}
TYPES = {
    "linear": (lambda: linear().to(BF16), lambda m: m(x())),
    "linear, ids": (linear, lambda m: m(torch.ones(4, 8).long())),
    "conv": (lambda: conv().to(BF16), lambda m: m(images())),
    "layer norm": (lambda: nn.LayerNorm(8).to(BF16), lambda m: m(x())),
    "batch norm": (lambda: nn.BatchNorm1d(8).to(BF16), lambda m: m(x())),
    "attention": (
        lambda: nn.MultiheadAttention(8, 2).to(BF16),
        lambda m: m(*[torch.randn(4, 2, 8)] * 3)[0],
    ),
    "fused attention": (
        linear,
        lambda m: F.scaled_dot_product_attention(
            *(m(torch.randn(2, 2, 4, 8)), torch.randn(2, 2, 4, 8, dtype=BF16), torch.ones(4, 8))
        ),
    ),
    "target": (linear, lambda m: F.cross_entropy(m(x()), torch.zeros(4, dtype=INT))),
    "binary target": (
        linear,
        lambda m: F.binary_cross_entropy(m(x()).sigmoid(), torch.zeros(4, 8).double()),
    ),
    "counts": (linear, lambda m: torch.zeros(4, 8).long().add_(m(x()))),
    "ids": (lambda: nn.Embedding(9, 8), lambda m: m(torch.zeros(3))),
}
# Steps that really run must not be refused.
SOUND = {
    "norm of half the bits": (lambda: nn.LayerNorm(8), lambda m: m(x().to(BF16))),
    "ids of 32 bits": (lambda: nn.Embedding(9, 8), lambda m: m(torch.zeros(3, dtype=INT))),
    "promoted": (linear, lambda m: m(x()) + x().double() * torch.ones(8).long()),
    "rounded": (linear, lambda m: m(x()).clone().mul_(x().double())),
    "mask": (linear, lambda m: m(x())[torch.ones(4, dtype=torch.bool)]),
}


def steps(case):
    build, use = case

    def make_step():
        model = build()

        def step():
            out = use(model)
            return out.float().sum().backward() if isinstance(out, torch.Tensor) else out

        return step, model, None

    return make_step


def refused(run):
    with pytest.raises(Exception) as caught:
        run()
    frames = traceback.extract_tb(caught.value.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == __file__]
    said = str(caught.value).partition("\n")[0]
    return type(caught.value), said.replace("FakeTensor", "Tensor"), lines[-1]


@pytest.mark.filterwarnings("ignore:Default grid_sample")
@pytest.mark.parametrize("kernels", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=f"{group}-{name}")
        for group, cases in {"shape": SHAPES, "type": TYPES}.items()
        for name, case in cases.items()
    ],
)
def test_a_step_that_cannot_run_ends_in_its_own_error_at_its_own_line(case, kernels, caplog):
    if case is SHAPES["conv of 2 GB"]:  # too large to be run
        real = RuntimeError, "Given groups=1, weight of size [8, 3, 3, 3], expected input"
    else:
        real = refused(lambda: steps(case)()[0]())
    seen = refused(lambda: memory.predict(steps(case), kernels=kernels))
    assert (seen[0], seen[1][: len(real[1])], *seen[2:]) == (*real[:2], *(real[2:] or seen[2:]))
    assert caplog.text == ""


@pytest.mark.filterwarnings("ignore::tutorial_lib.memory.MeterWarning")
@pytest.mark.parametrize("kernels", ["cpu", "cuda"])
@pytest.mark.parametrize("name", SOUND)
def test_what_a_real_step_runs_is_not_refused(name, kernels):
    steps(SOUND[name])()[0]()
    assert memory.predict(steps(SOUND[name]), kernels=kernels).peak_bytes > 0
