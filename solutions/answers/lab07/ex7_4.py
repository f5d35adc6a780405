"""The second pass."""

import torch

from solutions.answers import right, wrong

goes_backward_outside = wrong(
    "run a micro-batch's forward and backward inside",
    "            tower(rows)",
    "            embeddings = tower(rows)\n        embeddings",
)
ignores_the_gradients = wrong(
    "you didn't use the gradients",
    "tower(rows).backward(gradient)",
    "tower(rows).sum().backward()",
)
clears_in_the_loop = wrong(
    "only the last micro-batch is in .grad",
    "            tower",
    "            tower.zero_grad()\n            tower",
)
evaluates = wrong(
    "the tower was in eval mode",
    "tower(rows).backward(gradient)",
    "tower.eval()(rows).backward(gradient)\n            tower.train()",
)
enters_no_moment = wrong("enter moments[i] around run i", "with moment()", "if moment")
enters_the_first_moment_always = wrong(
    "in the first one's moment", "with moment()", "with moments[0]()"
)
enters_them_backwards = wrong(
    "you entered the moments from the last", "of_each, moments", "of_each, moments[::-1]"
)
takes_a_mean = wrong(
    "Each counts once: the loss has taken the mean",
    "tower(rows).backward(gradient)",
    "(tower(rows) * gradient).mean().backward()",
)
runs_each_twice = wrong(
    "run each once", "        with", "        with moment():\n            tower(rows)\n        with"
)
turns_the_gradients_round = wrong(
    "split them like the batch", "gradients.split", "gradients.flip(0).split"
)
divides_by_the_number = wrong("times too small", "(gradient)", "(gradient / len(micro_batches))")
clears_before = wrong(
    "backward adds to it, so clear nothing", "    of_each", "    tower.zero_grad()\n    of_each"
)
clears_what_was_cached = wrong(
    "change no tensor or list in place",
    "(gradient)",
    "(gradient)\n            gradient.zero_()",
)
evaluates_from_then_on = wrong(
    "leave each module as it was", "(gradient)", "(gradient)\n    tower.eval()"
)
drops_the_last = wrong(
    "the last micro-batch, smaller or not",
    "zip(micro_batches, of_each, moments, strict=True)",
    "zip(micro_batches[:-1], of_each, moments, strict=False)",
)
with_the_function_of_autograd = right(
    "tower(rows).backward(gradient)", "torch.autograd.backward(tower(rows), gradient)"
)


def sizes_of(micro_batches):
    return [len(rows) for rows in micro_batches]


@wrong("rows at once, but the largest micro-batch")
def runs_all_at_once(tower, micro_batches, gradients, moments):
    with moments[0]():
        tower(torch.cat(list(micro_batches))).backward(gradients)


@wrong("go backward from each before the next goes forward")
def keeps_every_graph(tower, micro_batches, gradients, moments):
    total, held = 0, tower.drift
    parts = gradients.split(sizes_of(micro_batches))
    for rows, gradient, moment in zip(micro_batches, parts, moments, strict=True):
        with moment():
            tower.drift = held.clone()  # so that leaving the moment spoils nothing
            total = total + (tower(rows) * gradient).sum()
            tower.drift = held
    total.backward()


@right
def from_the_last_to_the_first(tower, micro_batches, gradients, moments):
    parts = gradients.split(sizes_of(micro_batches))
    for rows, gradient, moment in reversed(list(zip(micro_batches, parts, moments, strict=True))):
        with moment():
            (tower(rows) * gradient).sum().backward()


@right
def with_autograd_grad(tower, micro_batches, gradients, moments):
    parameters, first = list(tower.parameters()), 0
    for rows, moment in zip(micro_batches, moments, strict=True):
        with moment(), torch.enable_grad():
            part = gradients[first : first + len(rows)]
            new = torch.autograd.grad(tower(rows), parameters, part)
        for parameter, gradient in zip(parameters, new, strict=True):
            if parameter.grad is None:
                parameter.grad = gradient
            else:
                parameter.grad += gradient
        first += len(rows)
