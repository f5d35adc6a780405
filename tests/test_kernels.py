import json
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch.autograd.graph import save_on_cpu
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tutorial_lib import memory
from tutorial_lib.instruments.predicting.kernels import cuda_kernels
from tutorial_lib.instruments.recorded.snapshots import SNAPSHOTS
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.units import MIB

QKV = (2, 4, 64, 16)  # (batch, heads, seq, width)


def saved_dtypes(forward):
    with cuda_kernels():
        return [row.dtype for row in memory.saved(forward).rows if row.num_bytes]


def test_dropout_keeps_a_bool_mask():
    x = torch.randn(100, requires_grad=True)
    assert saved_dtypes(lambda: F.dropout(x, 0.5)) == ["bool"]
    assert saved_dtypes(lambda: F.dropout(x, 0.5, training=False)) == []
    assert saved_dtypes(lambda: F.dropout(x * 1, 0.5, inplace=True)) == ["float32"]
    narrow = torch.randn(1, 1, 8, 10, requires_grad=True)  # whose scores are written out
    seen = saved_dtypes(lambda: F.scaled_dot_product_attention(narrow, narrow, narrow, None, 0.5))
    assert seen.count("bool") == 1


@pytest.mark.parametrize(
    ("backend", "has_scores"), [(SDPBackend.MATH, True), (SDPBackend.EFFICIENT_ATTENTION, False)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_takes_no_kernel_that_is_switched_off(dtype, backend, has_scores):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), cuda_kernels(), sdpa_kernel(backend):
        q, k, v = (torch.randn(QKV, dtype=dtype, requires_grad=True) for _ in range(3))
        rows = memory.saved(lambda: F.scaled_dot_product_attention(q, k, v)).rows
    scores = [row for row in rows if tuple(row.shape)[-2:] == (64, 64)]
    assert bool(scores) == has_scores


def test_all_is_put_back_also_after_an_error():
    before = (F.rms_norm, F.scaled_dot_product_attention, torch.autocast.__init__)
    with pytest.raises(KeyError), cuda_kernels():
        raise KeyError
    assert (F.rms_norm, F.scaled_dot_product_attention, torch.autocast.__init__) == before
    x = torch.ones(2, 4, requires_grad=True)
    assert [row.dtype for row in memory.saved(lambda: F.dropout(x, 0.5)).rows] == ["float32"]
    assert "Thnn" not in torch.nn.GRUCell(4, 4)(x).grad_fn.name()


ADAMW = torch.optim.AdamW


@pytest.mark.parametrize(
    ("make_optimizer", "takes"),
    [
        (ADAMW, True),
        (partial(ADAMW, capturable=True), True),
        (partial(ADAMW, foreach=False), False),
        (partial(ADAMW, fused=True), False),
        (lambda weights: ADAMW(weights, lr=torch.tensor(0.1)), False),  # foreach cannot
        (torch.optim.Adafactor, False),  # has foreach, and is asked for it
    ],
)
def test_an_optimizer_takes_foreach_where_it_would_on_cuda(make_optimizer, takes):
    def make_step():
        model = torch.nn.Linear(4, 4)
        optimizer = make_optimizer(model.parameters())

        def step():
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()

        return step, model, None  # of several optimizers none can be told

    ops = {life.op for life in memory.predict(make_step, warmup=0).timeline}
    assert any(op.startswith("_foreach") for op in ops) == takes


def attend_in_groups(dtype):
    query, key = (torch.randn(1, h, 100, 40, dtype=dtype, requires_grad=True) for h in (4, 2))
    F.scaled_dot_product_attention(query, key, key, enable_gqa=True).sum().backward()


@pytest.mark.parametrize(
    ("work", "num_bytes"),
    [
        # Of an A100's reductions: as in the emulated rows of vit-b-16 and vit-l-16.
        (lambda: torch.zeros(6304, 1024).sum(0), 49.5 * MIB),
        (lambda: torch.zeros(16384, 1024).sum(0), 108 * MIB),
        (lambda: torch.zeros(1024, 6304).sum(1), 0),
        (lambda: torch.zeros(8, 1024).sum(0), 0),
        (lambda: torch.zeros(3).sum(()), 0),
        (lambda: torch.randn(64, 32, requires_grad=True).softmax(-1).sum().backward(), 64 * 32 * 4),
        # 128 rows of 4 heads in float32, 64 wide and one beside; keys and values of 4 heads; copies
        # of the result, which lies as the queries do, and of its gradient, which is one number
        (lambda: attend_in_groups(torch.bfloat16), 128 * 4 * 65 * 4 + 4 * 4 * 100 * 40 * 2),
        (lambda: attend_in_groups(torch.float32), 4 * 100 * 100 * 4),  # written out: softmax
        # A fused kernel adds up a bias's gradient: as requested on an emulated A100, without flags.
        (lambda: torch.nn.LSTMCell(8, 24)(torch.ones(8192, 8))[0].sum().backward(), 1.5 * MIB),
        (lambda: torch.nn.GRUCell(8, 24)(torch.ones(8192, 8)).sum().backward(), 1.125 * MIB),
    ],
)
def test_what_a_kernel_takes_and_gives_back(work, num_bytes):
    step = lambda: (work(), torch.ones(1, requires_grad=True).sum().backward())  # noqa: E731
    report = memory.predict(lambda: (step, torch.nn.Identity(), None), warmup=0, release="2.13")
    seen = [life.num_bytes for life in report.timeline if life.category == "other"]
    assert max(seen, default=0) == num_bytes


def peak_of(work, release):
    report = memory.predict(lambda: (work, torch.nn.Identity(), None), warmup=0, release=release)
    return report.peak_bytes


BOUND_AT_IMPORT = F.scaled_dot_product_attention


def attend(heads, others, length=1024):
    query, key = (torch.zeros(*h, length, 64, requires_grad=True) for h in (heads, others))
    BOUND_AT_IMPORT(query, key, key, enable_gqa=heads != others).sum().backward()


@pytest.mark.parametrize("shapes", [((1, 8), (1, 2)), ((8,), (8,)), ((8,), (2,))], ids=str)
def test_from_2_14_on_grouped_and_single_attention_writes_no_scores(shapes):
    """As PyTorch's CUDA builds 2.13, 2.14.1 and 2.15 asked an emulated A100 for them."""
    scores = 8 * 1024 * 1024 * 4
    written, fused, same = (peak_of(lambda: attend(*shapes), r) for r in ("2.13", "2.14", "2.15"))
    assert written > 2 * scores > 2 * fused
    assert fused == same


@pytest.mark.parametrize(
    ("work", "workspace"),
    [
        (lambda x, b: x @ x, 8.125 * MIB),
        (lambda x, b: F.linear(x, x, b), MIB),  # cuBLASLt adds the bias
        (lambda x, b: F.linear(x, x[:1], b[:1]), 8.125 * MIB),
        (lambda x, b: torch.addmm(x, x, x), 8.125 * MIB),
        (lambda x, b: torch.addmm(x.half(), x.half(), x.half()), MIB),
        (lambda x, b: x[:0] @ x, 0),
        (lambda x, b: x + x, 0),
    ],
)
def test_cublas_gives_its_workspace_back_from_2_15_on(work, workspace, monkeypatch):
    """As cublas_workspace_size() says, and an emulated A100 was asked for."""

    def transient(release):
        step = lambda: work(torch.ones(64, 64), torch.ones(64))  # noqa: E731
        report = memory.predict(lambda: (step, torch.nn.Identity(), None), release=release)
        return report.at_peak.get("other", 0)

    assert (transient("2.14"), transient("2.15.0")) == (0, workspace)
    monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", "1")
    assert transient("2.15.0") == 0


@pytest.mark.parametrize("release", ["2.16", "3.0", "two", "2", "2.x", ""])
def test_a_release_that_is_none_or_too_new_is_refused(release):
    with pytest.raises(ValueError, match=r"must be at most 2.15, as in 2.13"):
        peak_of(lambda: None, release)


@pytest.mark.parametrize("release", ["1.12", "2.9.1"])
def test_an_older_release_has_the_oldest_kernels_tried_and_the_report_says_so(release):
    step = lambda: attend((1, 8), (1, 2))  # noqa: E731
    older, oldest = (
        memory.predict(lambda: (step, torch.nn.Identity(), None), warmup=0, release=each)
        for each in (release, "2.10")
    )
    assert (older.phases, oldest.device) == (oldest.phases, "CUDA kernels")
    assert older.device == "CUDA kernels as in PyTorch 2.10, the oldest tried"


def predicted_with(around, make_loss):
    def make_step():
        loss, model = make_loss()

        def step():
            with around():
                loss().backward()
            model.zero_grad()

        return step, model, None

    return memory.predict(make_step)


@pytest.mark.parametrize("pinned", [False, True])
def test_what_save_on_cpu_takes_is_off_the_card(pinned):
    def make_loss():
        model, x = torch.nn.Sequential(*[torch.nn.Sigmoid() for _ in range(8)]), torch.randn(1000)
        x.requires_grad_()
        return lambda: model(x).sum(), model

    kept, moved = (
        predicted_with(around, make_loss).phases["forward"]
        for around in (nullcontext, partial(save_on_cpu, pinned))
    )
    # eight results, but for both ends of the layer at work; and the loss
    assert kept - moved == pytest.approx(6 * 4000, abs=8)


@pytest.mark.weekly
def test_save_on_cpu_frees_what_it_frees_on_an_emulated_card():
    seen = json.loads((SNAPSHOTS / "offload.json").read_text(encoding="utf-8"))["peaks"]
    make_loss = lambda: Recipe("vit-b-16", 16).make_loss("cpu")  # noqa: E731
    kept = predicted_with(nullcontext, make_loss).peak_bytes
    moved = predicted_with(partial(save_on_cpu, True), make_loss).peak_bytes
    assert kept - moved == pytest.approx(seen["kept"]["card"] - seen["moved"]["card"], abs=1024)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_keeps_its_input_and_one_number_a_row(dtype):
    x = torch.randn(4, 16, 32, dtype=dtype, requires_grad=True)
    norm = torch.nn.RMSNorm(32, dtype=dtype)
    wanted = norm(x)
    with cuda_kernels():
        seen = memory.saved(lambda: norm(x), params_of=norm)
        torch.testing.assert_close(norm(x), wanted)
    assert sorted(row.num_bytes for row in seen.rows) == [4 * 16 * 4, x.nbytes]
