"""Discard and recompute, as an autograd.Function."""

import torch
from torch.autograd import Function
from torch.utils.checkpoint import CheckpointFunction

from wrong_answers import right, wrong


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


@wrong("no gradient came back to the input")
class DetachedInputsNeedNoGradient(Saving):
    @staticmethod
    def backward(ctx, grad_output):
        inputs = [t.detach() for t in ctx.saved_tensors]
        with torch.enable_grad():
            output = ctx.function(*inputs)
        torch.autograd.backward(output, grad_output)
        return None, *(t.grad for t in inputs)


@wrong("Recompute from detached inputs")
class RecomputesFromTheSavedInputs(Saving):
    @staticmethod
    def backward(ctx, grad_output):
        inputs = ctx.saved_tensors
        with torch.enable_grad():
            output = ctx.function(*inputs)
        torch.autograd.backward(output, grad_output)
        return None, *(t.grad for t in inputs)


@wrong("parameters got no gradient")
class AsksForTheInputsAlone(Saving):
    @staticmethod
    def backward(ctx, grad_output):
        inputs = detached(ctx.saved_tensors)
        with torch.enable_grad():
            output = ctx.function(*inputs)
        first, *rest = inputs
        (grad,) = torch.autograd.grad(output, first, grad_output)
        return None, grad, *(None for _ in rest)


@wrong("is the gradient that arrives passed on?")
class DropsTheGradientThatArrives(Saving):
    @staticmethod
    def backward(ctx, grad_output):
        inputs = detached(ctx.saved_tensors)
        with torch.enable_grad():
            ctx.function(*inputs).sum().backward()
        return None, *(t.grad for t in inputs)


@wrong("it ran with gradients off")
class RecomputesWithGradientsOff(Saving):
    @staticmethod
    def backward(ctx, grad_output):
        inputs = detached(ctx.saved_tensors)
        output = ctx.function(*inputs)
        torch.autograd.backward(output, grad_output)
        return None, *(t.grad for t in inputs)


@wrong("only Tensors of floating point")
class LetsEveryInputNeedAGradient(Saving):
    @staticmethod
    def backward(ctx, grad_output):
        inputs = [t.detach().requires_grad_() for t in ctx.saved_tensors]
        with torch.enable_grad():
            output = ctx.function(*inputs)
        torch.autograd.backward(output, grad_output)
        return None, *(t.grad for t in inputs)


@wrong("autograd saved nothing for a block")
class SetsTheInputsOnCtx(Function):
    @staticmethod
    def forward(ctx, function, *tensors):
        ctx.function, ctx.tensors = function, tensors
        return function(*tensors)

    @staticmethod
    def backward(ctx, grad_output):
        inputs = detached(ctx.tensors)
        with torch.enable_grad():
            output = ctx.function(*inputs)
        torch.autograd.backward(output, grad_output)
        return None, *(t.grad for t in inputs)


@wrong("autograd saved 2.0 times the input")
class SavesTheOutputToo(Recomputing):
    @staticmethod
    def forward(ctx, function, *tensors):
        ctx.function = function
        output = function(*tensors)
        ctx.save_for_backward(*tensors, output)
        return output

    @staticmethod
    def backward(ctx, grad_output):
        *tensors, _ = ctx.saved_tensors
        inputs = detached(tensors)
        with torch.enable_grad():
            output = ctx.function(*inputs)
        torch.autograd.backward(output, grad_output)
        return None, *(t.grad for t in inputs)


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


@right
class AsksForEverythingAtOnce(Saving):
    @staticmethod
    def backward(ctx, grad_output):
        inputs = detached(ctx.saved_tensors)
        with torch.enable_grad():
            output = ctx.function(*inputs)
        output.backward(grad_output)
        found = [t.grad if t.requires_grad else None for t in inputs]
        return (None, *found)
