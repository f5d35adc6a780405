"""In place of a head and its loss."""

import torch
from torch.nn import functional as F

from wrong_answers import right, solved, wrong

LAB = solved("lab10")

forgets_the_bias = wrong("is 0.", "F.linear(rows, weight, bias)", "F.linear(rows, weight)")
gives_the_bias_nothing = wrong(
    "the bias got none", "slope.sum(0) if bias.requires_grad else None", "None"
)
forgets_the_window = wrong("num_counted is not used", "targets, num_counted)", "targets)")
gives_the_sum = wrong(
    "it is the sum over the tokens",
    "return mean_over_counted(loss_sum, hidden, targets, num_counted)",
    "counts = targets != -100\n    return loss_sum(hidden[counts], targets[counts])",
)
loses_a_softmax = wrong("logits may be bfloat16", "dtype=wide", "dtype=logits.dtype")
makes_float64_of_everything_float32 = wrong("of all entries", "dtype=wide", "dtype=torch.float32")
detaches_the_matrix = wrong(
    "the matrix has the embeddings' gradient alone",
    "*head.parameters())",
    "*[p.detach() if p.dim() == 2 else p for p in head.parameters()])",
)


@wrong("a tensor of")
def the_usual_one(head, hidden, targets, piece, num_counted=None):
    loss = F.cross_entropy(head(hidden).flatten(0, 1).float(), targets.flatten(), reduction="sum")
    return loss / (num_counted or (targets != -100).sum())


@right
def checkpointed(head, hidden, targets, piece, num_counted=None):
    def loss_of(rows, theirs):
        return F.cross_entropy(head(rows).to(torch.float32 if rows.dtype != torch.float64 else
                               rows.dtype), theirs, reduction="sum")  # fmt: skip

    def loss_sum(rows, theirs):
        pairs = zip(rows.split(piece), theirs.split(piece), strict=True)
        return sum(LAB.checkpoint(loss_of, *pair, use_reentrant=False) for pair in pairs)

    return LAB.mean_over_counted(loss_sum, hidden, targets, num_counted)
