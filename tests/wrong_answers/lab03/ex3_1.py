"""Discard and recompute, as an autograd.Function."""

import torch
from torch.autograd import Function
from torch.utils.checkpoint import CheckpointFunction

from wrong_answers import right, wrong

DetachedInputsNeedNoGradient = wrong(
    "no gradient came back to the input", ".requires_grad_(t.requires_grad)", ""
)
RecomputesFromTheSavedInputs = wrong(
    "Recompute from detached inputs",
    "[t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]",
    "ctx.saved_tensors",
)
AsksForTheInputsAlone = wrong(
    "parameters got no gradient",
    "torch.autograd.backward(output, grad_output)",
    "(grad,) = torch.autograd.grad(output, inputs[0], grad_output)",
    "*(tensor.grad for tensor in inputs)",
    "grad, *(None for _ in inputs[1:])",
)
DropsTheGradientThatArrives = wrong(
    "is the gradient that arrives passed on?",
    "            output = ctx.function(*inputs)\n"
    "        torch.autograd.backward(output, grad_output)",
    "            ctx.function(*inputs).sum().backward()",
)
RecomputesWithGradientsOff = wrong(
    "it ran with gradients off", "        with torch.enable_grad():\n    ", ""
)
LetsEveryInputNeedAGradient = wrong(
    "only Tensors of floating point", "requires_grad_(t.requires_grad)", "requires_grad_()"
)
SetsTheInputsOnCtx = wrong(
    "autograd saved nothing for a block",
    "ctx.save_for_backward(*tensors)",
    "ctx.tensors = tensors",
    "ctx.saved_tensors",
    "ctx.tensors",
)
SavesTheOutputToo = wrong(
    "autograd saved 2.0 times the input",
    "        ctx.save_for_backward(*tensors)\n",
    "",
    "return function(*tensors)",
    "output = function(*tensors)\n"
    "        ctx.save_for_backward(*tensors, output)\n"
    "        return output",
    "ctx.saved_tensors",
    "ctx.saved_tensors[:-1]",
)
AsksForEverythingAtOnce = right(
    "torch.autograd.backward(output, grad_output)",
    "output.backward(grad_output)",
    "tensor.grad for tensor in inputs",
    "t.grad if t.requires_grad else None for t in inputs",
)


def detached(tensors):
    return [t.detach().requires_grad_(t.requires_grad) for t in tensors]


class Saving(Function):
    """The right forward; answers differ in backward."""

    @staticmethod
    def forward(ctx, function, *tensors):
        ctx.function = function
        ctx.save_for_backward(*tensors)
        return function(*tensors)


class Recomputing(Function):
    """The right backward; answers differ in forward."""

    @staticmethod
    def backward(ctx, grad_output):
        inputs = detached(ctx.saved_tensors)
        with torch.enable_grad():
            output = ctx.function(*inputs)
        torch.autograd.backward(output, grad_output)
        return None, *(t.grad for t in inputs)


@wrong("so the graph of the forward was kept")
class KeepsTheGraphAlive(Function):
    @staticmethod
    def forward(ctx, function, *tensors):
        ctx.inputs = detached(tensors)
        with torch.enable_grad():
            ctx.output = function(*ctx.inputs)
        return ctx.output.detach()

    @staticmethod
    def backward(ctx, grad_output):
        torch.autograd.backward(ctx.output, grad_output)
        return None, *(t.grad for t in ctx.inputs)


@wrong("was called inside your backward")
class GoesBackwardFromItsOwnOutput(Saving):
    @staticmethod
    def forward(ctx, function, *tensors):
        ctx.save_for_backward(*tensors)
        with torch.enable_grad():
            ctx.output = function(*tensors)
        return ctx.output

    @staticmethod
    def backward(ctx, grad_output):
        torch.autograd.backward(ctx.output, grad_output)
        return None, *(t.grad for t in ctx.saved_tensors)


@wrong("and never in backward")
class RunsTwiceInForward(Function):
    @staticmethod
    def forward(ctx, function, *tensors):
        ctx.inputs = detached(tensors)
        with torch.enable_grad():
            ctx.output = function(*ctx.inputs)
        return function(*tensors)

    backward = KeepsTheGraphAlive.backward


@wrong("grad_fn) before any block ran again")
class KeepsAnOutputThatHasNoGraph(Saving):
    @staticmethod
    def forward(ctx, function, *tensors):
        ctx.save_for_backward(*tensors)
        ctx.output = function(*tensors)
        return ctx.output.clone()

    @staticmethod
    def backward(ctx, grad_output):
        torch.autograd.backward(ctx.output, grad_output)
        return None, *(t.grad for t in ctx.saved_tensors)


@wrong("torch.utils.checkpoint is what you are writing")
class HandsItOn:
    @staticmethod
    def apply(function, *tensors):
        return CheckpointFunction.apply(function, True, *tensors)


@wrong("Discard has no apply")
def is_a_plain_function(function, *tensors):
    return function(*tensors)


@right
class SavesInSetupContext(Function):
    @staticmethod
    def forward(function, *tensors):
        return function(*tensors)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.function, *tensors = inputs
        ctx.save_for_backward(*tensors)

    backward = Recomputing.backward
