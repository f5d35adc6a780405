"""The middle: from the loss to the embeddings."""

import math

import torch

from wrong_answers import right, wrong


def leaves_of(embeddings):
    return [rows.detach().requires_grad_() for rows in embeddings]


def finite(loss):
    if not torch.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss.item()}.")


@wrong("the loss's own parameter got no gradient")
def asks_for_the_embeddings_alone(loss_of, embeddings):
    leaves = leaves_of(embeddings)
    loss = loss_of(*leaves)
    finite(loss)
    return loss.item(), list(torch.autograd.grad(loss, leaves))


@wrong("keeps its whole graph")
def returns_a_tensor(loss_of, embeddings):
    leaves = leaves_of(embeddings)
    loss = loss_of(*leaves)
    finite(loss)
    loss.backward()
    return loss, [leaf.grad for leaf in leaves]


@wrong("all are there at the same backward")
def holds_the_others_fixed(loss_of, embeddings):
    gradients = []
    for number in range(len(embeddings)):
        leaves = [rows.detach() for rows in embeddings]
        leaves[number].requires_grad_()
        loss = loss_of(*leaves)
        finite(loss)
        loss.backward()
        gradients.append(leaves[number].grad)
    return loss.item(), gradients


@wrong("need a gradient now, or hold one")
def marks_what_it_was_given(loss_of, embeddings):
    for rows in embeddings:
        rows.requires_grad_()
    loss = loss_of(*embeddings)
    finite(loss)
    loss.backward()
    return loss.item(), [rows.grad for rows in embeddings]


@wrong("the gradient that the loss's parameter had before is gone")
def clears_first(loss_of, embeddings):
    loss_of.zero_grad()
    leaves = leaves_of(embeddings)
    loss = loss_of(*leaves)
    if not torch.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss.item()}.")
    loss.backward()
    return loss.item(), [leaf.grad for leaf in leaves]


@wrong("so the loss is not finite, and it went through")
def lets_anything_pass(loss_of, embeddings):
    leaves = leaves_of(embeddings)
    loss = loss_of(*leaves)
    loss.backward()
    return loss.item(), [leaf.grad for leaf in leaves]


@wrong("look at the loss before you go backward")
def looks_too_late(loss_of, embeddings):
    loss, gradients = lets_anything_pass(loss_of, embeddings)
    if not math.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss}.")
    return loss, gradients


@wrong("FloatingPointError: the loss is bad")
def says_little(loss_of, embeddings):
    leaves = leaves_of(embeddings)
    loss = loss_of(*leaves)
    if not torch.isfinite(loss):
        raise FloatingPointError("the loss is bad.")
    loss.backward()
    return loss.item(), [leaf.grad for leaf in leaves]


@wrong("where that of the whole batch is")
def returns_a_sum(loss_of, embeddings):
    loss, gradients = with_grad(loss_of, embeddings)
    return loss * len(embeddings[0]), gradients


@wrong("what holds on to the graph of the loss?")
def keeps_the_loss_somewhere(loss_of, embeddings):
    leaves = leaves_of(embeddings)
    loss = loss_of(*leaves)
    finite(loss)
    loss.backward(retain_graph=True)
    loss_of.latest = loss
    return loss.item(), [leaf.grad for leaf in leaves]


@wrong("no create_graph is needed")
def keeps_a_graph_of_the_gradients(loss_of, embeddings):
    leaves = leaves_of(embeddings)
    loss = loss_of(*leaves)
    finite(loss)
    gradients = torch.autograd.grad(loss, leaves, create_graph=True)
    loss.backward()
    return loss.item(), list(gradients)


@wrong("every embedding was finite, and the loss inf")
def looks_for_nan_alone(loss_of, embeddings):
    leaves = leaves_of(embeddings)
    loss = loss_of(*leaves)
    if torch.isnan(loss):
        raise FloatingPointError(f"the loss is {loss.item()}.")
    loss.backward()
    return loss.item(), [leaf.grad for leaf in leaves]


@wrong("clear nothing once backward has run")
def clears_afterwards(loss_of, embeddings):
    both = with_grad(loss_of, embeddings)
    loss_of.zero_grad()
    return both


@wrong("backward adds to it, and nothing else touches it")
def clips_the_scale(loss_of, embeddings):
    both = with_grad(loss_of, embeddings)
    torch.nn.utils.clip_grad_norm_(loss_of.parameters(), 1.0)
    return both


@wrong("in another order than their embeddings")
def turns_them_round(loss_of, embeddings):
    loss, gradients = with_grad(loss_of, embeddings)
    return loss, gradients[::-1]


@wrong("take them as they come, no factor")
def divides_by_the_rows(loss_of, embeddings):
    loss, gradients = with_grad(loss_of, embeddings)
    return loss, [gradient / len(gradient) for gradient in gradients]


@wrong("change no tensor and no list in place")
def normalises_what_it_was_given(loss_of, embeddings):
    for rows in embeddings:
        rows.div_(rows.norm(dim=1, keepdim=True))
    return with_grad(loss_of, embeddings)


@right
def as_a_list(loss_of, embeddings):
    return list(with_grad(loss_of, embeddings))


@right
def with_grad(loss_of, embeddings):
    leaves, own = leaves_of(embeddings), list(loss_of.parameters())
    loss = loss_of(*leaves)
    finite(loss)
    gradients = torch.autograd.grad(loss, [*leaves, *own])
    for parameter, gradient in zip(own, gradients[len(leaves) :], strict=True):
        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
    return loss.item(), list(gradients[: len(leaves)])


@right
def with_clones(loss_of, embeddings):
    copies = [rows.clone().requires_grad_(True) for rows in embeddings]
    loss = loss_of(*copies)
    value = float(loss.detach())
    if math.isnan(value) or math.isinf(value):
        raise FloatingPointError(f"got {value}")
    torch.autograd.backward([loss])
    return value, tuple(copy.grad for copy in copies)
