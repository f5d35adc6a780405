"""The second pass."""

import torch

from wrong_answers import right, wrong


def sizes_of(micro_batches):
    return [len(rows) for rows in micro_batches]


def with_slips(run=None, cut=None, number=lambda i, n: i):
    """The solution, with what runs a micro-batch, what cuts the gradients, and which moment."""
    run = run or forward_and_backward
    cut = cut or (lambda gradients, sizes: gradients.split(sizes))

    def push(tower, micro_batches, gradients, moments):
        parts = cut(gradients, sizes_of(micro_batches))
        for i, (rows, gradient) in enumerate(zip(micro_batches, parts, strict=True)):
            run(tower, rows, gradient, moments[number(i, len(moments))])

    return push


def forward_and_backward(tower, rows, gradient, moment):
    with moment():
        tower(rows).backward(gradient)


def backward_outside(tower, rows, gradient, moment):
    with moment():
        embeddings = tower(rows)
    embeddings.backward(gradient)


def of_a_sum(tower, rows, gradient, moment):
    with moment():
        tower(rows).sum().backward()


def clearing(tower, rows, gradient, moment):
    with moment():
        tower.zero_grad()
        tower(rows).backward(gradient)


def in_eval(tower, rows, gradient, moment):
    tower.eval()
    forward_and_backward(tower, rows, gradient, moment)
    tower.train()


def of_a_mean(tower, rows, gradient, moment):
    with moment():
        (tower(rows) * gradient).mean().backward()


def without_a_moment(tower, rows, gradient, moment):
    tower(rows).backward(gradient)


def twice(tower, rows, gradient, moment):
    with moment():
        tower(rows)
    forward_and_backward(tower, rows, gradient, moment)


goes_backward_outside = wrong("forward and backward of a micro-batch both belong inside")(
    with_slips(backward_outside)
)
ignores_the_gradients = wrong("the gradients were not used, as if each were 1")(
    with_slips(of_a_sum)
)
clears_in_the_loop = wrong("only the last micro-batch is in it")(with_slips(clearing))
evaluates = wrong("the tower was in eval mode")(with_slips(in_eval))
enters_no_moment = wrong("enter moments[i] around run i")(with_slips(without_a_moment))
enters_the_first_moment_always = wrong("in the first one's moment")(
    with_slips(number=lambda i, n: 0)
)
enters_them_backwards = wrong("entered from the last to the first")(
    with_slips(number=lambda i, n: n - 1 - i)
)
takes_a_mean = wrong("Each counts once: the mean was taken in the loss")(with_slips(of_a_mean))
runs_each_twice = wrong("run each once")(with_slips(twice))
turns_the_gradients_round = wrong("split them as the batch is")(
    with_slips(cut=lambda gradients, sizes: gradients.flip(0).split(sizes))
)


@wrong("times too small")
def divides_by_the_number(tower, micro_batches, gradients, moments):
    with_slips()(tower, micro_batches, gradients / len(micro_batches), moments)


@wrong("backward adds to it, so clear nothing")
def clears_before(tower, micro_batches, gradients, moments):
    tower.zero_grad()
    with_slips()(tower, micro_batches, gradients, moments)


@wrong("change no tensor and no list in place")
def clears_what_was_cached(tower, micro_batches, gradients, moments):
    with_slips()(tower, micro_batches, gradients, moments)
    gradients.zero_()


@wrong("leave each as it came")
def evaluates_from_then_on(tower, micro_batches, gradients, moments):
    with_slips()(tower, micro_batches, gradients, moments)
    tower.eval()


@wrong("rows at once, and the largest micro-batch")
def runs_all_at_once(tower, micro_batches, gradients, moments):
    with moments[0]():
        tower(torch.cat(list(micro_batches))).backward(gradients)


@wrong("the last micro-batch, smaller or not")
def drops_the_last(tower, micro_batches, gradients, moments):
    with_slips()(tower, micro_batches[:-1], gradients[: -len(micro_batches[-1])], moments)


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


in_order = right(with_slips())


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
