"""Predictions that remember operations, held against predictions that ask for each anew."""

import functools
import random
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tutorial_lib import memory
from tutorial_lib.instruments.predicting import repeats
from tutorial_lib.instruments.training import Recipe

WIDTH, LAYERS = 16, 4


@pytest.fixture
def predicted_both_ways(monkeypatch):
    """The report of a step, which has to be the same where nothing is remembered."""

    def seen(make_step, **settings):
        torch.manual_seed(0)
        random.seed(0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            report = memory.predict(make_step, **settings)
        return report, [str(warning.message) for warning in caught]

    def both(make_step, **settings):
        quick = [seen(make_step, **settings) for _ in range(2)]  # the second time all is known
        with monkeypatch.context() as patch:
            patch.setattr(repeats.operations, "may_follow_from_shapes", lambda _: False)
            patch.setattr(repeats, "_OF_NUMBERS", set())
            plain, warned = seen(make_step, **settings)
        for report, said in quick:
            assert report.timeline == plain.timeline
            assert report.phase_starts == plain.phase_starts
            assert said == warned
        return plain

    return both


# ---- blocks that look equal and are not ----


class Block(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number, self.calls = number, 0
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.register_buffer("runs", torch.zeros(1, dtype=torch.int64))

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


class Counting(Block):
    """Every third call, of its own, keeps one more tensor."""

    def forward(self, x):
        self.calls += 1
        return super().forward(x.exp() if self.calls % 3 == 0 else x)


class Numbered(Block):
    def forward(self, x):
        return super().forward(x.sin() if self.number == 2 else x)


class Dropped(Block):
    """Stochastic depth by Python's random numbers."""

    def forward(self, x):
        return x if random.random() < 0.5 else super().forward(x)


class DroppedByTensor(Block):
    """Stochastic depth by PyTorch's random numbers, whose values decide."""

    def forward(self, x):
        return x if torch.rand(1) < 0.5 else super().forward(x)


class Updated(Block):
    """A buffer counts, and decides."""

    def forward(self, x):
        self.runs += 1
        return super().forward(x.tanh() if self.runs.item() % 2 == 0 else x)


class Global(Block):
    calls_of_all = 0

    def forward(self, x):
        Global.calls_of_all += 1
        return super().forward(x.sigmoid() if Global.calls_of_all % 5 == 0 else x)


class Caching(Block):
    """The first call keeps something for all later ones."""

    kept = None

    def forward(self, x):
        if self.kept is None:
            self.kept = x.detach() * 2
        return super().forward(x) * self.kept.mean()


class Selecting(Block):
    """How many rows there are depends on values."""

    def forward(self, x):
        rows = torch.arange(len(x)) % (self.number + 1) == 0
        return super().forward(x) + self.down(self.up(x[rows])).sum(0)


class Keeping(Block):
    """An attribute decides what is saved for backward."""

    def forward(self, x):
        x = super().forward(x)
        return x * x if self.number % 2 else x + x


class Dropping(Block):
    """The share that is dropped decides whether a mask is kept."""

    def forward(self, x):
        return F.dropout(super().forward(x), 0.1 * (self.number % 2), self.training)


def evaluated(blocks):
    for block in blocks:
        block.register_forward_hook(lambda module, args, out: F.dropout(out, 0.1, module.training))
    blocks[2].eval()


def hooked(blocks):
    blocks[2].register_forward_hook(lambda module, args, out: out + out.exp())


def hooked_backward(blocks):
    blocks[1].up.weight.register_hook(lambda gradient: gradient * gradient.abs().sqrt())


def shared(blocks):
    blocks[3].up = blocks[0].up


def doubled(blocks):
    blocks[1].double()
    blocks[1].register_forward_pre_hook(lambda module, args: args[0].double())
    blocks[1].register_forward_hook(lambda module, args, out: out.float())


def frozen(blocks):
    blocks[2].up.weight.requires_grad_(False)


def recomputed(blocks):
    for block in blocks[1::2]:
        plain = block.forward
        block.forward = functools.partial(checkpoint, plain, use_reentrant=False)


CLASSES = (Counting, Numbered, Dropped, DroppedByTensor, Updated, Global, Caching)
CLASSES += (Selecting, Keeping, Dropping)
CHANGES = (hooked, hooked_backward, shared, doubled, frozen, recomputed, evaluated)


def stack(kind=Block, change=None):
    def make_step():
        Global.calls_of_all = 0
        blocks = [kind(number) for number in range(LAYERS)]
        if change is not None:
            change(blocks)
        model = nn.Sequential(*blocks)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
        x = torch.randn(8, WIDTH)

        def step():
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step, model, optimizer

    return make_step


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("kernels", ["cuda", "cpu"])
def test_blocks_that_do_not_do_the_same(predicted_both_ways, kind, kernels):
    report = predicted_both_ways(stack(kind), kernels=kernels)
    assert report.peak_bytes > 0


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kernels", ["cuda", "cpu"])
def test_blocks_of_which_one_differs(predicted_both_ways, change, kernels):
    changed = predicted_both_ways(stack(change=change), kernels=kernels, lines=True)
    equal = predicted_both_ways(stack(), kernels=kernels, lines=True)
    assert changed.timeline != equal.timeline


@pytest.mark.filterwarnings("ignore::tutorial_lib.memory.MeterWarning")
@pytest.mark.parametrize("kind", [Counting, Updated, Global, Caching, Selecting, Keeping])
def test_blocks_are_predicted_as_they_are_counted(kind):
    step, model, optimizer = stack(kind)()
    counted = memory.measure(step, model=model, optimizer=optimizer)
    predicted = memory.predict(stack(kind), kernels="cpu")
    assert predicted.peak_bytes == counted.peak_bytes
    assert predicted.timeline == counted.timeline


# ---- operations ----


def step_of(body):
    """A step that runs a few lines beside a small model."""

    def make_step():
        model = nn.Linear(4, 4)
        optimizer = torch.optim.Adam(model.parameters())

        def step():
            seen = body()
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            said.append(seen)

        return step, model, optimizer

    said = []
    return make_step, said


def numbers_share_memory():
    number = torch.tensor(3.5)
    same, view = number.detach(), number.view(1)
    same.add_(1)
    return number.item(), view.item(), (view + 1).item()


def constants_are_known():
    zeros, ones = torch.zeros(3), torch.full((3,), 2.5)
    ones[1:].fill_(-0.0)
    return [*zeros.tolist(), *ones.tolist(), *torch.zeros_like(ones).tolist(), str(-ones[2].item())]


def written_values_are_known_no_longer():
    mask = torch.ones(4, dtype=torch.bool)
    first = mask.any().item()
    mask.zero_()
    return first, mask.any().item(), mask.logical_not_().any().item()


def known_values_are_followed():
    seen = []
    for _ in range(3):
        bias, count = torch.zeros(4), torch.tensor(2)
        bias[1:].add_(1)
        half, copy = bias.to(torch.bfloat16), count.clone()
        count += 1
        seen += [*half.tolist(), (half.detach() * 2).any().item(), count.item(), copy.item()]
        count.zero_()
        seen.append((count.item(), count.view(1).item(), torch.tensor(True).add(1).item()))
    return seen


def parts_are_filled():
    x = torch.arange(6.0)
    x[2:4].zero_()
    x[5:].fill_(7.0)
    y = torch.ones(4)
    y[:2].fill_(3)
    return x.tolist(), y.tolist(), (torch.zeros(2) + y[:2]).tolist()


def results_may_share_storages():
    x = torch.randn(6, 4)
    first, second = x.split(3)
    first.add_(second)
    return [one.untyped_storage()._cdata == x.untyped_storage()._cdata for one in (first, second)]


def sizes_change_in_place():
    x = torch.randn(4, 3)
    x.t_()
    x.resize_(7, 5)
    return x.shape, x.stride(), (x + 1).shape, torch.randn(2, 2).unsqueeze_(0).shape


def numbers_decide_on_types():
    whole = torch.ones(3, dtype=torch.int64)
    found = [(whole * 2).dtype, (whole * 2.0).dtype, (whole * True).dtype]
    torch.set_default_dtype(torch.float64)
    try:
        return [*found, (whole * 2.0).dtype, torch.empty(2).dtype]
    finally:
        torch.set_default_dtype(torch.float32)


def views_may_be_negated():
    x = torch.randn(3, dtype=torch.complex64).conj()
    return x.imag.is_neg(), x.imag.view(3, 1).is_neg(), torch.randn(3).view(3, 1).is_neg()


def sparse_tensors():
    x = torch.eye(3).to_sparse()
    return (x @ torch.randn(3, 2)).shape, torch.sparse.sum(x).shape


def without_autograd():
    with torch.inference_mode():
        x = torch.randn(3, 3) @ torch.randn(3, 3)
    y = torch.randn(3, 3) @ torch.randn(3, 3)
    return x.is_inference(), y.is_inference()


def lists_of_unlike_tensors():
    mine = [torch.randn(2, 3), torch.randn(3), torch.randn(2, 3), torch.randn(3).double()]
    added = torch._foreach_add(mine, mine)
    torch._foreach_mul_(mine, [1.0, 2.0, 3.0, 4.0])
    twice = [mine[0], mine[0].view(3, 2), torch.randn(2, 3)]
    return [(one.shape, one.dtype) for one in (*added, *torch._foreach_sqrt(twice))]


def storages_that_are_larger():
    base = torch.randn(10)
    part = base[2:8].view(2, 3)
    return part.clone().untyped_storage().nbytes(), part.untyped_storage().nbytes()


BODIES = (
    *(numbers_share_memory, constants_are_known, written_values_are_known_no_longer),
    *(results_may_share_storages, sizes_change_in_place, numbers_decide_on_types),
    *(views_may_be_negated, sparse_tensors, without_autograd, lists_of_unlike_tensors),
    *(storages_that_are_larger, parts_are_filled, known_values_are_followed),
)


@pytest.mark.parametrize("warmup", [0, 1])
@pytest.mark.parametrize("body", BODIES)
def test_a_step_sees_what_it_would_see(predicted_both_ways, body, warmup):
    make_step, said = step_of(body)
    predicted_both_ways(make_step, warmup=warmup)
    assert all(one == said[0] for one in said)
    torch.manual_seed(0)
    assert said[0] == body()


def test_what_refuses_is_asked_again():
    """An operation that raised has no answer, and its error is that of the first time."""
    make_step, _ = step_of(lambda: torch.randn(3, 4) @ torch.randn(3, 4))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
            memory.predict(make_step)


def test_few_operations_are_asked_twice(monkeypatch):
    """Of a model of equal blocks: twice the layers are few questions more."""

    def asked(layers):
        repeats._answers.clear()
        count = 0
        plain = repeats.FakeTensorMode.dispatch

        def counted(*args, **kwargs):
            nonlocal count
            count += 1
            return plain(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(repeats.FakeTensorMode, "dispatch", counted)
            sizes = {"n_layer": layers, "n_embd": 32, "n_head": 2, "vocab_size": 64}
            memory.predict(Recipe("gpt2", 2, seq=16, overrides=sizes).make_step)
        return count

    asked(2)  # imports, and what fake tensors remember themselves
    assert asked(8) <= asked(4) * 1.1


def test_memory_of_answers_has_a_limit(monkeypatch):
    monkeypatch.setattr(repeats, "_MOST_ANSWERS", 10)
    repeats._answers.clear()
    memory.predict(stack())
    assert len(repeats._answers) <= 10
