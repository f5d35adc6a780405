"""The models of lab 01, built from a case, and the halves that run its answers.

Nothing in its checks computes what the lab asks for: what a case describes is built, run for real,
and metered. A fault's number is the meter's number for the model that the fault believes in (the
same one untied, unfrozen, in float32).
"""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tutorial_lib.checks.given import Answer, Case, Result, forbid, run_half
from tutorial_lib.instruments import private_torch
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.unet import UNet, UNetConfig

SWITCHES = ("autocast", "master_copy")
_NO_METER = forbid.meter("Account for the tensors yourself.")
_ADVICE = "Go through the layers yourself."
_NO_HOOKS = forbid.Forbidden(
    f"memory.saved, the oracle here, uses autograd's hooks, so you may not use them. {_ADVICE}",
    (
        "torch.autograd.graph:saved_tensors_hooks.__enter__",
        *private_torch.PUSHES_SAVED_TENSOR_HOOKS,
    ),
)
_LAYERS = {"relu": nn.ReLU, "gelu": nn.GELU}


class TiedEmbeddingModel(nn.Module):
    """An embedding, some linear layers, and a head: tied, frozen and typed as the case says."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        vocab, widths = case["vocab"], case["widths"]
        self.embedding = nn.Embedding(vocab, widths[0])
        dtype = getattr(torch, case["dtype"])
        pairs = itertools.pairwise(widths)
        self.layers = nn.ModuleList(nn.Linear(i, o, dtype=dtype) for i, o in pairs)
        self.norm = nn.BatchNorm1d(widths[-1]) if case["norm"] else nn.Identity()
        self.head = nn.Linear(widths[-1], vocab, bias=False)
        if case["tied"]:
            self.head.weight = self.embedding.weight
        for index in case["frozen"]:
            self.layers[index].requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens `(B,)` to scores `(B, vocab)`."""
        x = self.embedding(tokens)  # (B, widths[0])
        for layer in self.layers:
            x = layer(x.to(layer.weight.dtype))
        scores: Tensor = self.head(self.norm(x.float()))
        return scores


class WideMLP(nn.Module):
    """Three linear layers on fixed random features, whose projection is a buffer.

    It holds few activations and many weights; its buffer is too large to be left out of a sum.
    """

    projection: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("projection", torch.randn(1536, 256))
        layers = [nn.Linear(256, width), nn.GELU(), nn.Linear(width, width), nn.GELU()]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 10))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 1536)` to scores `(B, 10)`."""
        scores: Tensor = self.layers(torch.relu(x @ self.projection))
        return scores


class VGG(nn.Module):
    """Convolutions that hold the activations, then a linear layer that holds the weights.

    Backward comes to the weights first: their gradient is there while most is still saved. The
    largest tensors are saved by a module that contains modules: its ReLUs are functions.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        pairs = itertools.pairwise([3, 32, 64, 128])
        self.features = nn.ModuleList(nn.Conv2d(i, o, 3, padding=1) for i, o in pairs)
        self.head = nn.Sequential(nn.Linear(128 * 4 * 4, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, images: Tensor) -> Tensor:
        """Map images `(B, 3, 32, 32)` to scores `(B, 10)`."""
        x = images
        for convolution, size in zip(self.features, (2, 1, 4), strict=True):
            x = F.max_pool2d(F.relu(convolution(x)), size)
        scores: Tensor = self.head(x.flatten(1))
        return scores


def make_training(case: Case) -> tuple[nn.Module, Callable[[], Tensor]]:
    """Build a model and the function that gives its loss on one batch."""
    batch = case["batch"]
    if case["kind"] == "gpt":
        gpt = GPT(GPTConfig(**case["config"]))
        tokens = torch.randint(0, gpt.config.vocab_size, (batch, gpt.config.seq_len))
        return gpt, lambda: gpt.loss(tokens)
    if case["kind"] == "unet":
        unet = UNet(UNetConfig(**case["config"], channel_multipliers=(1, 2, 2)))
        images, t = torch.randn(batch, 1, 32, 32), torch.randint(0, 1000, (batch,))
        noise = torch.randn_like(images)
        return unet, lambda: unet.loss(images, t, noise)
    if case["kind"] == "vgg":
        vgg = VGG(**case["config"])
        pictures, kinds = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))
        return vgg, lambda: F.cross_entropy(vgg(pictures), kinds)
    mlp = WideMLP(case["config"]["width"])
    x, y = torch.randn(batch, mlp.projection.size(0)), torch.randint(0, 10, (batch,))
    return mlp, lambda: F.cross_entropy(mlp(x), y)


def make_chain(case: Case) -> nn.Sequential:
    """Build the layers of a case: each is a name, and for `linear` its output width."""
    width = case["shape"][-1]
    layers: list[nn.Module] = []
    for name, *sizes in case["layers"]:
        if name == "linear":
            layers.append(nn.Linear(width, sizes[0]))
            width = sizes[0]
        else:
            layers.append(nn.LayerNorm(width) if name == "norm" else _LAYERS[name]())
    return nn.Sequential(*layers)


@run_half("1.1", forbidden=[_NO_METER])
def parameter_bytes(answer: Answer, case: Case) -> Result:
    return {"bytes": answer(TiedEmbeddingModel(case))}


@run_half("1.2", forbidden=[_NO_METER])
def gradient_and_state_bytes(answer: Answer, case: Case) -> Result:
    return {"ledger": answer(TiedEmbeddingModel(case), case["optimizer"])}


@run_half("1.3", forbidden=[forbid.saved(_ADVICE), _NO_HOOKS, _NO_METER])
def chain_saved_bytes(answer: Answer, case: Case) -> Result:
    return {"bytes": answer(make_chain(case), tuple(case["shape"]))}


@run_half("1.4", forbidden=[_NO_METER])
def bytes_per_parameter(answer: Answer, case: Case) -> Result:
    weights, switches = getattr(torch, case["weights"]), {name: case[name] for name in SWITCHES}
    return {name: answer(weights, name, **switches) for name in case["optimizers"]}


@run_half("1.5", forbidden=[_NO_METER])
def predict_peak(answer: Answer, case: Case) -> Result:
    model, loss_fn = make_training(case)
    forwards, before = 0, _versions(model)

    def counted() -> Tensor:
        nonlocal forwards
        forwards += 1
        return loss_fn()

    peak = answer(model, counted, case["optimizer"])
    return {"peak": peak, "forwards": forwards, "touched": _versions(model) != before}


def _versions(model: nn.Module) -> list[tuple[int, bool]]:
    # Every in-place change of a tensor raises its version.
    return [(private_torch.times_written(p), p.grad is None) for p in model.parameters()]
