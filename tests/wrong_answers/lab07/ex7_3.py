"""The middle: from the loss to the embeddings."""

import math

import torch

from wrong_answers import right, wrong

asks_for_the_embeddings_alone = wrong(
    "the loss's own parameter got no gradient",
    "    loss.backward()\n",
    "",
    "[leaf.grad for leaf in leaves]",
    "list(torch.autograd.grad(loss, leaves))",
)
returns_a_tensor = wrong("keeps its whole graph", "return loss.item()", "return loss")
marks_what_it_was_given = wrong("need a gradient now, or hold one", ".detach()", "")
clears_first = wrong(
    "the gradient that the loss's parameter had before is gone",
    "    leaves",
    "    loss_of.zero_grad()\n    leaves",
)
lets_anything_pass = wrong(
    "so the loss is not finite, and it went through", "not torch.isfinite(loss)", "False"
)
looks_too_late = wrong(
    "look at the loss before you go backward",
    "    loss.backward()\n",
    "",
    "    if not",
    "    loss.backward()\n    if not",
)
says_little = wrong(
    "FloatingPointError: the loss is bad",
    'f"the loss is {loss.item()}: look at the embeddings."',
    '"the loss is bad."',
)
returns_a_sum = wrong(
    "where that of the whole batch is",
    "return loss.item()",
    "return loss.item() * len(embeddings[0])",
)
keeps_the_loss_somewhere = wrong(
    "what holds on to the graph of the loss?",
    "loss.backward()",
    "loss.backward(retain_graph=True)\n    loss_of.latest = loss",
)
looks_for_nan_alone = wrong(
    "every embedding was finite, and the loss inf", "not torch.isfinite(", "torch.isnan("
)
clears_afterwards = wrong(
    "clear nothing once backward has run",
    "    return loss",
    "    loss_of.zero_grad()\n    return loss",
)
clips_the_scale = wrong(
    "backward adds to it, and nothing else touches it",
    "    return loss",
    "    torch.nn.utils.clip_grad_norm_(loss_of.parameters(), 1.0)\n    return loss",
)
turns_them_round = wrong("in another order than their embeddings", "in leaves]", "in leaves[::-1]]")
divides_by_the_rows = wrong(
    "take them as they come, no factor", "[leaf.grad", "[leaf.grad / len(leaf)"
)
normalises_what_it_was_given = wrong(
    "change no tensor and no list in place",
    "    leaves",
    "    for rows in embeddings:\n        rows.div_(rows.norm(dim=1, keepdim=True))\n    leaves",
)
as_a_list = right(
    "loss.item(), [leaf.grad for leaf in leaves]", "[loss.item(), [leaf.grad for leaf in leaves]]"
)


def leaves_of(embeddings):
    return [rows.detach().requires_grad_() for rows in embeddings]


def finite(loss):
    if not torch.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss.item()}.")


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


@wrong("no create_graph is needed")
def keeps_a_graph_of_the_gradients(loss_of, embeddings):
    leaves = leaves_of(embeddings)
    loss = loss_of(*leaves)
    finite(loss)
    gradients = torch.autograd.grad(loss, leaves, create_graph=True)
    loss.backward()
    return loss.item(), list(gradients)


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
