"""Functions as people bring them: each returns a loss and the model that it trains."""

import random

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def of_rows(kind, samples, rows=1):
    """Return a function that trains a model of this kind on rows of 32 numbers, some a sample."""

    def make_loss(micro_batch=samples):
        model, x = kind(), torch.randn(micro_batch * rows, 32)
        return (lambda: model(x).square().mean()), model

    return make_loss


class Residual(nn.Module):
    """A block of convolutions that adds its input."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(4, width), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return x + self.conv(F.silu(self.norm(x)))


def segmentation(micro_batch=2):
    """Convolutions of float images, named by no library."""
    width, side = 16, 16
    blocks = [Residual(width) for _ in range(6)]
    model = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *blocks, nn.Conv2d(width, 4, 1))
    images = torch.randn(micro_batch, 3, side, side)
    labels = torch.randint(4, (micro_batch, side, side))
    return (lambda: F.cross_entropy(model(images), labels)), model


def two_models(micro_batch=2):
    """A holder without a forward of its own."""
    nets = nn.ModuleDict({"one": nn.Linear(16, 16), "other": nn.Linear(16, 1)})
    x = torch.randn(micro_batch, 16)
    return (lambda: nets["other"](nets["one"](x)).square().mean()), nets


class AddedBlocks(nn.Module):
    """The model itself adds each block's output."""

    def __init__(self, width=32, depth=8):
        super().__init__()
        parts = [(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(depth)]
        self.blocks = nn.ModuleList(nn.Sequential(*three) for three in parts)
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class StraightThrough(torch.autograd.Function):
    """Rounding whose gradient passes as if it were none: its operations alone have none at all."""

    @staticmethod
    def forward(ctx, x, steps):
        return (x * steps).round() / steps, x.abs().amax()

    @staticmethod
    def backward(ctx, gradient, _):
        return gradient, None


class Rounded(AddedBlocks):
    """It rounds between its blocks, by a function of its own."""

    def forward(self, x):
        for block in self.blocks:
            x, _ = StraightThrough.apply(x + block(x), 64)
        return self.head(x)


# A function with a backward of its own, called by the model.
straight_through = of_rows(Rounded, 16, rows=8)


# A residual between the stages, which the model adds.
residual = of_rows(AddedBlocks, 16, rows=8)


def mlp_blocks(width=32, depth=6):
    """Ordinary blocks, in a model that has no attribute for them."""
    parts = [(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU()) for _ in range(depth)]
    return [nn.Sequential(*three, nn.Linear(2 * width, width)) for three in parts]


def two_views(micro_batch=16):
    """A contrastive loss: the model is called for each view."""
    model = nn.Sequential(*mlp_blocks())
    one, other = torch.randn(2, micro_batch * 4, 32)

    def loss():
        similar = F.normalize(model(one)) @ F.normalize(model(other)).T
        return F.cross_entropy(similar, torch.arange(len(similar)))

    return loss, model


def called_by_the_loss(micro_batch=16):
    """The loss runs the blocks itself, and the model has no forward."""
    model = nn.ModuleList(mlp_blocks())
    x = torch.randn(micro_batch * 4, 32)

    def loss():
        h = x
        for block in model:
            h = h + block(h)
        return h.square().mean()

    return loss, model


class AutocastInside(nn.Module):
    """Its forward decides which types its blocks compute in."""

    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(mlp_blocks()), nn.Linear(32, 1)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            for block in self.blocks[:4]:
                x = x + block(x)
            with torch.autocast("cpu", enabled=False):
                x = self.blocks[4](x.float())
        with torch.no_grad():
            scale = x.abs().mean()
        return self.head(self.blocks[5](x / scale))


# Modes that end before the model does.
autocast_inside = of_rows(AutocastInside, 16, rows=4)


class Windows(nn.Module):
    """Between its blocks it asks for shapes, and folds the batch into windows."""

    def __init__(self, width=32):
        super().__init__()
        self.layers = nn.ModuleList(mlp_blocks(width))

    def forward(self, *, x, mask=None):
        for index, layer in enumerate(self.layers):
            batch, length, width = x.shape
            y = layer(x.view(batch * 4, length // 4, width))
            x = x + y.view(batch, length, width)
            if mask is not None and index % 2:
                x = x * mask[:batch, :, None]
        return x, (x.mean(1), [x.std()])


def windows(micro_batch=4):
    """Keyword arguments, and nested outputs."""
    model, x = Windows(), torch.randn(micro_batch, 16, 32)
    mask = torch.ones(micro_batch, 16)

    def loss():
        all_of_it, (mean, (spread,)) = model(x=x, mask=mask)
        return all_of_it.square().mean() + mean.mean() + spread

    return loss, model


def forces(micro_batch=4):
    """An energy whose derivative is trained."""
    model = nn.Sequential(nn.Linear(3, 32), *mlp_blocks(), nn.Linear(32, 1))
    positions, target = torch.randn(2, micro_batch * 8, 3)

    def loss():
        x = positions.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return (-slope - target).square().mean()

    return loss, model


def per_sample(micro_batch=4):
    """Derivatives by torch.func."""
    model = nn.Sequential(nn.Linear(3, 32), *mlp_blocks(), nn.Linear(32, 1))
    positions = torch.randn(micro_batch * 8, 3)
    slopes = torch.func.vmap(torch.func.grad(lambda x: model(x).sum()))
    return (lambda: slopes(positions).square().mean()), model


def forward_mode(micro_batch=4):
    """A derivative in time by forward mode, as of an equation's residual."""
    model = nn.Sequential(nn.Linear(1, 32), *mlp_blocks(), nn.Linear(32, 1))
    times = torch.randn(micro_batch * 8, 1)

    def loss():
        value, slope = torch.func.jvp(model, (times,), (torch.ones_like(times),))
        return (slope + value).square().mean()

    return loss, model


class Policy(nn.Module):
    """Recurrent cells over an episode, which ends in a distribution."""

    def __init__(self, kind):
        super().__init__()
        self.eye, self.cell, self.head = nn.Linear(8, 64), kind(64, 64), nn.Linear(64, 3)

    def forward(self, frames):
        states, state = [], None
        for frame in frames:
            given = self.eye(frame)
            if isinstance(self.cell, nn.RNNBase):
                given, state = self.cell(given[None], state)
            else:
                state = self.cell(given, state)
                given = state[0] if isinstance(state, tuple) else state
            states.append(self.head(given.reshape(-1, 64)))
        return torch.distributions.Categorical(logits=torch.stack(states))


def policy(micro_batch=4, kind=nn.GRUCell):
    model, frames = Policy(kind), torch.randn(6, micro_batch * 8, 8)
    actions = torch.randint(3, (6, micro_batch * 8))
    return (lambda: -model(frames).log_prob(actions).mean()), model


def inner_step(micro_batch=4):
    """The model runs with weights that are not its own, as in MAML."""
    model = nn.Sequential(*mlp_blocks())
    x = torch.randn(micro_batch * 8, 32)

    def loss():
        fast = {name: 0.9 * weight for name, weight in model.named_parameters()}
        return torch.func.functional_call(model, fast, (x,)).square().mean()

    return loss, model


def whole_steps_checkpointed(micro_batch=4):
    """A rollout whose loss recomputes each step as a whole."""
    model, state = nn.Sequential(*mlp_blocks()), torch.randn(micro_batch * 8, 32)

    def loss():
        x = state
        for _ in range(2):
            x = checkpoint(model, x, use_reentrant=False)
        return x.square().mean()

    return loss, model


class OwnCheckpoints(AddedBlocks):
    """Checkpoints its blocks itself."""

    use_reentrant = False

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        return x


class Reentrant(OwnCheckpoints):
    use_reentrant = True


def own_checkpoints(micro_batch=4, kind=OwnCheckpoints):
    model, x = kind(), torch.randn(micro_batch * 8, 32).requires_grad_()
    return (lambda: model(x).square().mean()), model


def reentrant(micro_batch=4):
    return own_checkpoints(micro_batch, Reentrant)


class OwnHooks(AddedBlocks):
    """Keeps what its blocks save in main memory."""

    def forward(self, x):
        for block in self.blocks:
            with save_on_cpu():
                x = block(x)
        return x


def own_hooks(micro_batch=4):
    return own_checkpoints(micro_batch, OwnHooks)


def hooks_in_loss(micro_batch=4):
    loss, model = own_checkpoints(micro_batch, AddedBlocks)

    def offloaded():
        with save_on_cpu():
            return loss()

    return offloaded, model


class Boxes:
    """No dataclass."""

    def __init__(self, corners):
        self.corners = corners


class Detector(nn.Module):
    """A block that hands on an object of a class of its own."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, boxes):
        return Boxes(self.linear(boxes.corners))


def objects(micro_batch=4):
    """Stages that return what no plan can look into."""
    model, x = nn.Sequential(*(Detector() for _ in range(4))), torch.randn(micro_batch, 4)
    return (lambda: model(Boxes(x)).corners.square().mean()), model


class Wide(nn.Module):
    """Few activations for its weights, which each call of a loss uses."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*mlp_blocks(64, 5))

    def forward(self, x):
        return self.layers(x).mean(1)


def shared_weights(micro_batch=4):
    """Gradients of weights wait for those of the other call."""
    model, (one, other) = Wide(), torch.randn(2, micro_batch, 24, 64)
    return (lambda: (model(one) - model(other)).square().mean()), model


class Looking(nn.Module):
    """Between its blocks it looks at values, lengths and devices, compares and loops."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(mlp_blocks())

    def forward(self, x):
        noise = None
        for index, block in enumerate(self.blocks):
            x = x + block(x)
            if noise is None:
                noise = torch.zeros(len(x), 1, device=x.device) + x.numel() * 1e-9
            x = torch.where(x > 5.0, 5.0, x) + noise
            if index == 2 and x.abs().max() < 0.5:
                break
            if index == 3:
                x[:, 0] = 1.0
        one, other = x.chunk(2, -1)
        return one * other


# A model that needs values while its stages are recorded.
looking = of_rows(Looking, 16, rows=4)


def in_place(micro_batch=2):
    """Writes over the output of a convolution, as most networks for images do."""

    def block():
        return nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(inplace=True))

    model, images = nn.Sequential(*(block() for _ in range(4))), torch.randn(micro_batch, 8, 16, 16)
    return (lambda: model(images).square().mean()), model


class ManyOrFew(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(mlp_blocks())

    def forward(self, x):
        for block in self.blocks[: 2 + len(x)]:
            x = block(x)
        return x


class LayerDrop(ManyOrFew):
    """Leaves blocks out, as Python's random numbers decide."""

    def forward(self, x):
        for block in self.blocks:
            x = block(x) if random.random() < 0.7 else x
        return x


class EarlyExit(ManyOrFew):
    """Ends where its numbers have become small."""

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            if x.abs().max() < 0.05:
                break
        return x


# The values of a tensor decide how many blocks run.
early_exit = of_rows(EarlyExit, 2)


# Runs other blocks each time.
layer_drop = of_rows(LayerDrop, 2)


class DrawsInside(nn.Module):
    """Scales by a random number of Python's, and runs in every step."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x):
        return x + random.uniform(0.9, 1.1) * self.layer(x)


# Stages that a recomputation would not repeat.
draws_inside = of_rows(lambda: nn.Sequential(*(DrawsInside() for _ in range(4))), 2)


# Runs as many blocks as its batch is large.
deeper_for_more = of_rows(ManyOrFew, 2)


class Expert(nn.Module):
    """Puts a balancing loss into an attribute."""

    def __init__(self):
        super().__init__()
        self.router, self.wide = nn.Linear(32, 4), nn.Linear(32, 256)

    def forward(self, x):
        share = self.router(x).softmax(-1)
        self.balance = share.mean(0).square().sum() + 1e-3 * self.wide(x).relu().square().mean()
        return x * share[:, :1] + self.wide(x).tanh()[:, :32]


class Experts(nn.Module):
    """Layers whose balancing losses are gathered after them."""

    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.ModuleList(Expert() for _ in range(4)), nn.Linear(32, 32)

    def forward(self, x, when):
        balance = 0.0
        for layer in self.layers:
            x = layer(x)
            balance += layer.balance if when == "at once" else 0.0
        x = self.head(x) if when == "after the head" else x
        balance += sum(layer.balance for layer in self.layers) if when != "at once" else 0.0
        return x, balance


def balanced(micro_batch=64, when="after the head"):
    """Run again, a layer would hold its balancing loss with all that was recomputed for it."""
    model, x = Experts(), torch.randn(micro_batch, 32)

    def loss():
        out, balance = model(x, when)
        return out.square().mean() + balance

    return loss, model


def balanced_at_once(micro_batch=64):
    """The model reads each layer's balancing loss right after the layer."""
    return balanced(micro_batch, "at once")


def balanced_after_layers(micro_batch=64):
    """The model reads them after the last layer, before it touches the output."""
    return balanced(micro_batch, "after the layers")


class DownAndUp(nn.Module):
    """Two lists of blocks, of different lengths and classes."""

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList(DrawsNothing() for _ in range(3))
        self.up = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(2))

    def forward(self, x):
        for block in (*self.down, *self.up):
            x = block(x)
        return x


class DrawsNothing(DrawsInside):
    """A residual layer."""

    def forward(self, x):
        return x + self.layer(x).tanh()


# Both of its lists are stages.
two_lists = of_rows(DownAndUp, 64)
