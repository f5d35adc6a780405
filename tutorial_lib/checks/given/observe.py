"""What the halves that run an answer look at: gradients, rows, peaks, errors."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tutorial_lib import memory
from tutorial_lib.checks.given.values import CheckError


def fill_gradients(model: nn.Module, value: float = 1) -> None:
    """Set every parameter's gradient to ones, as an earlier backward may have left it, or zeros."""
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, value)


def is_filled(model: nn.Module) -> bool:
    """Tell whether every gradient is still that of ones."""
    gradients = [parameter.grad for parameter in model.parameters()]
    return all(g is not None and bool((g == 1).all()) for g in gradients)


def gradients_of(modules: nn.Module | Sequence[nn.Module]) -> list[Tensor | None]:
    """List the gradients of all parameters, a module that comes twice only once."""
    joined = modules if isinstance(modules, nn.Module) else nn.ModuleList(modules)
    return [parameter.grad for parameter in joined.parameters()]


def vector(tensors: Sequence[Tensor]) -> Tensor:
    """Put tensors into one vector of float64."""
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def parameter_vector(model: nn.Module) -> Tensor:
    """Put all parameters into one vector of float64."""
    return vector(list(model.parameters()))


def gradient_vector(model: nn.Module) -> Tensor:
    """Put all gradients into one vector of float64; a parameter without one counts as zeros."""
    return vector([torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()])


def gradient(loss: Tensor, model: nn.Module) -> Tensor:
    """Differentiate a loss by all parameters, into one vector; `.grad` is left alone."""
    parameters = list(model.parameters())
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    pairs = zip(found, parameters, strict=True)
    return vector([torch.zeros_like(p) if g is None else g for g, p in pairs])


@contextlib.contextmanager
def rows_seen(model: nn.Module) -> Iterator[list[int]]:
    """List how many rows each forward of a model is given: those that reach its first layer."""
    rows: list[int] = []
    first = next(module for module in model.modules() if not list(module.children()))

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = [value for value in [*args, *kwargs.values()] if isinstance(value, Tensor)]
        rows.extend(len(tensor) for tensor in tensors[:1])

    handle = first.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield rows
    finally:
        handle.remove()


@contextlib.contextmanager
def updates_seen(model: nn.Module, optimizer: Optimizer) -> Iterator[list[Tensor]]:
    """List the gradients, as one vector, of each call of an optimizer, a closure's too."""
    updates: list[Tensor] = []
    handle = optimizer.register_step_post_hook(lambda *_: updates.append(gradient_vector(model)))
    try:
        yield updates
    finally:
        handle.remove()


def make_optimizer(name: str, parameters: Iterable[Tensor], *, foreach: bool) -> Optimizer:
    """Build `sgd` (without momentum), `momentum` or `adamw`, as an exercise names them."""
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=1e-4, foreach=foreach)
    momentum = {"sgd": 0.0, "momentum": 0.9}[name]
    return torch.optim.SGD(parameters, lr=1e-4, momentum=momentum, foreach=foreach)


def training_step(loss: Callable[[], Tensor], optimizer: Optimizer) -> Callable[[], None]:
    """Make a step of training: zero, forward, backward, update."""

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def peak_above(
    call: Callable[[], Any], modules: nn.Module | Sequence[nn.Module], **others: Any
) -> tuple[int, int]:
    """Count the most bytes that a call held above what was there before, and those that it left."""
    model = modules if isinstance(modules, nn.Module) else nn.ModuleList(modules)
    with memory.watch(model=model, **others) as report:
        returned = call()
    del returned
    return report.peak_bytes - report.baseline_bytes, report.leaked_bytes


def error_said(call: Callable[[], Any], *kinds: str) -> str:
    """Run a call; return the name and text of the error that it raises, or an empty text.

    An error of a subclass of one of these kinds goes by the name of that kind.
    """
    try:
        call()
    except (NotImplementedError, CheckError):
        raise
    except Exception as error:
        names = [one.__name__ for one in type(error).__mro__]
        return f"{next((name for name in names if name in kinds), names[0])}: {error}"
    return ""


@contextlib.contextmanager
def pretended_gpu_states(first: int) -> Iterator[list[int]]:
    """Pretend the random state of a GPU that is not there: the last number of a list.

    `torch.cuda.get_rng_state` reads it, `torch.cuda.set_rng_state` appends, for any device; who
    draws appends the number after it.
    """
    states = [first]

    def read(device: Any = None) -> torch.Tensor:
        return torch.tensor([states[-1]], dtype=torch.uint8)

    def write(state: torch.Tensor, device: Any = None) -> None:
        states.append(int(state))

    with mock.patch.multiple(torch.cuda, get_rng_state=read, set_rng_state=write):
        yield states
