"""Loss and gradients of a chunk."""

import torch
from torch.nn import functional as F

from solutions.answers import right, wrong

mean = wrong("it is the mean over the tokens instead of the sum", ").sum()", ").mean()")
forgets_the_minus = wrong("its sign is wrong", "-log_chances", "log_chances")
forgets_the_target = wrong(
    "subtract 1 at each token's target",
    "    slope[torch.arange(len(targets)), targets] -= 1\n",
    "",
)
turns_the_sign = wrong(
    "both have the wrong sign", "return loss, slope @", "slope.neg_()\n    return loss, slope @"
)
divides_the_gradients = wrong(
    "both are divided by the tokens",
    "return loss, slope @",
    "slope /= len(targets)\n    return loss, slope @",
)
adds_a_little = wrong(
    "or by adding a small number",
    "-log_chances.gather(1, targets[:, None]).sum()",
    "-(log_chances.gather(1, targets[:, None]).exp() + 1e-8).log().sum()",
)
overflows = wrong(
    "exp of a large number is infinite",
    "log_chances = (hidden @ weight.T).log_softmax(1)  # (tokens, vocab)",
    "logits = (hidden @ weight.T).exp()\n"
    "    log_chances = (logits / logits.sum(1, keepdim=True)).log()",
)
transposed = wrong("and it is shaped as weight", "slope.T @ hidden", "hidden.T @ slope")
two_values = wrong("a tuple of 2", "return loss, slope @ weight, slope.T @ hidden",
                   "return slope @ weight, slope.T @ hidden")  # fmt: skip
leaves_a_loss_for_each = wrong("the loss should be a scalar", ".gather(1, targets[:, None]).sum()",
                               ".gather(1, targets[:, None])")  # fmt: skip
columns_of_the_targets = wrong(
    "the gradient of hidden and of weight is wrong",
    "slope[torch.arange(len(targets)), targets] -= 1",
    "slope[:, targets] -= 1",
)
picks_logits = wrong(
    "it is the targets' logits",
    "    loss = -log_chances.gather(1, targets[:, None]).sum()\n",
    "    loss = -(hidden @ weight.T).gather(1, targets[:, None]).sum()\n",
)
halves_the_rows_it_was_given = wrong(
    "your call changed weights",
    "    log_chances = (hidden",
    "    hidden.div_(2)\n    log_chances = (hidden",
)


@wrong("may not have autograd compute them")
def with_autograd(hidden, targets, weight):
    with torch.enable_grad():
        leaves = [hidden.detach().requires_grad_(), weight.detach().requires_grad_()]
        loss = F.cross_entropy(leaves[0] @ leaves[1].T, targets, reduction="sum")
    return loss.detach(), *torch.autograd.grad(loss, leaves)


@right
def with_one_hot_and_logsumexp(hidden, targets, weight):
    logits = torch.einsum("td,wd->tw", hidden, weight)
    ends = logits.logsumexp(1, keepdim=True)
    hot = F.one_hot(targets, len(weight)).to(logits.dtype)
    slope = (logits - ends).exp() - hot
    loss = (ends.flatten() - (logits * hot).sum(1)).sum()
    return loss.item(), slope.mm(weight), torch.einsum("tw,td->wd", slope, hidden)


@right
def token_by_token(hidden, targets, weight):
    loss, of_rows, of_weight = 0.0, [], torch.zeros_like(weight)
    for row, target in zip(hidden, targets.tolist(), strict=True):
        chances = (weight @ row).log_softmax(0)
        loss -= chances[target]
        slope = chances.exp()
        slope[target] -= 1
        of_rows.append(weight.T @ slope)
        of_weight += torch.outer(slope, row)
    return loss, torch.stack(of_rows), of_weight
