"""The loss in checkpointed chunks."""

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from solutions.answers import right, solved, wrong

usual_loss = solved("lab10").usual_loss


keeps_the_logits_of_all_chunks = wrong(
    "what of a chunk is still held",
    "checkpoint(\n            usual_loss, rows, theirs, weight, use_reentrant=False\n        )",
    "usual_loss(rows, theirs, weight)",
)
takes_chunks_of_its_own = wrong(
    "make each chunk as long as chunk says",
    "hidden.split(chunk), targets.split(chunk)",
    "hidden.split(16), targets.split(16)",
)
keeps_the_last_alone = wrong("it is only the last chunk's", "total = total + ", "total = ")
takes_means = wrong(
    "it is the mean of the chunks' means",
    "checkpoint(\n            usual_loss, rows, theirs, weight, use_reentrant=False\n        )",
    "checkpoint(\n"
    "            usual_loss, rows, theirs, weight, use_reentrant=False\n"
    "        ) / len(theirs) / -(-len(hidden) // chunk)",
)
adds_means = wrong(
    "the means of the chunks are added up",
    "checkpoint(\n            usual_loss, rows, theirs, weight, use_reentrant=False\n        )",
    "checkpoint(\n"
    "            usual_loss, rows, theirs, weight, use_reentrant=False\n"
    "        ) / len(theirs)",
)
divides_by_the_tokens = wrong(
    "it is the mean over the tokens", "return total", "return total / len(targets)"
)
detaches_the_rows = wrong("hidden got none", "hidden.split", "hidden.detach().split")
detaches_the_matrix = wrong("the matrix got none", "theirs, weight", "theirs, weight.detach()")
gives_a_number = wrong("but float came", "return total", "return total.item()")
drops_the_rest = wrong(
    "the last chunk, smaller than the others, is missing",
    "        total = total",
    "        if len(rows) < chunk < len(hidden):\n            continue\n        total = total",
)


@wrong("the matrix would learn nothing, without an error")
def hides_the_matrix_from_a_reentrant_checkpoint(hidden, targets, weight, chunk):
    return sum(
        checkpoint(lambda h, t: usual_loss(h, t, weight), *pair, use_reentrant=True)
        for pair in zip(hidden.split(chunk), targets.split(chunk), strict=True)
    )


@wrong(".grad was written before backward began")
def goes_backward_at_once(hidden, targets, weight, chunk):
    total = 0.0
    for pair in zip(hidden.split(chunk), targets.split(chunk), strict=True):
        loss = usual_loss(*pair, weight)
        loss.backward()
        total += loss.detach()
    return total.requires_grad_()


@wrong("a tensor of")
def makes_all_logits_before_the_chunks(hidden, targets, weight, chunk):
    logits = (hidden @ weight.T).split(chunk)
    pairs = zip(logits, targets.split(chunk), strict=True)
    parts = [checkpoint(lambda x, y: F.cross_entropy(x, y, reduction="sum"), *pair,
                        use_reentrant=False) for pair in pairs]  # fmt: skip
    return torch.stack(parts).sum()


@right
def reentrant(hidden, targets, weight, chunk):
    starts = range(0, len(hidden), chunk)
    parts = [slice(start, start + chunk) for start in starts]
    return sum(
        checkpoint(usual_loss, hidden[p], targets[p], weight, use_reentrant=True) for p in parts
    )


class Recomputed(torch.autograd.Function):
    """Keep the logarithms of the sums alone, as Wijmans et al. (2024) do."""

    @staticmethod
    def forward(ctx, hidden, targets, weight, chunk):
        ends = torch.cat([(rows @ weight.T).logsumexp(1) for rows in hidden.split(chunk)])
        ctx.save_for_backward(hidden, targets, weight, ends)
        ctx.chunk = chunk
        return (ends - (hidden * weight[targets]).sum(1)).sum()

    @staticmethod
    def backward(ctx, gradient):
        of_rows, of_weight = [], 0
        for rows, theirs, ends in zip(
            *[x.split(ctx.chunk) for n, x in enumerate(ctx.saved_tensors) if n != 2], strict=True
        ):
            slope = (rows @ ctx.saved_tensors[2].T - ends[:, None]).exp_().mul_(gradient)
            slope[torch.arange(len(rows)), theirs] -= gradient
            of_rows.append(slope @ ctx.saved_tensors[2])
            of_weight = of_weight + slope.T @ rows
        return torch.cat(of_rows), None, of_weight, None


@right
def by_hand(hidden, targets, weight, chunk):
    return Recomputed.apply(hidden, targets, weight, chunk)


@right
def chunks_of_the_vocabulary(hidden, targets, weight, chunk):
    size = max(1, len(weight) * chunk // len(hidden))
    ends = hidden.new_full((len(hidden),), -torch.inf)
    for words in weight.split(size):
        ends = checkpoint(
            lambda ends, h, w: torch.logaddexp(ends, (h @ w.T).logsumexp(1)),
            ends, hidden, words, use_reentrant=False,
        )  # fmt: skip
    return (ends - (hidden * weight[targets]).sum(1)).sum()


@right
def recursive_halves(hidden, targets, weight, chunk):
    if len(hidden) <= chunk:
        return checkpoint(usual_loss, hidden, targets, weight, use_reentrant=False)
    half = len(hidden) // 2
    first = recursive_halves(hidden[:half], targets[:half], weight, chunk)
    return first + recursive_halves(hidden[half:], targets[half:], weight, chunk)
