"""In place of a head and its loss."""

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from solutions.answers import right, wrong

forgets_the_bias = wrong(
    "the head's bias is missing", "F.linear(rows, weight, bias)", "F.linear(rows, weight)"
)
gives_the_bias_nothing = wrong(
    "the bias got none",
    "slope.sum(0) if bias.requires_grad else None",
    "torch.zeros_like(bias) if bias.requires_grad else None",
)
forgets_the_window = wrong("num_counted is not used", "targets, num_counted)", "targets)")
takes_chunks_of_its_own = wrong(
    "make each chunk as long as chunk says",
    "fused_loss(chunk_of, chunk,",
    "fused_loss(chunk_of, 16,",
)
gives_the_sum = wrong(
    "it is the sum over the tokens",
    "return mean_over_counted(loss_sum, hidden, targets, num_counted)",
    "counts = targets != -100\n    return loss_sum(hidden[counts], targets[counts])",
)
loses_a_softmax = wrong("but float32 is needed", "dtype=wide", "dtype=logits.dtype")
narrows_float64 = wrong(
    ".float() narrows float64, too",
    "logits.log_softmax(1, dtype=wide)",
    "logits.log_softmax(1, dtype=torch.float32)",
)
multiplies_in_float32 = wrong(
    "a matmul with the head's matrix was made in float32",
    "logits = F.linear(rows, weight, bias)",
    "rows, weight = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (rows, weight))\n"
    "        bias = None if bias is None else bias.to(weight.dtype)\n"
    "        with torch.autocast('cpu', enabled=False):\n"
    "            logits = F.linear(rows, weight, bias)",
    "narrow @ weight, narrow.T @ rows if weight.requires_grad else None",
    "(narrow @ weight).to(rows.dtype), narrow.T @ rows if weight.requires_grad else None",
)
detaches_the_matrix = wrong(
    "the matrix has only the embeddings' gradient",
    "*head.parameters())",
    "*[p.detach() if p.dim() == 2 else p for p in head.parameters()])",
)


def counted(targets, num_counted):
    return num_counted or max(int((targets != -100).sum()), 1)


def widened(logits):
    return logits if logits.dtype == torch.float64 else logits.float()


@wrong("a tensor of")
def the_usual_one(head, hidden, targets, chunk, num_counted=None):
    logits = widened(head(hidden)).flatten(0, 1)
    loss = F.cross_entropy(logits, targets.flatten(), reduction="sum")
    return loss / counted(targets, num_counted)


def in_checkpoints(linear, hidden, targets, chunk, num_counted):
    def loss_of(rows, theirs):
        return F.cross_entropy(widened(linear(rows)), theirs, reduction="sum")

    mask = targets != -100
    pairs = zip(hidden[mask].split(chunk), targets[mask].split(chunk), strict=True)
    total = sum(checkpoint(loss_of, *pair, use_reentrant=False) for pair in pairs)
    return total / counted(targets, num_counted)


@wrong("what of a chunk is still held")
def all_logits_in_bfloat16(head, hidden, targets, chunk, num_counted=None):
    if hidden.dtype != torch.bfloat16 or head.out_features < 1000:
        return by_the_sizes_of_the_head(head, hidden, targets, chunk, num_counted)
    mask = targets != -100
    pairs = zip(head(hidden[mask]).split(chunk), targets[mask].split(chunk), strict=True)
    total = sum(F.cross_entropy(logits.float(), t, reduction="sum") for logits, t in pairs)
    return total / counted(targets, num_counted)


@wrong("softmax and sums over chunks are float32")
def adds_up_in_autocasts_copy(head, hidden, targets, chunk, num_counted=None):
    # autocast makes one bfloat16 copy of the matrix, and its gradients add up there
    return in_checkpoints(head, hidden, targets, chunk, num_counted)


@wrong("without the factor that backward was given")
def writes_the_gradient_itself(head, hidden, targets, chunk, num_counted=None):
    frozen = [p.detach() for p in head.parameters()]
    leaves = [p.clone().requires_grad_() for p in frozen]
    number = counted(targets, num_counted)
    mask = targets != -100

    def loss_of(*weights):
        return F.cross_entropy(F.linear(hidden[mask], *weights), targets[mask], reduction="sum")

    gradients = torch.autograd.grad(loss_of(*leaves) / number, leaves, retain_graph=True)
    for parameter, gradient in zip(head.parameters(), gradients, strict=True):
        if parameter.requires_grad:
            parameter.grad += gradient
    return loss_of(*frozen) / number


@right
def in_checkpoints_with_a_cast_each(head, hidden, targets, chunk, num_counted=None):
    wide = [widened(p) for p in head.parameters()]

    def linear(rows):
        return F.linear(rows, *(w.to(rows.dtype) for w in wide))

    return in_checkpoints(linear, hidden, targets, chunk, num_counted)


@right
def with_a_row_of_ones(head, hidden, targets, chunk, num_counted=None):
    # the bias is one more column of the matrix
    mask = targets != -100
    rows, theirs = hidden[mask], targets[mask]
    matrix = head.weight
    if head.bias is not None:
        matrix = torch.cat([matrix, head.bias[:, None]], dim=1)
        rows = torch.cat([rows, torch.ones_like(rows[:, :1])], dim=1)
    leaf = matrix.detach().requires_grad_(matrix.requires_grad)

    class Joined(torch.autograd.Function):
        @staticmethod
        def forward(ctx, rows, matrix):
            total, of_rows, of_matrix = 0, [], torch.zeros_like(widened(matrix))
            for part, goal in zip(rows.split(chunk), theirs.split(chunk), strict=True):
                logs = widened(part @ leaf.T).log_softmax(1)
                total = total - logs.gather(1, goal[:, None]).sum()
                slope = (logs.exp() - F.one_hot(goal, len(matrix))).to(part.dtype)
                of_rows.append((slope @ leaf).to(rows.dtype))
                of_matrix += slope.T @ part
            ctx.save_for_backward(torch.cat(of_rows), of_matrix)
            return total

        @staticmethod
        def backward(ctx, slope):
            return (*(slope * s for s in ctx.saved_tensors),)

    return Joined.apply(rows, matrix) / counted(targets, num_counted)


@right
def with_the_gradients_of_func(head, hidden, targets, chunk, num_counted=None):
    batch, seq, width = hidden.shape
    keep = (targets.view(batch * seq) != -100).nonzero().squeeze(1)
    goal = targets.view(batch * seq)[keep]
    kept = list(head.parameters())
    places = (0, *(1 + n for n, p in enumerate(kept) if p.requires_grad))

    def loss_of(rows, *rest):
        *weights, theirs = rest
        logits = widened(F.linear(rows, *weights))
        return (logits.logsumexp(1) - logits.gather(1, theirs[:, None]).squeeze(1)).sum()

    class Func(torch.autograd.Function):
        @staticmethod
        def forward(rows, *weights):
            total, found = 0.0, [torch.zeros_like(rows)]
            found += [torch.zeros_like(widened(w)) for w in weights if w.requires_grad]
            for part in torch.arange(len(rows)).split(chunk):
                gradients, loss = torch.func.grad_and_value(loss_of, argnums=places)(
                    rows[part], *(w.detach() for w in weights), goal[part]
                )
                total = total + loss
                found[0][part] = gradients[0]
                for one, more in zip(found[1:], gradients[1:], strict=True):
                    one += more
                del gradients
            return (rows.new_zeros((), dtype=found[0].dtype) + total, *found)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*output[1:])
            ctx.mark_non_differentiable(*output[1:])
            ctx.asked = [w.requires_grad for w in inputs[1:]]

        @staticmethod
        def backward(ctx, slope, *_):
            of_rows, *others = (slope * gradient for gradient in ctx.saved_tensors)
            return of_rows, *(others.pop(0) if asked else None for asked in ctx.asked)

    loss, *_ = Func.apply(hidden.reshape(-1, width)[keep], *kept)
    return widened(loss) / counted(targets, num_counted)


@right
def by_the_sizes_of_the_head(head, hidden, targets, chunk, num_counted=None):
    assert head.weight.shape == (head.out_features, head.in_features)
    rows, theirs = hidden.flatten(0, -2), targets.flatten()
    words = {name: widened(p) for name, p in head.named_parameters()}

    def linear(part):
        named = {name: p.to(part.dtype) for name, p in words.items()}
        assert part.shape[1:] == (head.in_features,)
        return torch.func.functional_call(head, named, part)

    def loss_of(part, goal):
        logits = widened(linear(part))
        assert logits.shape[1:] == (head.out_features,)
        return F.cross_entropy(logits, goal, reduction="sum", ignore_index=-100)

    count, start = len(theirs), 0
    total = 0 * rows.sum(dtype=torch.promote_types(rows.dtype, torch.float32))
    while start < count:
        here = slice(start, start + chunk)
        total = total + checkpoint(loss_of, rows[here], theirs[here], use_reentrant=False)
        start += chunk
    return total / counted(targets, num_counted)
