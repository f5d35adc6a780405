"""Whether a training stays the same: looked at, tried, and compared with plain training."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, vmap
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tutorial_lib.instruments import segments
from tutorial_lib.instruments.segments import sameness
from tutorial_lib.instruments.segments.sameness.trial import UntriedError, tried

WIDTH = 12


class Block(nn.Module):
    """A residual block; those below do something to its state."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )
        self.prepare()

    def prepare(self):
        pass

    def forward(self, x):
        return x + self.body(x)


class SpectralNorm(Block):
    def prepare(self):
        self.body[0] = nn.utils.spectral_norm(self.body[0])


class DelayedScale(Block):
    def prepare(self):
        self.register_buffer("history", torch.ones(4))

    def forward(self, x):
        scaled = x / self.history.amax()
        self.history.copy_(self.history.roll(1))
        self.history[0] = x.detach().abs().amax()
        return x + self.body(scaled)


class ScaleInANumber(Block):
    scale = 1.0

    def forward(self, x):
        self.scale *= 0.9
        return x + self.body(self.scale * x)


class FrameInAList(Block):
    def prepare(self):
        self.frames = [None]

    def forward(self, x):
        before = torch.zeros_like(x) if self.frames[0] is None else self.frames[0]
        self.frames[0] = x
        return x + self.body(x + before)


class CountInABuffer(Block):
    def prepare(self):
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += len(x)
        return super().forward(x)


class CountsBesides(Block):
    calls = 0

    def prepare(self):
        self.log = {"norms": []}

    def forward(self, x):
        self.calls += 1
        self.log["norms"].append(x.detach().norm())
        return super().forward(x)


class ResultKept(Block):
    def forward(self, x):
        self.last = self.body(x)
        return x + self.last


class MaskMadeOnce(Block):
    mask = None

    def forward(self, x):
        if self.mask is None:
            self.mask = torch.linspace(0, 1, WIDTH)
        return x + self.body(x) * self.mask


class ScaledByItsFirstBatch(Block):
    def prepare(self):
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("is_ready", torch.tensor(False))

    def forward(self, x):
        if not self.is_ready:
            with torch.no_grad():
                self.scale.copy_(1 / (x.std(0) + 1e-3))
                self.is_ready.fill_(True)
        return x + self.body(x * self.scale)


class RangeOfAll(Block):
    def prepare(self):
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x):
        largest = torch.maximum(self.largest, x.detach().abs().amax())
        self.largest.copy_(largest)
        return x + self.body(x / largest)


class BatchNorm(Block):
    def prepare(self):
        self.body.insert(1, nn.BatchNorm1d(2 * WIDTH))


class Dropout(Block):
    def prepare(self):
        self.body.append(nn.Dropout(0.3))


class ItsOwnGenerator(Block):
    def prepare(self):
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x):
        return x + self.body(x + torch.randn(WIDTH, generator=self.generator))


class PythonsRandom(Block):
    def forward(self, x):
        return x + self.body(random.random() * x)


class InPlace(Block):
    def forward(self, x):
        x = x + self.body(x)
        return F.relu(x, inplace=True)


class ChangesItsInput(Block):
    def forward(self, x):
        return x.mul_(0.5) + self.body(x)


EXACT = [
    *(Block, CountInABuffer, CountsBesides, ResultKept, MaskMadeOnce, InPlace),
    *(ScaledByItsFirstBatch, RangeOfAll, BatchNorm),
    Dropout,
]
ANOTHER = [
    *(SpectralNorm, DelayedScale, ScaleInANumber, FrameInAList),
    *(ItsOwnGenerator, PythonsRandom),
]


class Model(nn.Module):
    """A few blocks, each called twice if asked to."""

    def __init__(self, kind, times=1):
        super().__init__()
        self.inward, self.blocks = nn.Linear(WIDTH, WIDTH), nn.ModuleList(kind() for _ in range(3))
        self.times, self.through = times, lambda block, x: block(x)

    def forward(self, x):
        x = self.inward(x)
        for _ in range(self.times):
            for block in self.blocks:
                x = self.through(block, x)
        return x


def stages(model):
    return {f"blocks.{place}": block for place, block in enumerate(model.blocks)}


def maker(kind, times=1, loss_of=lambda out, target: F.mse_loss(out, target)):
    def make(samples):
        model = Model(kind, times)
        x, target = torch.randn(samples, WIDTH), torch.randn(samples, WIDTH)
        return (lambda: loss_of(model(x), target)), model

    return make


def gradients(make, checkpointed):
    torch.manual_seed(0)
    random.seed(0)
    loss, model = make(4)
    if checkpointed:
        model.through = lambda block, x: checkpoint(block, x, use_reentrant=False)
    loss().backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("kind", [*EXACT, *ANOTHER])
def test_recomputing_is_said_to_be_what_it_is(kind, times):
    make = maker(kind, times)
    found = sameness.judge(make, stages)
    plain, again = gradients(make, False), gradients(make, True)
    is_equal = all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
    assert found.recomputed == ("exact" if is_equal else "another"), str(found)
    if times == 1:
        assert is_equal == (kind in EXACT)
    if not is_equal:
        assert [*found.unlike] == ["blocks.0", "blocks.1", "blocks.2"]


@pytest.mark.parametrize(
    ("kind", "states"),
    [
        (SpectralNorm, {"body.0.weight_u"}),
        (DelayedScale, {"history"}),
        (ScaleInANumber, {"scale"}),
        (FrameInAList, {"frames[0]"}),
        (ItsOwnGenerator, {"something that it keeps"}),
        (PythonsRandom, {"random numbers of Python or NumPy"}),
        (ChangesItsInput, {"its own input"}),
    ],
)
def test_what_a_stage_reads_and_changes_is_named(kind, states):
    causes = sameness.judge(maker(kind), stages).unlike["blocks.1"]
    assert {name.removeprefix("blocks.1.") for name in causes} >= states


@pytest.mark.parametrize(
    ("kind", "moved"),
    [
        (Block, set()),
        (ResultKept, set()),
        (MaskMadeOnce, set()),
        (CountInABuffer, {"seen"}),
        (CountsBesides, {"calls", "log['norms'].length", "log['norms'][1]"}),
        (BatchNorm, {"body.1.running_mean", "body.1.running_var", "body.1.num_batches_tracked"}),
    ],
)
def test_what_recomputation_changes_a_second_time_is_named(kind, moved):
    found = sameness.judge(maker(kind), stages)
    names = {name.removeprefix("blocks.2.") for name in found.moved if "blocks.2" in name}
    assert (found.recomputed, names) == ("exact", moved)


# ---- samples of a micro-batch ----


def info_nce(out, target):
    scores = F.normalize(out, dim=1) @ F.normalize(target, dim=1).T
    return F.cross_entropy(5 * scores, torch.arange(len(out)))


def two_views(out, target):
    """The same, with both views in one tensor, one after the other."""
    one, two = out.chunk(2)
    return F.cross_entropy(one @ two.T, torch.arange(len(one)))


def pairs_behind_each_other(out, target):
    """Preferences: the first half of the rows against the second."""
    chosen, rejected = out.sum(1).chunk(2)
    return -F.logsigmoid(chosen - rejected).mean()


def hardest_negative(out, target):
    distance = torch.cdist(out, target)
    others = distance + 1e3 * torch.eye(len(out))
    return (1 + distance.diagonal() - others.amin(1)).relu().mean()


def normalised_by_the_batch(out, target):
    error = (out - target).square().mean(1)
    return ((error - error.mean()) / error.std()).relu().mean()


def balanced(out, target):
    share = out.softmax(1)
    load = F.one_hot(share.argmax(1), WIDTH).float().mean(0)
    return F.mse_loss(out, target) + 0.01 * (load * share.mean(0)).sum()


def over_counted_targets(out, target):
    is_target = target > 0.5
    return ((out - target).square() * is_target).sum() / is_target.sum()


LOSSES = [
    (lambda out, target: F.l1_loss(out, target), 1, "rounding"),
    (pairs_behind_each_other, 2, "rounding"),
    (over_counted_targets, 1, "rounding"),
    (lambda out, target: (out + torch.randn_like(out) - target).square().mean(), 1, "redrawn"),
    (info_nce, 1, "another"),
    (two_views, 2, "another"),
    (hardest_negative, 1, "another"),
    (normalised_by_the_batch, 1, "another"),
    (balanced, 1, "another"),
    (lambda out, target: F.mse_loss(out, target, reduction="sum"), 1, "another"),
]


def with_loss(loss_of, rows=1, kind=Block):
    def make(samples):
        model, count = Model(kind), rows * samples
        x, target = torch.randn(count, WIDTH), torch.randn(count, WIDTH)
        return (lambda: loss_of(model(x), target)), model

    return make


@pytest.mark.parametrize(("loss_of", "rows", "accumulated"), LOSSES)
def test_whether_samples_matter_to_each_other_is_tried(loss_of, rows, accumulated):
    found = sameness.judge(with_loss(loss_of, rows), stages)
    assert found.accumulated == accumulated, str(found)
    assert found.counts == (loss_of is over_counted_targets)


@pytest.mark.parametrize("kind", [SpectralNorm, DelayedScale, ScaleInANumber, FrameInAList])
def test_state_that_the_next_micro_batch_reads_makes_another_training(kind):
    found = sameness.judge(maker(kind), stages)
    assert found.accumulated == "another"
    assert "forward reads what the previous one changed" in found.accumulating


def test_a_teacher_that_begins_as_its_student_moves():
    def make(samples):
        student, teacher = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        teacher.load_state_dict(student.state_dict())
        model, x = (
            nn.ModuleDict({"student": student, "teacher": teacher}),
            torch.randn(samples, WIDTH),
        )

        def loss():
            with torch.no_grad():
                teacher.weight.lerp_(student.weight, 0.1)
            return F.mse_loss(student(x.sin()), teacher(x))

        return loss, model

    assert sameness.judge(make, lambda model: dict(model.named_children())).moves == (
        "teacher.weight",
    )


def test_what_could_not_be_tried_is_said():
    def drawn_inside(samples):
        model = Model(Block)
        return (lambda: model(torch.randn(samples, WIDTH)).square().mean()), model

    found = sameness.judge(drawn_inside, stages)
    assert (found.compares, found.accumulated) == (None, "untried")
    assert "its batch isn't among the tensors that it closes over" in str(found)
    with pytest.raises(UntriedError, match="its gradient is zero"):
        tried(with_loss(lambda out, target: 0 * out.mean()))

    def large(samples):
        model = nn.Sequential(*[nn.Linear(2**13, 2**13) for _ in range(2)])
        x = torch.randn(samples, 2**13)
        return (lambda: model(x).square().mean()), model

    found = sameness.judge(large, lambda model: dict(model.named_children()))
    assert "was not tried, because the model is too large" in str(found)
    assert "checks.assert_same_training" in found.accumulating


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_random_numbers_of_python_are_drawn_anew_and_no_reason_to_try_nothing(draw):
    def noisy(samples):
        model, x = Model(Block), torch.randn(samples, WIDTH)
        return (lambda: (model(x) + draw()).square().mean()), model

    found = sameness.judge(noisy, stages)
    assert (found.recomputed, found.accumulated) == ("exact", "redrawn")
    assert "draws other random numbers (noise)" in str(found)


@pytest.mark.parametrize(
    ("loss_of", "pairs"), [(info_nce, True), (hardest_negative, True), (F.mse_loss, False)]
)
def test_a_large_model_is_looked_at_for_pairs_of_samples(loss_of, pairs):
    def make(samples):
        model = nn.Linear(WIDTH, 2**26)
        x = torch.randn(samples, WIDTH)
        return (lambda: loss_of(model(x)[:, :WIDTH], x)), model

    found = sameness.judge(make, lambda model: {})
    assert (found.compares, found.pairs) == (None, pairs)
    assert found.accumulated == ("another" if pairs else "untried")


def test_a_trial_leaves_everything_as_it_was(capsys):
    def make(samples):
        print("made")
        random.random()
        return with_loss(F.mse_loss, kind=Dropout)(samples)

    states = torch.get_rng_state(), random.getstate(), torch.get_default_dtype()
    tried(make)
    sameness.judge(with_loss(F.mse_loss, kind=SpectralNorm), stages)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), torch.get_default_dtype())
    assert capsys.readouterr().out == ""


# ---- torch.func ----


class InsideABlock(nn.Module):
    """Adds the slope of an energy, as a gradient flow does."""

    def __init__(self):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    def forward(self, x):
        return x - vmap(grad(lambda row: self.energy(row).squeeze(0)))(x)


class BatchedInABlock(InsideABlock):
    def forward(self, x):
        return x + vmap(self.energy)(x)


def _in_forward_mode(model, x):
    with forward_ad.dual_level():
        out = model(forward_ad.make_dual(x, torch.ones_like(x)))
        return forward_ad.unpack_dual(out).tangent


def _by_weights(factor):
    return lambda model, x: functional_call(
        model, {name: factor(weight) for name, weight in model.named_parameters()}, (x,)
    )


TRANSFORMED = {
    "grad": (Block, lambda model, x: vmap(grad(lambda row: model(row).sum()))(x)),
    "jacrev": (Block, lambda model, x: vmap(jacrev(model))(x)),
    "jacfwd": (Block, lambda model, x: vmap(jacfwd(model))(x)),
    "jvp": (Block, lambda model, x: jvp(model, (x,), (torch.ones_like(x),))[1]),
    "vmap": (Block, lambda model, x: vmap(model)(x)),
    "forward mode": (Block, _in_forward_mode),
    "beside a plain call": (Block, lambda model, x: model(x) + vmap(model)(x)),
    "inside a block": (InsideABlock, lambda model, x: model(x)),
}
NOT_TRANSFORMED = {
    "vmap in a block": (BatchedInABlock, lambda model, x: model(x)),
    "its own weights": (Block, _by_weights(lambda weight: weight)),
    "other weights": (Block, _by_weights(lambda weight: 2 * weight)),
}


@pytest.mark.parametrize("name", [*TRANSFORMED, *NOT_TRANSFORMED])
@pytest.mark.parametrize("strategy", ["per-block", "sqrt"])
def test_under_torch_func_it_is_said_whether_checkpoints_work(name, strategy):
    kind, run = (TRANSFORMED | NOT_TRANSFORMED)[name]
    torch.manual_seed(0)
    model, x = Model(kind), torch.randn(4, WIDTH)
    loss = lambda: run(model, x).square().mean()  # noqa: E731
    loss().backward()
    plain = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    said = sameness.Sameness.of(sameness.look(model, loss, stages(model)), None)
    with segments.applied(model, strategy):
        if name in TRANSFORMED:
            assert [*said.transformed] == ["blocks.0", "blocks.1", "blocks.2"]
            with pytest.raises(ValueError, match=r"runs the model under torch\.func"):
                loss().backward()
        else:
            loss().backward()
            again = [parameter.grad for parameter in model.parameters()]
            is_equal = all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
            assert is_equal == (name != "other weights")
    if name in TRANSFORMED:
        assert said.recomputed == "impossible"
        assert "can't be recomputed" in str(said)
    else:
        assert said.recomputed == ("another" if name == "other weights" else "exact")
    if name == "other weights":
        assert "weights from functional_call" in str(said)
