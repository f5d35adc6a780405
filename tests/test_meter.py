"""The meter against arithmetic, against PyTorch's own tracker, and against itself."""

import dataclasses
import gc
import itertools
import re

import pytest
import torch
from foreign import tracked_peak
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from tutorial_lib import device as devices
from tutorial_lib import memory
from tutorial_lib.memory import private_torch
from tutorial_lib.memory.allocator import AllocatorReading
from tutorial_lib.memory.report import MemoryReport
from tutorial_lib.memory.timeline import CATEGORIES
from tutorial_lib.models.gpt import GPT, GPTConfig


def gpt_step(*, attention="eager", dropout=0.0, checkpointed=False, optimizer=torch.optim.AdamW):
    torch.manual_seed(0)
    sizes = {"vocab_size": 100, "seq_len": 32, "num_layers": 3, "num_heads": 2, "d_model": 32}
    model = GPT(GPTConfig(**sizes, attention=attention, dropout=dropout))
    if checkpointed:
        for block in model.blocks:
            forward = block.forward
            block.forward = lambda x, f=forward: checkpoint(f, x, use_reentrant=False)
    update, tokens = optimizer(model.parameters(), lr=1e-3), torch.randint(0, 100, (4, 32))

    def step():
        update.zero_grad()
        model.loss(tokens).backward()
        update.step()

    return step, model, update


def bytes_of(tensors):
    return sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_peak_equals_torchs_own_tracker(attention, checkpointed, optimizer):
    step, model, update = gpt_step(
        attention=attention, checkpointed=checkpointed, optimizer=optimizer
    )
    ours = memory.measure(step, model=model, optimizer=update)
    # The tracker drops the loss (4 bytes) at some peaks.
    assert abs(ours.peak_bytes - tracked_peak(step, model, update)) <= 8


def test_recomputed_tensors_are_found_only_under_checkpointing():
    plain = memory.measure(gpt_step()[0])
    frugal = memory.measure(gpt_step(checkpointed=True)[0])
    assert not any(life.category == "recomputed" for life in plain.timeline)
    assert any(life.category == "recomputed" for life in frugal.timeline)
    activations = [
        max(point["activations"] for point in report.curve()) for report in (plain, frugal)
    ]
    assert activations[1] < activations[0] / 2


def slopes(checkpointed=False, kind="forces"):
    """A step whose loss has a derivative in it."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(32, 32), nn.SiLU()) for _ in range(3)]
    model, x = nn.Sequential(nn.Linear(3, 32), *layers, nn.Linear(32, 1)), torch.randn(64, 3)

    def energy(x):
        for layer in model:
            again = checkpointed and layer in layers
            x = checkpoint(layer, x, use_reentrant=False) if again else layer(x)
        return x.sum()

    def step():
        leaf = x.clone().requires_grad_()
        if kind == "forces":
            (slope,) = torch.autograd.grad(energy(leaf), leaf, create_graph=True)
        else:
            slope = torch.func.vmap(torch.func.grad(energy))(leaf)
        slope.square().mean().backward()
        model.zero_grad()

    return step, model, None


class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.second(self.half(x))

    def half(self, x):
        return self.first(x).relu()


def in_a_region(function):
    def run(x):
        with torch.autograd.graph.region_activation_memory_budget(0.5):
            return function(x)

    return run


@pytest.mark.parametrize("predicted", [False, True])
@pytest.mark.parametrize(
    "part", ["block", "budget", "in place", "loss", "method", "step", "update", "none"]
)
def test_a_compiled_part_is_measured_as_it_was_and_said(part, predicted, recwarn):
    compiled = lambda function: torch.compile(function, backend="eager")  # noqa: E731
    if part == "budget" and not hasattr(torch.autograd.graph, "region_activation_memory_budget"):
        pytest.skip("this PyTorch has no budget for a region")

    def make_step():
        model, x = Halves(), torch.randn(4, 8)
        optimizer = torch.optim.SGD(model.parameters())
        loss, update = (lambda y: y.square().mean()), optimizer.step
        if part == "block":
            model.first = compiled(model.first)
        if part == "in place":
            model.first.compile(backend="eager")
        if part == "method":
            model.half = compiled(model.half)
        if part == "budget":  # raises where nothing is compiled
            model.half = compiled(in_a_region(model.half))
        loss = compiled(loss) if part == "loss" else loss
        update = compiled(update) if part == "update" else update
        forward = lambda: loss(model(x))  # noqa: E731
        forward = compiled(forward) if part == "step" else forward

        def step():
            forward().backward()
            update()
            optimizer.zero_grad()

        return step, model, optimizer

    if predicted:
        memory.predict(make_step)
    else:
        step, model, optimizer = make_step()
        memory.measure(step, model=model, optimizer=optimizer)
    said = [str(one.message) for one in recwarn if one.category is memory.MeterWarning]
    assert len(said) == (part != "none")
    assert all(re.match(r"test_meter\.py, line \d+, in .* calls compiled", one) for one in said)


@dataclasses.dataclass
class Hidden:
    states: list[torch.Tensor]


@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize("kind", ["lstm", "dict", "dataclass", "packed"])
def test_steps_that_differ_are_said_where_layers_return_more_than_a_tensor(kind, varies, recwarn):
    lstm, lengths = nn.LSTM(8, 16), itertools.cycle([6, 12] if varies else [12])

    class Wrapped(nn.Module):
        def forward(self, x):
            if kind == "packed":
                x = nn.utils.rnn.pack_sequence([x[:, 0], x[:, 1]])
            out = (lstm if kind == "lstm" else lstm.forward)(x)[0]  # which no hook sees
            return {"dict": {"out": out}, "dataclass": Hidden([out])}.get(kind, (out, None))

    model = Wrapped()

    def step():
        out = model(torch.randn(next(lengths), 2, 8))
        reads = {"dict": lambda: out["out"], "dataclass": lambda: out.states[0]}
        first = reads.get(kind, lambda: out[0])()
        (first.data if kind == "packed" else first).sum().backward()

    memory.measure(step, model=model)
    said = [str(one.message) for one in recwarn if one.category is memory.MeterWarning]
    assert len(said) == varies
    assert all(one.startswith("steps differ") for one in said)


@pytest.mark.parametrize("kernels", [None, "cpu", "cuda"])
def test_the_graph_of_a_first_derivative_is_not_recomputed(kernels):
    for kind in ("forces", "each sample"):
        step, model, _ = slopes(kind=kind)
        plain = (
            memory.predict(lambda kind=kind: slopes(kind=kind), kernels=kernels)
            if kernels
            else (memory.measure(step, model=model))
        )
        assert not any(life.category == "recomputed" for life in plain.timeline), kind
        of_step = plain.peak_bytes - plain.baseline_bytes - plain.at_peak.get("other", 0)
        assert plain.at_peak["activations"] > 0.7 * of_step, kind
    again = memory.measure(slopes(checkpointed=True)[0], model=slopes()[1])
    made = [life for life in again.timeline if life.category == "recomputed"]
    assert made
    assert {life.phase for life in made} == {"backward"}
    assert again.at_peak["activations"] > again.at_peak["recomputed"]


def test_without_model_and_optimizer_the_step_tells_them_itself():
    step, model, optimizer = gpt_step()
    told = memory.measure(step, model=model, optimizer=optimizer)
    found = memory.measure(step)
    assert found.at_peak == told.at_peak


def test_tied_weights_and_views_count_once():
    model = GPT(GPTConfig(tie_weights=True))
    untied = GPT(GPTConfig(tie_weights=False))
    with memory.watch(model=model) as tied:
        torch.ones(1).view(1, 1)
    with memory.watch(model=untied) as both:
        torch.ones(1).view(1, 1)
    assert both.at_peak["parameters"] - tied.at_peak["parameters"] == (
        model.token_embedding.weight.nbytes
    )
    assert tied.peak_bytes == bytes_of(model.parameters()) + 4


def test_a_leak_is_named():
    step, model, _ = gpt_step()
    kept = []

    def leaking():
        step()
        kept.append(torch.ones(1000))

    report = memory.measure(leaking, model=model)
    assert report.leaked_bytes == 4000
    assert [life.op for life in report.leaks()] == ["ones"]
    assert "made by ones" in str(report)
    assert memory.measure(step, model=model).leaked_bytes == 0


def test_readings_that_may_mislead_are_warned_about():
    step, model, _ = gpt_step()
    model.eval()
    with pytest.warns(memory.MeterWarning, match="eval"):
        memory.measure(step, model=model)
    model.train()
    with (
        pytest.warns(memory.MeterWarning, match="FlopCounterMode is active"),
        FlopCounterMode(display=False),
    ):
        memory.measure(step, model=model)


@pytest.mark.parametrize("in_place", [False, True], ids=["torch.compile", "module.compile"])
def test_a_compiled_model_is_measured_as_it_was_and_stays_compiled(in_place):
    """Without the meter's care, Dynamo would never run the compiled code again."""

    class Wide(nn.Module):  # a module of PyTorch itself is not compiled in place
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(64, 64)

        def forward(self, x):
            return self.inner(x)

    model, batch, runs = Wide(), torch.randn(8, 64), []

    def backend(graph, inputs):
        def run(*args):
            runs.append(1)
            return graph.forward(*args)

        return run

    plain = memory.measure(lambda: model(batch).sum().backward(), model=model)
    compiled = torch.compile(model, backend=backend)
    if in_place:
        model.compile(backend=backend)
        compiled = model

    def step():
        compiled(batch).sum().backward()

    step()
    with pytest.warns(memory.MeterWarning, match="runs uncompiled"):
        report = memory.measure(step, model=compiled, warmup=0)
    assert len(runs) == 1
    step()
    assert len(runs) == 2
    assert report.phases == plain.phases


def test_garbage_cycles_do_not_move_the_reading_and_gc_is_put_back():
    def cycle():
        holder = {"tensor": torch.ones(1000)}
        holder["self"] = holder

    gc.enable()
    with memory.watch() as report:
        cycle()
        cycle()
    assert report.peak_bytes == 8000
    assert report.leaked_bytes == 0
    assert gc.isenabled()


@pytest.mark.parametrize("named", [("model", "optimizer"), ("model",), ("optimizer",)])
def test_a_step_that_raises_leaves_nothing_behind(named):
    step, model, optimizer = gpt_step()
    known = {name: {"model": model, "optimizer": optimizer}[name] for name in named}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    hooks = len(torch.nn.modules.module._global_forward_hooks)
    state = torch.random.get_rng_state()

    def failing():
        torch.rand(3)
        model.loss(torch.randint(0, 100, (4, 32))).backward()
        raise KeyError("in the middle")

    with pytest.raises(KeyError, match="in the middle"):
        memory.measure(failing, warmup=0, **known)
    assert len(torch.nn.modules.module._global_forward_hooks) == hooks
    assert all(not p._post_accumulate_grad_hooks for p in model.parameters())
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert gc.isenabled()
    assert memory.measure(step, model=model).peak_bytes  # and the meter still works


def test_one_measurement_at_a_time():
    with memory.watch("outer"), pytest.raises(RuntimeError, match="'outer'"), memory.watch():
        pass
    with memory.watch() as report:
        torch.ones(10)
    assert report.peak_bytes == 40


def test_a_step_without_backward_is_warned_about():
    with pytest.warns(memory.MeterWarning, match="no backward"):
        memory.measure(lambda: torch.ones(3))


def test_time_and_flops_come_from_runs_of_their_own():
    step, model, optimizer = gpt_step()
    report = memory.measure(step, model=model, optimizer=optimizer, repeats=3, flops=True)
    assert len(report.step_seconds) == 3
    assert report.seconds > 0
    # A linear layer costs 2 FLOPs per weight and token forward, twice that backward.
    weights = sum(b.numel() for n, b in model.named_parameters() if "weight" in n and b.dim() > 1)
    positions = model.position_embedding.weight.numel()
    linear = 6 * (weights - positions) * 4 * 32
    attention = 3 * 3 * 2 * 2 * 4 * 32 * 32 * 32
    assert report.flops == linear + attention


def test_an_lstm_has_the_flops_of_its_cells():
    """One operation on a CPU, and none in PyTorch's list; a GRU's matmuls are in it."""
    counts = {}
    for kind, gates in ((nn.LSTM, 4), (nn.GRU, 3)):
        rnn, x = kind(16, 32, 2, bidirectional=True), torch.randn(10, 4, 16, requires_grad=True)
        report = memory.measure(lambda rnn=rnn, x=x: rnn(x)[0].sum().backward(), flops=True)
        counts[kind] = report.flops / gates
    first, second = 2 * 32 * (16 + 32), 2 * 32 * (64 + 32)
    assert counts[nn.LSTM] == 3 * 2 * 10 * 4 * (first + second)
    # A GRU's first step of backward needs no gradient at the state that it began with.
    assert counts[nn.GRU] == pytest.approx(counts[nn.LSTM], rel=0.1)
    hidden = torch.zeros(64, 32)
    with memory.flop_counter() as counter:
        hidden.addmm_(torch.ones(64, 128), torch.ones(128, 32))
        hidden.expand(3, 64, 32).clone().baddbmm_(torch.ones(3, 64, 8), torch.ones(3, 8, 32))
    assert counter.get_total_flops() == 2 * 64 * 32 * (128 + 3 * 8)


@pytest.mark.parametrize(("kind", "groups"), [(nn.Conv2d, 8), (nn.ConvTranspose2d, 8)])
def test_a_convolution_costs_twice_as_much_backward(kind, groups):
    conv, x = kind(8, 8, 3, 2, groups=groups), torch.randn(3, 8, 9, 9, requires_grad=True)
    forward = 2 * conv.weight[0].numel() * min(x.numel(), conv(x).numel())
    report = memory.measure(lambda: conv(x).sum().backward(), flops=True)
    assert report.flops == 3 * forward


def test_flops_of_a_loss_that_differentiates_inside_are_counted():
    """PyTorch's own counter raises: its hooks on the input refuse to be differentiated by."""
    linear, x = torch.nn.Linear(8, 4, bias=False), torch.randn(2, 8)

    def step():
        point = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(linear(point).square().sum(), point, create_graph=True)
        slope.square().sum().backward()

    report = memory.measure(step, model=linear, flops=True)
    matmul = 2 * 2 * 8 * 4
    assert report.flops == 6 * matmul  # forward and slope, and of each the gradients of its factors
    with pytest.raises(RuntimeError, match="leaf node"), FlopCounterMode(display=False):
        step()


@pytest.mark.parametrize("how", ["per-block", "none"])
def test_flops_of_fused_attention_are_counted(how):
    """Eager attention is two matmuls forward and four backward; fused, five backward."""
    counts = {}
    for attention in ("eager", "sdpa"):
        step, model, optimizer = gpt_step(attention=attention, checkpointed=how == "per-block")
        counts[attention] = memory.measure(step, model=model, optimizer=optimizer, flops=True).flops
    matmul = 3 * 2 * 4 * 32 * 32 * 32  # in three layers, of 4 sequences, 32 x 32 scores, width 32
    assert counts["sdpa"] - counts["eager"] == matmul


def test_one_of_several_optimizers_is_enough_to_count_the_states_of_all():
    """As of a GAN: a function of one's own returns one of them."""

    def make_step():
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        both = [torch.optim.Adam(layer.parameters()) for layer in model]

        def step():
            model(torch.ones(2, 8)).sum().backward()
            for optimizer in both:
                optimizer.step()
                optimizer.zero_grad()

        return step, model, both[0]

    step, model, optimizer = make_step()
    counted = memory.measure(step, model=model, optimizer=optimizer)
    two_moments = 2 * sum(parameter.nbytes for parameter in model.parameters())
    assert counted.at_peak["optimizer_state"] - two_moments == 4 * 4  # a count of steps each
    assert memory.predict(make_step, kernels="cpu").at_peak == counted.at_peak


def test_the_timeline_adds_up():
    step, model, optimizer = gpt_step()
    report = memory.measure(step, model=model, optimizer=optimizer)
    curve = report.curve()
    assert max(sum(point.values()) for point in curve) == report.peak_bytes
    assert set(curve[0]) == set(CATEGORIES)
    assert report.baseline_bytes == sum(curve[0].values())
    mlps = [life for life in report.timeline if life.module == "blocks.1.mlp"]
    assert {life.op for life in mlps} >= {"gelu"}


class FakeAllocator:
    """Counts as CUDA's caching allocator does: what was asked for, and that in blocks of 512."""

    def __init__(self, monkeypatch):
        self.held = []
        self.peak = self.requested_peak = 0
        for name in ("max_memory_allocated", "max_memory_reserved", "memory_stats"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (10_000, 90_000))
        monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", self.clear, raising=False)
        monkeypatch.setattr("tutorial_lib.device.synchronize", lambda _: None)
        monkeypatch.setattr("tutorial_lib.device.reset_peak", self.reset_peak)

    def take(self, num_bytes, what="tensor"):
        self.held.append((num_bytes, what))
        self.peak = max(self.peak, self.allocated)
        self.requested_peak = max(self.requested_peak, self.requested)

    def clear(self):
        self.held = [(size, what) for size, what in self.held if what != "workspace"]

    def reset_peak(self, _):
        self.peak, self.requested_peak = self.allocated, self.requested

    @property
    def requested(self):
        return sum(size for size, _ in self.held)

    @property
    def allocated(self):
        return sum(-(-size // 512) * 512 for size, _ in self.held)

    def memory_stats(self, _):
        return {
            "requested_bytes.all.current": self.requested,
            "requested_bytes.all.peak": self.requested_peak,
        }

    def max_memory_allocated(self, _):
        return self.peak

    def max_memory_reserved(self, _):
        return 2**20


CUDA = torch.device("cuda", 0)
WORKSPACE = 8_519_680


@pytest.mark.parametrize("foreign", [0, 3000], ids=["alone", "beside another model"])
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_requested_is_never_below_counted_and_other_holds_the_workspace(monkeypatch, foreign, warm):
    allocator = FakeAllocator(monkeypatch)
    allocator.take(foreign)
    allocator.take(1000)  # the model
    if warm:
        allocator.take(WORKSPACE, "workspace")
    before = AllocatorReading.take(CUDA)
    allocator.take(2000)
    allocator.take(WORKSPACE, "workspace")
    report = MemoryReport(peak_bytes=3000, baseline_bytes=1000)  # as counted
    before.add_to(report, CUDA)
    assert report.counted_bytes == 3000
    assert report.requested_bytes == 3000 + WORKSPACE
    rounded = 1024 + 2048 + (3072 - 3000 if foreign else 0)
    assert report.peak_bytes == rounded + WORKSPACE
    assert report.at_peak["other"] == report.peak_bytes - 3000
    assert (report.reserved_bytes, report.driver_bytes) == (2**20, 80_000)
    assert report.method == "allocator"


@pytest.mark.parametrize("full", [False, True], ids=["written", "a full disk"])
def test_a_snapshot_is_written_after_an_error_and_recording_always_ends(monkeypatch, full):
    said = []

    def write(path):
        said.append(path)
        if full:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(devices, "has_gpu", lambda: True)
    monkeypatch.setattr(private_torch, "write_snapshot", write)
    monkeypatch.setattr(private_torch, "record_allocations", lambda **how: said.append(how))
    with pytest.raises(OSError if full else ZeroDivisionError), memory.snapshot("x.pickle"):
        1 / 0  # noqa: B018
    assert said[1:] == ["x.pickle", {"enabled": None}]


def test_a_first_step_that_asks_a_gpu_is_said_not_to_be_measured(monkeypatch):
    counts = itertools.count()
    monkeypatch.setattr("tutorial_lib.device.allocations", lambda: next(counts))
    x = torch.ones(1000, requires_grad=True)
    with pytest.warns(memory.MeterWarning, match="took GPU memory.*pass model= or warmup=1"):
        memory.measure(lambda: x.sin().sum().backward(), warmup=0)


def test_a_model_that_runs_under_vmap_is_measured():
    """Its parameters are then wrapped tensors, which have no storage of their own."""
    models = [nn.Linear(8, 8) for _ in range(3)]
    stacked, _ = torch.func.stack_module_state(models)
    weights, x = nn.ParameterDict(stacked), torch.ones(4, 8)

    def run(parameters):
        return torch.func.functional_call(models[0], parameters, (x,))

    def step():
        torch.func.vmap(run)(dict(weights)).sum().backward()

    report = memory.measure(step, model=weights)
    assert report.at_peak["parameters"] == 3 * (8 * 8 + 8) * 4
    assert report.peak_bytes > 2 * report.at_peak["parameters"]
