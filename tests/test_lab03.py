"""Lab 03's checkpoint against what PyTorch expects of its own, and against PyTorch's itself.

Every expectation runs twice: with the solution's `checkpoint`, and with PyTorch's as a control.
"""

import contextlib
import copy
import gc
import weakref
from functools import partial

import pytest
import torch
import torch.utils.checkpoint as checkpoints
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from wrong_answers import solved

from tutorial_lib import memory
from tutorial_lib.checks import CheckError, lab03
from tutorial_lib.checks.given.half import run_in_place
from tutorial_lib.checks.lab03 import beside_torch
from tutorial_lib.checks.lab03.given.chain import stayed_bytes
from tutorial_lib.checks.vocabulary.expect import same_bits
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.lstm import LSTM, LSTMConfig
from tutorial_lib.models.unet import UNet, UNetConfig
from tutorial_lib.models.vit import ViT, ViTConfig

MINE = solved("lab03").checkpoint
TORCH_CHECKPOINT = beside_torch.torch_checkpoint
both = pytest.mark.parametrize("call", [MINE, TORCH_CHECKPOINT], ids=["mine", "torch's"])
stopping = pytest.mark.parametrize("early_stop", [True, False], ids=["early stop", "to the end"])


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def leaf(*shape):
    return torch.randn(shape, requires_grad=True)


def counted(function):
    def run(*args, **kwargs):
        run.calls += 1
        return function(*args, **kwargs)

    run.calls = 0
    return run


def waves(x):
    return x.sin().exp().sin()


# gradients, bit for bit, on the course's models


def gpt_case():
    gpt = GPT(GPTConfig(seq_len=16, num_layers=3, num_heads=2, d_model=32, dropout=0.1))
    tokens = torch.randint(0, 256, (2, 16))
    return gpt, gpt.blocks, lambda: gpt.loss(tokens)


def vit_case():
    vit = ViT(ViTConfig(num_layers=2, num_heads=2, d_model=32, dropout=0.1))
    config = vit.config
    images = torch.randn(3, config.in_channels, config.image_size, config.image_size)
    return vit, vit.blocks, lambda: vit.loss(images, torch.tensor([0, 1, 2]))


def unet_case():
    unet = UNet(UNetConfig(base_channels=8, dropout=0.1))
    images = torch.randn(2, 1, 16, 16)
    noise, times = torch.randn_like(images), torch.tensor([3, 500])
    return unet, unet.blocks, lambda: unet.loss(images, times, noise)


def lstm_case():
    lstm = LSTM(LSTMConfig(d_model=16, dropout=0.1))
    tokens = torch.randint(0, 256, (2, 24))
    return lstm, lstm.blocks, lambda: lstm.loss(tokens)


def wrapped(blocks, call):
    for block in blocks:
        block.forward = partial(call, partial(type(block).forward, block))


def gradients_and_peak(case, call, autocast):
    torch.manual_seed(1)
    model, blocks, loss = case()
    if call is not None:
        wrapped(blocks, call)
    with memory.watch(model=model) as report:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            value = loss()
        value.backward()
    return [p.grad for p in model.parameters()], report.peak_bytes


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("case", [gpt_case, vit_case, unet_case, lstm_case])
def test_models_train_as_without_and_peak_as_with_torch_checkpoint(case, autocast):
    exact, plain_peak = gradients_and_peak(case, None, autocast)
    mine, my_peak = gradients_and_peak(case, MINE, autocast)
    theirs, their_peak = gradients_and_peak(case, TORCH_CHECKPOINT, autocast)
    assert all(map(same_bits, mine, exact))
    assert all(map(same_bits, theirs, exact))
    assert my_peak == their_peak < plain_peak


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_segments_peak_as_with_torch_checkpoint(size):
    def run(call):
        blocks = [nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(6)]
        chain = nn.Sequential(*blocks)
        x = torch.randn(16, 32)
        with memory.watch(model=chain) as report:
            for start in range(0, 6, size):
                x = call(nn.Sequential(*blocks[start : start + size]), x)
            x.square().mean().backward()
            del x
        return report.peak_bytes

    assert run(MINE) == run(TORCH_CHECKPOINT)


# several backwards


@both
@stopping
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_higher_derivatives_through_nested_checkpoints(call, early_stop, depth):
    c = partial(partial, call, early_stop=early_stop)

    def slope(function):
        def at(x):
            return torch.autograd.grad(function(x).sum(), x, create_graph=True)[0]

        return at

    x = leaf(3)
    exact, seen, outside = waves, c(waves), c(c(waves))
    for _ in range(depth):
        exact, seen, outside = slope(exact), slope(c(seen)), c(slope(c(outside)))
    assert torch.allclose(seen(x), exact(x))
    assert torch.allclose(outside(x), exact(x))


@both
@stopping
def test_backward_inside_the_function(call, early_stop):
    def function(x):
        y = waves(x)
        (inner,) = torch.autograd.grad(y.sum(), x, retain_graph=False)
        return x.cos() * inner

    x = leaf(3)
    (exact,) = torch.autograd.grad(function(x).sum(), x)
    (seen,) = torch.autograd.grad(call(function, x, early_stop=early_stop).sum(), x)
    assert torch.equal(seen, exact)


@both
@stopping
def test_backward_inside_a_backward(call, early_stop):
    def function(x):
        middle = x.sin().cos()
        return middle, middle.sin()

    x = leaf()
    middle, out = call(function, x, early_stop=early_stop)
    out.grad_fn.register_hook(lambda *_: middle.backward(retain_graph=True))
    out.backward(retain_graph=True)
    exact = function(x)
    (again,) = torch.autograd.grad(exact[0] + exact[1], x)
    assert torch.allclose(x.grad, again)


@both
def test_each_backward_recomputes_once_and_frees_all(call):
    function = counted(waves)
    x = leaf(1000)
    y = call(function, x).sum()
    for times in (2, 3, 4):
        with memory.watch() as report:
            torch.autograd.grad(y, x, retain_graph=True)
        assert function.calls == times
        assert stayed_bytes(report) == 0
    torch.autograd.grad(y, x)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, x)


@both
def test_backward_in_parts_frees_what_is_done(call):
    a, b = leaf(4), leaf(4)
    first, second = call(lambda a, b: (waves(a).sum(), waves(b).sum()), a, b)
    assert torch.equal(torch.autograd.grad(first, a)[0], torch.autograd.grad(waves(a).sum(), a)[0])
    assert torch.equal(torch.autograd.grad(second, b)[0], torch.autograd.grad(waves(b).sum(), b)[0])


@both
def test_it_is_one_graph(call):
    calls = []
    out = call(lambda x: x.sin().cos().sin(), leaf())
    out.grad_fn.next_functions[0][0].register_hook(lambda *_: calls.append(1))
    out.backward()
    assert calls == [1]


@both
def test_a_hook_on_a_weight_used_inside_and_outside_is_called_once(call):
    calls = []
    weight, x = leaf(3, 3), leaf(3, 3)
    weight.register_hook(lambda _: calls.append(1))
    call(lambda h: weight * h, weight * x).sum().backward()
    assert calls == [1]


@both
def test_saved_tensors_can_be_read_outside_of_backward(call):
    function = counted(torch.exp)
    y = call(function, leaf(5))
    assert torch.equal(y.grad_fn._saved_result, y)
    y.grad_fn._saved_result  # noqa: B018
    assert function.calls == 3
    y.sum().backward()
    assert function.calls == 4
    with pytest.raises(RuntimeError, match="already been freed"):
        y.grad_fn._saved_result  # noqa: B018


@both
def test_a_group_of_backwards_recomputes_once(call):
    function = counted(lambda a, b: (waves(a).sum(), waves(b).sum()))
    a, b = leaf(3), leaf(3)
    first, second = call(function, a, b)
    with checkpoints.GraphExecGroup():
        first.backward()
        second.backward()
    assert function.calls == 2


class Scale(torch.autograd.Function):
    """Saves inputs, an intermediate and its output; reads them as often as `reads` says."""

    reads, seen = 1, None

    @staticmethod
    def forward(ctx, x, y):
        middle = x * y
        out = middle + middle
        ctx.save_for_backward(x, y, middle, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        for _ in range(Scale.reads):
            x, y, *_ = ctx.saved_tensors
        Scale.seen = y
        return 2 * grad * y, 2 * grad * x


@both
def test_custom_functions(call, monkeypatch):
    x, y = leaf(3), leaf(3)
    call(lambda x, y: Scale.apply(x.sin(), y.cos()), x, y).sum().backward()
    a, b = (t.detach().requires_grad_() for t in (x, y))
    (2 * a.sin() * b.cos()).sum().backward()
    assert torch.allclose(x.grad, a.grad)
    assert torch.allclose(y.grad, b.grad)
    monkeypatch.setattr(Scale, "reads", 2)
    with pytest.raises(RuntimeError, match="already unpacked once"):
        call(Scale.apply, x, y).sum().backward()


@both
def test_a_saved_input_that_needs_no_gradient_is_the_same_object(call):
    x, y = leaf(3), torch.randn(3)
    call(Scale.apply, x, y).sum().backward()
    assert Scale.seen is y


# how much is recomputed


@both
@pytest.mark.parametrize(
    ("option", "everywhere", "calls"),
    [
        ({}, None, 1),
        ({"early_stop": False}, None, 2),
        ({}, False, 2),
        ({"early_stop": False}, True, 1),
    ],
)
def test_early_stop(call, option, everywhere, calls):
    last = counted(torch.clone)  # saves nothing, so nobody needs it again
    switch = contextlib.nullcontext()
    if everywhere is not None:
        switch = checkpoints.set_checkpoint_early_stop(everywhere)
    with switch:
        y = call(lambda x: last(x.sin().cos()), leaf(3), **option)
    y.sum().backward()
    assert last.calls == calls


class Names(TorchDispatchMode):
    """Notes every operation."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


@both
@pytest.mark.parametrize(("early_stop", "sines"), [(True, 1), (False, 2)])
def test_an_operation_that_saves_its_input_alone_is_not_run_again(call, early_stop, sines):
    with Names() as mode:
        call(torch.sin, leaf(3), early_stop=early_stop).sum().backward()
    assert mode.names.count("sin.default") == sines


@both
@stopping
def test_what_saves_nothing_is_not_recomputed(call, early_stop):
    function = counted(torch.clone)
    call(function, leaf(3), early_stop=early_stop).sum().backward()
    assert function.calls == 1


@both
def test_contexts_surround_forward_and_recomputation(call):
    first, second = Names(), Names()
    y = call(torch.exp, leaf(3), context_fn=lambda: (first, second))
    assert first.names == ["exp.default"]
    assert second.names == []
    y.sum().backward()
    assert second.names[0] == "exp.default"
    assert set(second.names[1:]) == {"detach.default"}  # one or two: torch 2.13 and before


@both
def test_selective_contexts_of_torch(call):
    keep = [torch.ops.aten.mm.default]
    contexts = partial(checkpoints.create_selective_checkpoint_contexts, keep)
    x, w = leaf(4, 4), leaf(4, 4)
    with Names() as mode:
        call(lambda x, w: (x.cos() @ w).sin(), x, w, context_fn=contexts).sum().backward()
    assert mode.names.count("mm.default") == 3  # forward, and two gradients
    assert mode.names.count("cos.default") == 3  # forward, recomputation, the gradient of sin


# arguments and results


@both
@stopping
def test_any_arguments_and_results(call, early_stop):
    def function(number, tensors, /, *, named, last=None):
        y = number * tensors[0] * named["b"].exp()
        return {"y": last(y), "word": "abcd", "pair": (1, y.detach())}

    a, b = leaf(3), leaf(3)
    out = call(function, 3, [a], named={"b": b}, last=torch.sin, early_stop=early_stop)
    exact = function(3, [a], named={"b": b}, last=torch.sin)
    assert out["word"] == "abcd"
    assert out["pair"][0] == 1
    seen = torch.autograd.grad(out["y"].sum(), (a, b))
    assert all(map(torch.equal, seen, torch.autograd.grad(exact["y"].sum(), (a, b))))


@both
@pytest.mark.parametrize("needs_grad", [True, False])
def test_inputs_by_keyword_with_and_without_gradient(call, needs_grad):
    linear, x = nn.Linear(4, 4), torch.randn(2, 4, requires_grad=needs_grad)
    twin = copy.deepcopy(linear)
    call(linear, input=x).sin().sum().backward()
    twin(x).sin().sum().backward()
    assert torch.equal(linear.weight.grad, twin.weight.grad)
    assert torch.equal(linear.bias.grad, twin.bias.grad)


@both
def test_results_without_gradient(call):
    def function(x):
        with torch.no_grad():
            return x.sin()

    x = leaf(3)
    out = call(function, x)
    assert not out.requires_grad
    (out + x).sum().backward()
    assert torch.equal(x.grad, torch.ones(3))


@both
def test_an_output_that_does_not_depend_on_the_inputs(call):
    x, other = leaf(3), leaf(3)
    state = torch.get_rng_state()
    out = call(lambda x: other.sin(), x).sum()
    assert torch.autograd.grad(out, x, allow_unused=True, retain_graph=True) == (None,)
    with pytest.raises(RuntimeError, match="not have been used in the graph"):
        torch.autograd.grad(out, x)
    with pytest.raises(RuntimeError, match="does not require grad"):
        call(lambda x: torch.ones(1), x).backward()
    assert torch.equal(state, torch.get_rng_state())


@both
def test_nothing_happens_where_gradients_are_off(call):
    function = counted(torch.sin)
    packed = []
    hooks = saved_tensors_hooks(lambda t: packed.append(t), lambda t: t)
    with hooks, torch.no_grad():
        assert not call(function, leaf(3)).requires_grad
    assert (function.calls, packed) == (1, [])


@both
def test_a_changed_input_is_noticed(call):
    x = leaf(3) * 1
    y = call(waves, x)
    x.detach().add_(1)
    with pytest.raises(RuntimeError, match="inplace operation"):
        y.sum().backward()


def test_a_changed_input_in_a_list_is_noticed_too():
    x = leaf(3) * 1
    y = MINE(lambda xs: waves(xs[0]), [x])
    x.detach().add_(1)
    with pytest.raises(RuntimeError, match="inplace operation"):
        y.sum().backward()


def test_a_list_that_the_function_empties_is_full_again():
    x = leaf(3)
    MINE(lambda xs: waves(xs.pop()), [x]).sum().backward()
    assert torch.equal(x.grad, torch.autograd.grad(waves(x).sum(), x)[0])


@both
def test_data_parallel(call):
    model = nn.Linear(3, 3)
    call(nn.DataParallel(model), torch.randn(4, 3)).sum().backward()
    assert model.weight.grad is not None


# the same twice


@both
@pytest.mark.parametrize("preserve", [True, False])
def test_dropout_draws_the_same_mask_and_leaves_the_random_state_alone(call, preserve):
    x = leaf(100)
    out = call(lambda x: nn.functional.dropout(x).sin(), x, preserve_rng_state=preserve)
    state = torch.get_rng_state()
    out.sum().backward()
    assert torch.equal(state, torch.get_rng_state()) == preserve
    kept = out != 0
    exact = torch.where(kept, 2 * torch.cos(2 * x), 0)
    assert torch.allclose(x.grad, exact) == preserve


@both
@pytest.mark.parametrize("forward", [torch.bfloat16, torch.float16, None], ids=str)
@pytest.mark.parametrize("backward", [torch.bfloat16, None], ids=str)
def test_autocast_is_that_of_the_forward(call, forward, backward):
    seen = []

    def function(x, y):
        z = (x @ y) @ y
        seen.append(z.dtype)
        return z.float().sin()

    def cast(dtype):
        return torch.autocast("cpu", dtype) if dtype else contextlib.nullcontext()

    with cast(forward):
        y = call(function, leaf(3, 3), leaf(3, 3), early_stop=False).sum()
    with cast(backward):
        y.backward()
    assert seen == [forward or torch.float32] * 2


def test_default_device_is_that_of_the_forward():  # PyTorch's own forgot it in version 2.10
    seen = []

    def function(x):
        seen.append(torch.empty(1).device.type)
        return x.sin().exp()

    with torch.device("meta"):
        y = MINE(function, leaf(3)).sum()
    y.backward()
    assert seen == ["meta", "meta"]


def test_batch_norm_counts_a_batch_once_and_with_torch_checkpoint_twice():
    def counts(call):
        norm = nn.BatchNorm1d(3)
        x = leaf(5, 3)
        call(norm, x).square().sum().backward()
        return int(norm.num_batches_tracked), norm.running_mean, x.grad

    exact = counts(beside_torch.without_checkpoint)
    torch.manual_seed(0)
    mine = counts(MINE)
    torch.manual_seed(0)
    assert counts(TORCH_CHECKPOINT)[0] == 2
    torch.manual_seed(0)
    exact = counts(beside_torch.without_checkpoint)
    assert mine[0] == exact[0] == 1
    assert torch.equal(mine[1], exact[1])
    assert torch.equal(mine[2], exact[2])


# with other hooks, and at the end


@both
def test_saving_on_the_cpu_around_it_moves_inputs_alone(call):
    packed = []

    def pack(tensor):
        packed.append(tensor.numel())
        return tensor.clone()

    x = leaf(7) * 1
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        y = call(waves, x)
    assert sum(packed) == 7  # some versions of PyTorch's own save an empty tensor too
    with save_on_cpu():
        z = call(waves, x)
    exact = torch.autograd.grad(waves(x).sum(), x)
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], exact[0])
    assert torch.equal(torch.autograd.grad(z.sum(), x)[0], exact[0])


@both
def test_saving_on_the_cpu_inside_it(call):
    def function(x):
        with save_on_cpu():
            y = x.sin()
        return y.exp()

    x = leaf(7)
    call(function, x).sum().backward()
    assert torch.equal(x.grad, torch.autograd.grad(x.sin().exp().sum(), x)[0])


@both
@stopping
def test_the_graph_dies_with_its_output(call, early_stop):
    def refs():
        x, block = leaf(3) * 1, nn.Tanh()
        y = call(lambda x: call(block, waves(x)), x, early_stop=early_stop)
        torch.autograd.grad(y.sum(), x, retain_graph=True)
        return weakref.ref(x), weakref.ref(block)

    gc.disable()
    try:
        assert [ref() for ref in refs()] == [None, None]
    finally:
        gc.enable()


# errors


def fickle(first, again):
    runs = []

    def function(x):
        runs.append(1)
        return (first if len(runs) == 1 else again)(x)

    return function


TWO = lambda x: x.sin().exp()  # noqa: E731


@both
@pytest.mark.parametrize(
    ("again", "options", "words"),
    [
        (torch.sin, {}, "A different number of tensors was saved"),
        (lambda x: TWO(x).sin(), {"early_stop": False}, "trying to save more tensors during recom"),
        (lambda x: TWO(x[:2]), {}, "tensors have different metadata"),
        (lambda x: TWO(x.double()), {}, "tensors have different metadata"),
        (lambda x: TWO(x.to("meta")), {}, "tensors have different metadata"),
        (lambda x: TWO(x[:2]), {"debug": True}, "You are seeing this error because you passed `de"),
    ],
    ids=["fewer", "more", "shape", "dtype", "device", "debug"],
)
def test_another_recomputation_is_told(call, again, options, words):
    x, state = leaf(3), torch.get_rng_state()
    with pytest.raises(RuntimeError, match=words):
        call(fickle(TWO, again), x, **options).sum().backward()
    assert torch.equal(state, torch.get_rng_state())
    assert x.grad is None


@pytest.mark.parametrize(
    ("again", "options", "words"),
    [
        (lambda x: TWO(x[:2]), {}, r"number 0 was float32 \(3,\) on cpu, .*\(2,\).*SliceBackward"),
        (lambda x: TWO(x.double()), {}, r"float32 \(3,\).* is float64 \(3,\).*ToCopyBackward"),
        (lambda x: TWO(x.to("meta")), {}, r"on cpu, .* on meta, made by ToCopyBackward"),
        (torch.sin, {}, "2 in forward, 1 in the recomputation"),
        (lambda x: TWO(x[:2]), {"debug": True}, r"sin\S* in forward, and aten.slice"),
    ],
    ids=["shape", "dtype", "device", "number", "debug"],
)
def test_my_error_names_operation_shape_and_dtype(again, options, words):
    with pytest.raises(RuntimeError, match=words):
        MINE(fickle(TWO, again), leaf(3), **options).sum().backward()


@both
def test_more_tensors_behind_an_early_stop_are_not_seen(call):
    x = leaf(3)
    call(fickle(TWO, waves), x).sum().backward()
    assert torch.equal(x.grad, torch.autograd.grad(TWO(x).sum(), x)[0])


@both
def test_the_metadata_check_can_be_turned_off(call):
    x = leaf(3)
    again = lambda x: x.sin().exp().unsqueeze(0)  # noqa: E731
    call(fickle(TWO, lambda x: again(x.unsqueeze(0))), x, determinism_check="none")
    with pytest.raises(RuntimeError, match="number of tensors"):
        call(fickle(TWO, torch.sin), x, determinism_check="none").sum().backward()
    with pytest.raises(ValueError, match="determinism_check"):
        call(TWO, x, determinism_check="strict")


def test_debug_everywhere_and_with_contexts():
    with checkpoints.set_checkpoint_debug_enabled(True):
        y = MINE(fickle(TWO, lambda x: TWO(x[:2])), leaf(3)).sum()
    with pytest.raises(RuntimeError, match="You are seeing this error"):
        y.backward()
    with checkpoints.set_checkpoint_debug_enabled(False):
        y = MINE(fickle(TWO, lambda x: TWO(x[:2])), leaf(3), debug=True).sum()
    with pytest.raises(RuntimeError, match="different metadata") as caught:
        y.backward()
    assert "You are seeing" not in str(caught.value)
    with pytest.raises(ValueError, match="incompatible with non-default context_fn"):
        MINE(TWO, leaf(3), debug=True, context_fn=lambda: (Names(), Names()))


@both
def test_a_function_that_raises_leaves_no_hooks(call):
    def function(x):
        x.sin()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        call(function, leaf(3))
    assert leaf(3).sin().grad_fn._saved_self is not None


def test_what_cannot_be_called_and_what_is_not_written():
    with pytest.raises(TypeError, match="got a Tensor: pass a function"):
        MINE(leaf(3))
    with pytest.raises(ValueError, match="use_reentrant=False"):
        MINE(torch.sin, leaf(3), use_reentrant=True)
    assert MINE(torch.sin, leaf(3), use_reentrant=False).requires_grad


@both
def test_it_works_on_fake_tensors(call):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = leaf(3)
        call(lambda x: nn.functional.dropout(waves(x)), x).sum().backward()
        assert x.grad.shape == (3,)


# what a check is told of an answer's memory


METERED = {"hooked": "hooked", "region": "Region", "checkpoint": "checkpoint"}


@pytest.mark.parametrize(("name", "asked"), METERED.items())
def test_a_judge_refuses_a_claimed_peak_that_nothing_fits_into(name, asked):
    check, answer = getattr(lab03, name), getattr(solved("lab03"), asked)
    metered = 0
    for case in check.cases(0):
        result = run_in_place(check.half, answer, case)
        check.judge(case, result)
        compared = case["input_needs_grad"] is False if name == "hooked" else "peak" in result
        for claim in (1, -(10**9), result.get("peak", 0) // 2) if compared else ():
            with pytest.raises(CheckError, match="peak"):
                check.judge(case, {**result, "peak": claim})
            metered += 1
    assert metered
