"""The middle: from the loss to the embeddings."""

import math

import torch

from solutions.answers import right, wrong

asks_for_the_embeddings_alone = wrong(
    "the loss's own parameter got no gradient",
    "    loss.backward()\n",
    "",
    "[leaf.grad for leaf in leaves]",
    "list(torch.autograd.grad(loss, leaves))",
)
returns_a_tensor = wrong("keeps its whole graph", "return loss.item()", "return loss")
marks_what_it_was_given = wrong("require a gradient, or hold one", ".detach()", "")
clears_first = wrong(
    "the gradient that the loss's parameter had before is gone",
    "    leaves",
    "    loss_of.zero_grad()\n    leaves",
)
lets_anything_pass = wrong(
    "so the loss is not finite, but it went through", "not torch.isfinite(loss)", "False"
)
looks_too_late = wrong(
    "check the loss before you go backward",
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
says_the_same_of_both = wrong(
    "and the error is the same where it is inf",
    'f"the loss is {loss.item()}: look at the embeddings."',
    '"the loss is nan or infinite."',
)
names_both_and_the_loss = right("is {", "is nan or inf: {")
speaks_of_the_other_too = right("look at", "stop before a NaN is in the weights, and no inf in")
returns_a_sum = wrong(
    "but you returned",
    "return loss.item()",
    "return loss.item() * len(embeddings[0])",
)
keeps_the_loss_somewhere = wrong(
    "what still holds the loss's graph?",
    "loss.backward()",
    "loss.backward(retain_graph=True)\n    loss_of.latest = loss",
)
looks_for_nan_alone = wrong(
    "every embedding was finite, but the loss was inf", "not torch.isfinite(", "torch.isnan("
)
clears_afterwards = wrong(
    "clear nothing after backward",
    "    return loss",
    "    loss_of.zero_grad()\n    return loss",
)
clips_the_scale = wrong(
    "backward adds to it, and nothing else touches it",
    "    return loss",
    "    torch.nn.utils.clip_grad_norm_(loss_of.parameters(), 1.0)\n    return loss",
)
turns_them_round = wrong("in a different order than their", "in leaves]", "in leaves[::-1]]")
divides_by_the_rows = wrong("return them with no factor", "[leaf.grad", "[leaf.grad / len(leaf)")
normalises_what_it_was_given = wrong(
    "change no tensor or list in place",
    "    leaves",
    "    for rows in embeddings:\n        rows.div_(rows.norm(dim=1, keepdim=True))\n    leaves",
)
as_a_list = right(
    "loss.item(), [leaf.grad for leaf in leaves]", "[loss.item(), [leaf.grad for leaf in leaves]]"
)
holds_the_others_fixed = wrong(
    "all are there at the same backward",
    "loss.backward()",
    "for leaf in leaves:\n"
    "        others = [rows if rows is leaf else rows.detach() for rows in leaves]\n"
    "        loss_of(*others).backward()",
)
keeps_a_graph_of_the_gradients = wrong(
    "no create_graph is needed",
    "    loss.backward()",
    "    gradients = torch.autograd.grad(loss, leaves, create_graph=True)\n    loss.backward()",
    "[leaf.grad for leaf in leaves]",
    "list(gradients)",
)
with_grad = right(
    "    loss.backward()\n",
    "    own = list(loss_of.parameters())\n"
    "    gradients = torch.autograd.grad(loss, [*leaves, *own])\n"
    "    for parameter, gradient in zip(own, gradients[len(leaves) :], strict=True):\n"
    "        parameter.grad = gradient + (0 if parameter.grad is None else parameter.grad)\n",
    "[leaf.grad for leaf in leaves]",
    "list(gradients[: len(leaves)])",
)


@right
def with_clones(loss_of, embeddings):
    copies = [rows.clone().requires_grad_(True) for rows in embeddings]
    loss = loss_of(*copies)
    value = float(loss.detach())
    if math.isnan(value) or math.isinf(value):
        raise FloatingPointError(f"got {value}")
    torch.autograd.backward([loss])
    return value, tuple(copy.grad for copy in copies)
