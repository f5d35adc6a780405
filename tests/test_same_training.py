"""assert_same_training: passes what is the same, and names every silent bug of one device."""

import copy
import itertools
import random
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tutorial_lib.checks import CheckError, assert_same_training, verdict

N = 4  # micro-batches in a window
GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(16, 12, generator=GENERATOR), torch.randint(5, (16,), generator=GENERATOR)
# a row counts as many tokens as it says: micro-batches weigh 4, 8, 20 and 32
WEIGHT = torch.tensor([1.0] * 4 + [2.0] * 4 + [5.0] * 4 + [8.0] * 4)

TOKENS = float(WEIGHT.sum())


def make(*layers, optimizer=torch.optim.SGD, lr=0.1, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 16), *layers, nn.GELU(), nn.Linear(16, 5)).to(dtype)
    updates = optimizer(model.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.StepLR(updates, step_size=2, gamma=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    return model, updates, scheduler, scaler


def loss_sum(model, rows):
    x = X[rows].to(model[0].weight.dtype)
    return (F.cross_entropy(model(x), Y[rows], reduction="none") * WEIGHT[rows]).sum()


def windows(num=N):
    return [slice(i * 16 // num, (i + 1) * 16 // num) for i in range(num)]


def train(
    model,
    optimizer,
    scheduler,
    scaler,
    *,
    num=N,
    count=TOKENS,
    mean_of_means=False,
    clip_each=False,
    schedule_each=False,
    scaler_each=False,
    zero="window",
    unscale=True,
    drop_last=False,
    update_each=False,
    logged=1.0,
    draws=False,
    max_norm=0.5,
):
    total = 0.0
    if zero == "window":
        optimizer.zero_grad()
    for rows in windows(num)[: num - drop_last]:
        if zero == "micro-batch":
            optimizer.zero_grad()
        loss = loss_sum(model, rows)
        loss = loss / (float(WEIGHT[rows].sum()) * num if mean_of_means else count)
        scaler.scale(loss).backward()
        total += loss.detach()
        if clip_each:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm * scaler.get_scale())
        if schedule_each:
            scheduler.step()
        if update_each:
            scaler.step(optimizer)
            scaler.update()
        if scaler_each:
            scaler.unscale_(optimizer)
            scaler.update()
    if unscale and not update_each:
        scaler.unscale_(optimizer)
    if not clip_each:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    if draws:
        torch.rand(1)
    if not update_each:
        scaler.step(optimizer)
    if not scaler_each and not update_each:
        scaler.update()
    if not schedule_each:
        scheduler.step()
    return total * logged


big = partial(train, num=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_micro_batches_equal_the_big_batch(optimizer, dtype, capsys):
    factory = partial(make, optimizer=optimizer, dtype=dtype)
    assert assert_same_training(big, train, make=factory, calls=5) is None
    assert_same_training(train, train, make=factory, bitwise=True, ignore=["loss", "buffers"])
    assert capsys.readouterr().out == (
        "the same training, within rounding\n"
        "the same training, bit for bit (not compared: loss, buffers)\n"
    )


WRONG = {  # how, where it must show first, words of the message
    "division missing": ({"count": 1.0}, "call 1, loss", "gradients (all of them are 64 times"),
    "one factor": ({"count": 1.0, "logged": 1 / 64}, "call 1, gradients", "a division missing"),
    "divided twice": ({"count": TOKENS * N, "logged": N}, "call 1, gradients", "second division"),
    "wrong count": ({"count": 4.0, "logged": 4 / 64}, "call 1, gradients", "16 times"),
    "mean of means": ({"mean_of_means": True}, "call 1, loss", "its share of the window"),
    "clip per micro-batch": ({"clip_each": True}, "call 1, gradients", "clipped once"),
    "clip while scaled": ({"unscale": False}, "call 1, gradients", "unscaled"),
    "scheduler": ({"schedule_each": True}, "call 1, parameters", "Also different: optimizer state"),
    "scaler": ({"scaler_each": True}, "call 1, gradients", "Also different: parameters"),
    "zeroed each time": ({"zero": "micro-batch"}, "call 1, gradients", "zeroed once per window"),
    "never zeroed": ({"zero": "never"}, "call 2, gradients", "zeroed once per window"),
    "last one dropped": ({"drop_last": True}, "call 1, loss", "Also different: gradients"),
    "update each time": (
        {"update_each": True},
        "call 1, updates",
        "step_b made 4 with its optimizer, and step_a 1",
    ),
    "logged loss": ({"logged": N}, "call 1, loss", "4 times as much"),
    "draws a number": ({"draws": True}, "call 1, random state", "torch's random state"),
}


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize(("how", "where", "words"), WRONG.values(), ids=WRONG)
def test_a_silent_bug_is_named(how, where, words):
    max_norm = 0.05 if "clip_each" in how or "unscale" in how else 1e9
    steps = partial(big, max_norm=max_norm), partial(train, max_norm=max_norm, **how)
    with pytest.raises(CheckError) as caught:
        assert_same_training(*steps, make=make)
    message = str(caught.value)
    assert message.startswith(f"{where}: ")
    assert words in message


# One dropout alone draws the same numbers in the same order on a CPU, in how many pieces ever.
@pytest.mark.parametrize("layers", [[nn.BatchNorm1d(16)], [nn.Dropout(0.5), nn.Dropout(0.5)]])
def test_layers_that_see_the_micro_batch(layers):
    with pytest.raises(CheckError, match=r"loss: .* Also different: gradients \(off by"):
        assert_same_training(big, train, make=lambda: make(*copy.deepcopy(layers)))


class Counting(nn.Module):
    """Keeps what it counts in its forward in an attribute."""

    def __init__(self, kept, add):
        super().__init__()
        self.kept, self.add, self.linear = kept, add, nn.Linear(16, 16)
        self.rows, self.shape = None, (0,)

    def forward(self, x):
        self.kept = self.add(self.kept)
        self.mask = torch.ones(len(x))  # of the batch, and no state
        self.last = self.linear(x)  # part of the graph
        return self.last


COUNTS = {
    "tensor": (torch.zeros(4), lambda kept: kept + 1, "off by 1 of its norm"),
    "number": (0, lambda kept: kept + 1, "is 2 in step_b and 1 in step_a"),
    "float": (0.0, lambda kept: kept + 0.5, "is 1 in step_b and 0.5 in step_a"),
    "list": ([0, 1], lambda kept: [kept[0] + 1, 1], r"is 2 in step_b and 1 in step_a"),
    "growing": ([], lambda kept: [*kept, 7], "is 7 in step_b and None in step_a"),
    "dict": ({"load": torch.zeros(2)}, lambda kept: {"load": kept["load"] + 1}, "load off by 1"),
    "array": (np.zeros(3), lambda kept: kept + 1, "off by 1 of its norm"),
}


@pytest.mark.parametrize(("kept", "add", "words"), COUNTS.values(), ids=COUNTS)
def test_what_recomputation_does_twice_to_an_attribute_is_found(kept, add, words):
    def factory():
        model, *others = make(Counting(copy.deepcopy(kept), add))
        return model, *others

    def step(model, optimizer, *others, checkpointed):
        model[1].checkpointed, model[1].how = checkpointed, str(checkpointed)  # settings
        run = partial(checkpoint, model[1], use_reentrant=False) if checkpointed else model[1]
        model[3](model[2](run(model[0](X)))).square().mean().backward()
        optimizer.step()

    plain, again = (partial(step, checkpointed=one) for one in (False, True))
    assert_same_training(plain, plain, make=factory, bitwise=True)
    with pytest.raises(CheckError, match=rf"call 1, attributes: 1\.kept.*{words}.*forward count"):
        assert_same_training(plain, again, make=factory)
    assert_same_training(plain, again, make=factory, ignore=["attributes"])


class Codebook(nn.Module):
    """Codes that move with each forward, as a quantiser's do."""

    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.zeros(16))

    def forward(self, x):
        with torch.no_grad():
            self.codes = 0.5 * self.codes + 0.5 * x.mean(0)
        return x + self.codes.detach()


def test_a_codebook_that_moves_with_each_micro_batch_is_asked_about():
    with pytest.raises(CheckError, match=r"loss: .*buffers.* BatchNorm's statistics or a codebook"):
        assert_same_training(big, train, make=lambda: make(Codebook()))


def gan_step(generator, update, critic, improve, *, num=N, leaks=False, rounds=1):
    """One update of a critic and one of a generator, in micro-batches."""
    for _ in range(rounds):
        improve.zero_grad()
        for rows in windows(num):
            fake = generator(X[rows]).detach()
            (critic(fake).exp().sum() - critic(X[rows, :5]).sum()).div(16).backward()
        improve.step()
    update.zero_grad()
    for rows in windows(num):
        critic(generator(X[rows])).square().sum().div(16).backward()
        if leaks:
            improve.zero_grad = lambda: None  # what the generator's backward left stays
    update.step()


def gan(kinds=(torch.optim.Adam, torch.optim.Adam)):
    torch.manual_seed(0)
    nets = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 5)), nn.Linear(5, 1)
    first, second = (kind(net.parameters(), lr=0.01) for kind, net in zip(kinds, nets, strict=True))
    return nets[0], first, nets[1], second


KINDS = [(torch.optim.Adam, torch.optim.Adam), (torch.optim.SGD, torch.optim.AdamW)]


@pytest.mark.parametrize("kinds", KINDS)
def test_each_of_several_optimizers_is_compared_on_its_own(kinds):
    factory, names = partial(gan, kinds), [kind.__name__ for kind in kinds]
    names = [f"{names[0]} 1", f"{names[1]} 2"] if len(set(names)) == 1 else names
    whole = partial(gan_step, num=1)
    assert_same_training(whole, gan_step, make=factory, calls=3)
    with pytest.raises(CheckError, match=rf"call 2, gradients: of {names[1]}, off by"):
        assert_same_training(whole, partial(gan_step, leaks=True), make=factory)
    with pytest.raises(CheckError, match=f"updates: step_b made 2 with {names[1]}, and step_a 1"):
        assert_same_training(whole, partial(gan_step, rounds=2), make=factory)


def test_two_optimizers_share_a_model():
    def factory(kinds=(torch.optim.Muon, torch.optim.AdamW)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 5))
        wide = [p for p in model.parameters() if p.dim() == 2]
        return (
            model,
            kinds[0](wide, lr=0.01),
            kinds[1]([p for p in model.parameters() if p.dim() < 2], lr=0.01),
        )

    def step(model, *optimizers, num=N, divided=16):
        for rows in windows(num):
            F.cross_entropy(model(X[rows]), Y[rows], reduction="sum").div(divided).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    for kinds in ((torch.optim.Muon, torch.optim.AdamW), (torch.optim.SGD, torch.optim.SGD)):
        assert_same_training(partial(step, num=1), step, make=partial(factory, kinds), calls=3)
    with pytest.raises(CheckError, match=r"gradients: of Muon, all of them are 0\.25 times"):
        assert_same_training(partial(step, num=1), partial(step, divided=64), make=factory)


def epoch(model, optimizer, *others, last=True, length=None):
    """Ten micro-batches in windows of four: the last window has two."""
    rows = [slice(i, i + 1) for i in range(10)]
    parts = [rows[i : i + 4] for i in range(0, 10 if last else 8, 4)]
    for part in parts:
        optimizer.zero_grad()
        for one in part:
            (loss_sum(model, one) / (length or len(part))).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"last": False}, "updates: step_b made 2 with its optimizer, and step_a 3"),
        ({"length": 4}, "gradients: all of them are 0.5 times"),
    ],
)
def test_the_last_window(how, words):
    assert_same_training(epoch, epoch, make=make, bitwise=True)
    with pytest.raises(CheckError, match=words):
        assert_same_training(epoch, partial(epoch, **how), make=make)


def plain_step(model, optimizer, *others, num=1, turn=lambda gradient: gradient, returns=None):
    optimizer.zero_grad()
    for rows in windows(num):
        (loss_sum(model, rows) / TOKENS).backward()
    for p in model.parameters():
        p.grad = turn(p.grad)
    optimizer.step()
    return returns


four_pieces = partial(plain_step, num=4)


def test_half_precision_is_compared_where_it_can_tell():
    factory = partial(make, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="summing 192 numbers may differ by"):
        assert_same_training(plain_step, four_pieces, make=factory)
    assert_same_training(plain_step, four_pieces, make=factory, num_terms=4)
    assert_same_training(four_pieces, four_pieces, make=factory, bitwise=True)
    half = partial(four_pieces, turn=lambda gradient: gradient / 2)
    with pytest.raises(CheckError, match="gradients"):
        assert_same_training(plain_step, half, make=factory, num_terms=4)


@pytest.mark.parametrize("returns", [(1.0, 2.0), {"loss": 1.0}, 3, np.float32(2), torch.ones(4)])
def test_a_step_may_return_anything(returns):
    assert_same_training(*[partial(plain_step, returns=returns)] * 2, make=make)
    with pytest.raises(CheckError, match="loss: step_b returned"):
        assert_same_training(partial(plain_step, returns=returns), plain_step, make=make)


def nothing(model, optimizer, *others):
    return None


def not_finite(model, optimizer, *others):
    (model(X[:0]).sum() / 0 * 0 + float("nan") * model[0].weight.sum()).backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("steps", "options", "error", "words"),
    [
        ((big, big), {"calls": 0}, ValueError, r"calls \(=0\)"),
        ((big, big), {"num_terms": 0}, ValueError, r"num_terms \(=0\)"),
        ((big, big), {"ignore": ["lossy"]}, ValueError, "ignore names 'lossy'"),
        ((big, big), {"make": lambda: nn.Linear(1, 1)}, TypeError, "make\\(\\) returned"),
        ((nothing, nothing), {}, CheckError, "step_a made no update"),
        ((big, nothing), {}, CheckError, "step_b made 0 with its optimizer, and step_a 1"),
        ((not_finite, not_finite), {}, CheckError, "is nan, but must be finite"),
    ],
)
def test_bad_input_is_named(steps, options, error, words):
    with pytest.raises(error, match=words):
        assert_same_training(*steps, **({"make": make} | options))


def test_one_model_for_both_is_refused():
    made = make()
    with pytest.raises(ValueError, match="same layer or optimizer twice"):
        assert_same_training(big, train, make=lambda: made)
    seeds = itertools.count()
    with pytest.raises(ValueError, match=r"two models whose 0\.weight differs"):
        assert_same_training(big, train, make=lambda: make(seed=next(seeds)))


@pytest.mark.parametrize("fails", [False, True])
def test_the_random_states_of_the_caller_stay(fails):
    def draws(model, *others):
        torch.rand(3), random.random(), np.random.rand()
        if fails:
            raise KeyError("in the step")
        return big(model, *others)

    before = torch.random.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    if fails:
        with pytest.raises(KeyError):
            assert_same_training(draws, draws, make=make)
    else:
        assert_same_training(draws, draws, make=make)
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert before[1] == random.getstate()
    assert (before[2] == np.random.get_state()[1]).all()


def test_a_verdict_is_one_line_where_it_is_as_expected(capsys):
    verdict(big, train, make=make)
    verdict(big, partial(train, drop_last=True), make=make, differs="gradients", ignore=["loss"])
    same, differs = capsys.readouterr().out.splitlines()
    assert same == "the same training, within rounding"
    assert differs.startswith("call 1, gradients: ")


@pytest.mark.parametrize(
    ("wrong", "differs", "error", "words"),
    [
        ({"drop_last": True}, None, CheckError, "call 1, loss: "),
        ({"drop_last": True}, "gradients", CheckError, "call 1, loss: "),
        ({}, "gradients", CheckError, "must differ in their gradients, but they do not"),
        ({}, "lossy", ValueError, r"differs \(='lossy'\) must be None, or one of updates, loss"),
    ],
)
def test_a_verdict_that_is_not_as_expected_raises(wrong, differs, error, words):
    with pytest.raises(error, match=words):
        verdict(big, partial(train, **wrong), make=make, differs=differs)
