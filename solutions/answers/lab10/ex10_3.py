"""Gradients that forward makes."""

import torch

from solutions.answers import right, wrong

trusts_once_differentiable = wrong(
    "that part of the loss is lost without an error",
    "        @staticmethod\n        def backward",
    "        @staticmethod\n        @torch.autograd.function.once_differentiable\n"
    "        def backward",
)
says_little = wrong(
    "but it should be a RuntimeError that names",
    '"this loss has first gradients alone, and create_graph asks for a "\n'
    '                    "second one: take checkpointed_loss."',
    '"not twice."',
)
leaves_out_what_arrives = wrong("backward leaves out the gradient that arrives", "slope * s", "s")
keeps_the_last_sum = wrong(
    "the weights have only the last chunk's gradients", "total += gradient", "total.copy_(gradient)"
)
gives_the_weights_none = wrong(
    "the weights got none",
    "(None if s is None else slope * s for s in ctx.saved_tensors)",
    "(slope * s if i == 0 else None for i, s in enumerate(ctx.saved_tensors))",
)
gives_hidden_none = wrong(
    "hidden got none",
    "(None if s is None else slope * s for s in ctx.saved_tensors)",
    "(slope * s if i and s is not None else None for i, s in enumerate(ctx.saved_tensors))",
)
multiplies_in_place = wrong(
    "the sums were multiplied in place",
    "ctx.save_for_backward(of_rows, *sums)",
    "ctx.sums = of_rows, *sums",
    "slope * s for s in ctx.saved_tensors",
    "s.mul_(slope) for s in ctx.sums",
)
stumbles_over_none = wrong(
    "unsupported operand",
    "                    if total is not None:\n                        total += gradient\n",
    "                    total += gradient\n",
)
takes_it_whole = wrong("chunk_of was given", "x.split(chunk)", "[x]")
divides_by_the_tokens = wrong(
    "it is the mean over the tokens",
    "ctx.save_for_backward(of_rows, *sums)\n",
    "ctx.save_for_backward(of_rows, *sums)\n            loss = loss / len(hidden)\n",
)
divides_by_the_chunks = wrong(
    "it is divided by the number of chunks",
    "ctx.save_for_backward(of_rows, *sums)\n",
    "ctx.save_for_backward(of_rows, *sums)\n            loss = loss / -(-len(hidden) // chunk)\n",
)
begins_with_the_weights = wrong(
    "let chunk_of return numbers that you know",
    "torch.zeros_like(w, dtype=kind)",
    "w.detach().to(kind, copy=True)",
)
keeps_the_last_loss = wrong(
    "it is only the last chunk's",
    "sum(add(*part) for part in parts)",
    "[add(*part) for part in parts][-1]",
)


@wrong("in backward: the gradients of a chunk are made with its loss")
def recomputes(chunk_of, chunk, hidden, targets, *weights):
    class Late(torch.autograd.Function):
        @staticmethod
        def forward(ctx, hidden, *weights):
            ctx.save_for_backward(hidden, *weights)
            pairs = zip(hidden.split(chunk), targets.split(chunk), strict=True)
            return sum(chunk_of(*pair, *weights)[0] for pair in pairs)

        @staticmethod
        def backward(ctx, slope):
            hidden, *weights = ctx.saved_tensors
            pairs = zip(hidden.split(chunk), targets.split(chunk), strict=True)
            of_rows, *others = zip(*(chunk_of(*p, *weights)[1:] for p in pairs), strict=True)
            return slope * torch.cat(of_rows), *(slope * sum(gradients) for gradients in others)

    return Late.apply(hidden, *weights)


@wrong("add each chunk's gradients to the sum at once, and keep none")
def keeps_the_gradients_of_all_chunks(chunk_of, chunk, hidden, targets, *weights):
    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(ctx, hidden, *weights):
            pairs = zip(hidden.split(chunk), targets.split(chunk), strict=True)
            losses, of_rows, *ctx.others = zip(
                *(chunk_of(*p, *weights) for p in pairs), strict=True
            )
            ctx.save_for_backward(torch.cat(of_rows))
            return sum(losses)

        @staticmethod
        def backward(ctx, slope):
            if torch.is_grad_enabled():
                raise RuntimeError("create_graph is not for this loss.")
            sums = [None if g[0] is None else slope * sum(g) for g in ctx.others]
            return slope * ctx.saved_tensors[0], *sums

    return Kept.apply(hidden, *weights)


@wrong("but only it knows the loss")
def knows_the_loss_itself(chunk_of, chunk, hidden, targets, *weights):
    return torch.nn.functional.cross_entropy(hidden @ weights[0].T, targets, reduction="sum")


@wrong("lives as long as the loss")
def sums_on_ctx(chunk_of, chunk, hidden, targets, *weights):
    class OnCtx(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *leaves):
            total, ctx.sums = 0, [torch.zeros_like(leaf) for leaf in leaves]
            for start in range(0, len(targets), chunk):
                part = slice(start, start + chunk)
                loss, of_rows, *others = chunk_of(leaves[0][part], targets[part], *leaves[1:])
                ctx.sums[0][part] = of_rows
                for one, more in zip(ctx.sums[1:], others, strict=True):
                    if more is not None:
                        one.add_(more)
                total += loss
            return total

        @staticmethod
        def backward(ctx, slope):
            if slope.requires_grad or torch.is_grad_enabled():
                raise RuntimeError("create_graph=True: there is no second gradient here.")
            return (*(slope * s for s in ctx.sums),)

    return OnCtx.apply(hidden, *weights)


@wrong("then even a forward whose loss is never used")
def writes_the_gradients_in_forward(chunk_of, chunk, hidden, targets, *weights):
    with torch.no_grad():
        pairs = zip(hidden.split(chunk), targets.split(chunk), strict=True)
        total = 0
        for n, pair in enumerate(pairs):
            loss, of_rows, *others = chunk_of(*pair, *weights)
            total += loss
            hidden.grad[n * chunk : (n + 1) * chunk] += of_rows
            for weight, gradient in zip(weights, others, strict=True):
                if gradient is not None:
                    weight.grad += gradient
    return total + 0 * hidden.sum()


@right
def with_setup_context(chunk_of, chunk, hidden, targets, *weights):
    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(hidden, *weights):
            total, found = torch.zeros_like(hidden[0, 0]), [torch.empty_like(hidden)]
            found += [torch.zeros_like(w) if w.requires_grad else None for w in weights]
            for start in range(0, len(hidden), chunk):
                part = slice(start, start + chunk)
                loss, rows, *gradients = chunk_of(hidden[part], targets[part], *weights)
                total += loss
                found[0][part] = rows
                for one, more in zip(found[1:], gradients, strict=True):
                    if one is not None:
                        one += more
                del rows, gradients, more
            return total, *found

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*output[1:])
            ctx.mark_non_differentiable(*[one for one in output[1:] if one is not None])

        @staticmethod
        def backward(ctx, slope, *_):
            if torch.is_grad_enabled():
                raise RuntimeError("create_graph: this loss has no second gradient")
            return tuple(None if one is None else one * slope for one in ctx.saved_tensors)

    return Fused.apply(hidden, *weights)[0]


@right
def refuses_to_go_backward_twice(chunk_of, chunk, hidden, targets, *weights):
    class Spent(torch.autograd.Function):
        @staticmethod
        def forward(ctx, hidden, *weights):
            pairs = zip(hidden.split(chunk), targets.split(chunk), strict=True)
            total, of_rows, sums = 0, [], None
            for pair in pairs:
                loss, row, *others = chunk_of(*pair, *weights)
                total, sums = total + loss, [
                    b if a is None else a + b if b is not None else None
                    for a, b in zip(sums or [None] * len(others), others, strict=True)
                ]  # fmt: skip
                of_rows.append(row)
            ctx.spent = [torch.cat(of_rows), *sums]
            return total

        @staticmethod
        def backward(ctx, slope):
            if torch.is_grad_enabled():
                raise RuntimeError("no create_graph, please")
            if ctx.spent is None:
                raise RuntimeError("backward once: the gradients are spent")
            spent, ctx.spent = ctx.spent, None
            return (*(None if s is None else s.mul_(slope) for s in spent),)

    return Spent.apply(hidden, *weights)


@right
def with_a_generator_and_a_function_without_work(chunk_of, chunk, hidden, targets, *weights):
    leaves = [hidden, *weights]
    with torch.no_grad():

        def parts():
            for pair in zip(hidden.split(chunk), targets.split(chunk), strict=True):
                yield chunk_of(*pair, *weights)

        total, of_rows, sums = 0, [], [0] * len(weights)
        for loss, row, *others in parts():
            total = total + loss
            of_rows.append(row)
            sums = [s if o is None else s + o for s, o in zip(sums, others, strict=True)]
        gradients = [
            torch.cat(of_rows),
            *(s if isinstance(s, torch.Tensor) else None for s in sums),
        ]

    class Attach(torch.autograd.Function):
        @staticmethod
        def forward(ctx, gradients, *leaves):
            ctx.save_for_backward(*gradients)
            return total.clone()

        @staticmethod
        def backward(ctx, slope):
            if torch.is_grad_enabled():
                raise RuntimeError("create_graph: only first gradients are known")
            return None, *(None if g is None else slope * g for g in ctx.saved_tensors)

    return Attach.apply(gradients, *leaves)
