"""Discard and recompute, as an autograd.Function."""

from torch.autograd import Function
from torch.utils.checkpoint import CheckpointFunction

from solutions.answers import right, solved, wrong

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
    "do you pass on the gradient that arrives?",
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
KeepsTheGraphAlive = wrong(
    "so you kept forward's graph",
    "inputs = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]\n"
    "        with torch.enable_grad():\n"
    "            output = ctx.function(*inputs)\n"
    "        torch.autograd.backward(output",
    "inputs = ctx.inputs\n        torch.autograd.backward(ctx.output",
    "        ctx.save_for_backward(*tensors)\n        return function(*tensors)",
    "        ctx.inputs = [t.detach().requires_grad_(t.requires_grad) for t in tensors]\n"
    "        with torch.enable_grad():\n"
    "            ctx.output = function(*ctx.inputs)\n"
    "        return ctx.output.detach()",
)
GoesBackwardFromItsOwnOutput = wrong(
    "was called inside your backward",
    "        return function(*tensors)",
    "        with torch.enable_grad():\n"
    "            ctx.output = function(*tensors)\n"
    "        return ctx.output",
    "inputs = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]\n"
    "        with torch.enable_grad():\n"
    "            output = ctx.function(*inputs)\n"
    "        torch.autograd.backward(output",
    "inputs = ctx.saved_tensors\n        torch.autograd.backward(ctx.output",
)
RunsTwiceInForward = wrong(
    "but never in backward",
    "inputs = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]\n"
    "        with torch.enable_grad():\n"
    "            output = ctx.function(*inputs)\n"
    "        torch.autograd.backward(output",
    "inputs = ctx.inputs\n        torch.autograd.backward(ctx.output",
    "        ctx.save_for_backward(*tensors)\n",
    "        ctx.inputs = [t.detach().requires_grad_(t.requires_grad) for t in tensors]\n"
    "        with torch.enable_grad():\n"
    "            ctx.output = function(*ctx.inputs)\n",
)
KeepsAnOutputThatHasNoGraph = wrong(
    "grad_fn) before any block ran again",
    "return function(*tensors)",
    "ctx.output = function(*tensors)\n        return ctx.output.clone()",
    "inputs = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]\n"
    "        with torch.enable_grad():\n"
    "            output = ctx.function(*inputs)\n"
    "        torch.autograd.backward(output",
    "inputs = ctx.saved_tensors\n        torch.autograd.backward(ctx.output",
)


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

    backward = solved("lab03").Discard.backward
