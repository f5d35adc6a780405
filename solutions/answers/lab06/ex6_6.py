"""Several ranks."""

import torch
import torch.distributed as dist

from solutions.answers import right, wrong

never_skips = wrong("run under model.no_sync()", "number == len(window)", "True")
never_syncs = wrong("no gradient was ever reduced", "number == len(window)", "False")
syncs_at_the_first = wrong(
    "from now on they are different models", "number == len(window)", "number == 1"
)
divides_by_its_own = wrong(
    "add the counts up over the ranks",
    "    dist.all_reduce(num_terms)\n",
    "",
    "/ num_terms",
    "/ num_terms.clamp(min=1)",
    " * dist.get_world_size()",
    "",
)
divides_by_its_own_and_multiplies = wrong(
    "divide by the count of all ranks",
    "    dist.all_reduce(num_terms)\n",
    "",
    "/ num_terms",
    "/ num_terms.clamp(min=1)",
)
forgets_the_average = wrong(
    "averages over the ranks, so each multiplies", " * dist.get_world_size()", ""
)
logs_its_own = wrong("it is only this rank's part", "    dist.all_reduce(total)\n", "")
does_not_zero = wrong("the .grad from before your call", "    optimizer.zero_grad()\n", "")
leaves_when_it_has_nothing = wrong(
    "real ranks would hang here",
    "    dist.all_reduce(num",
    "    if not num_terms:\n        return 0.0\n    dist.all_reduce(num",
)
goes_past_ddp = wrong(
    "model.module doesn't know about ranks", "loss_sum(model,", "loss_sum(model.module,"
)
reduces_twice = wrong(
    "don't reduce by hand what it has averaged",
    " * dist.get_world_size()",
    "",
    "    optimizer.step",
    "    for p in model.parameters():\n        dist.all_reduce(p.grad)\n    optimizer.step",
)
leaves_out_what_is_empty = wrong(
    "does every rank make it, even without",
    "        is_last =",
    "        if not counts[number - 1]:\n            continue\n        is_last =",
)
around_backward_alone = wrong(
    "run forward inside, too",
    "            loss = loss_sum(model, *micro_batch) / num_terms\n",
    "",
    "        is_last =",
    "        loss = loss_sum(model, *micro_batch) / num_terms\n        is_last =",
)
takes_them_together = wrong(
    "rows at once",
    "    place =",
    "    window = [tuple(map(torch.cat, zip(*window, strict=True)))]\n    place =",
)
counts_in_another_order = wrong(
    "with different shapes: [[()], [(2,)]]",
    "    place =",
    "    if dist.get_rank():\n        dist.all_reduce(torch.zeros(2))\n    place =",
)
around_forward_alone = right("            (loss *", "        (loss *")
one_backward = wrong(
    "one micro-batch's graph at a time",
    "            (loss * dist.get_world_size()).backward()\n",
    "",
    "total += loss.detach()",
    "total = total + loss",
    "    optimizer.step",
    "    (total * dist.get_world_size()).backward()\n"
    "    total = total.detach()\n"
    "    optimizer.step",
)
leaves_out_the_empty_but_the_last = right(  # all but the last go past DDP
    "        with contextlib.nullcontext() if is_last else model.no_sync():\n",
    "        if is_last or counts[number - 1]:\n",
    "loss_sum(model, *micro_batch)",
    "loss_sum(model if is_last else model.module, *micro_batch)",
    "        total += loss.detach()",
    "            total += loss.detach()",
)


@right
def gathers_the_counts(model, optimizer, window, *, loss_sum, count_terms):
    mine = torch.tensor([sum(count_terms(*part) for part in window)])
    counts = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, mine)
    count, total = sum(counts).item(), 0.0
    model.zero_grad()
    with model.no_sync():
        for part in window[:-1]:
            loss = loss_sum(model, *part) / count
            (loss * dist.get_world_size()).backward()
            total += loss.item()
    loss = loss_sum(model, *window[-1]) / count
    (loss * dist.get_world_size()).backward()
    optimizer.step()
    total = torch.tensor(total + loss.item(), dtype=torch.float64)
    dist.all_reduce(total)
    return float(total)


@right
def exchanges_everything_at_once(model, optimizer, window, *, loss_sum, count_terms):
    optimizer.zero_grad()
    total, parameters = torch.zeros(1).double(), list(model.parameters())
    with model.no_sync():
        for part in window:
            loss = loss_sum(model, *part)
            loss.backward()
            total += loss.detach()
    count = torch.tensor([float(sum(count_terms(*part) for part in window))])
    everything = torch.cat([*(p.grad.flatten() for p in parameters), total, count])
    dist.all_reduce(everything)
    *gradients, total, count = everything.split([*(p.numel() for p in parameters), 1, 1])
    for p, gradient in zip(parameters, gradients, strict=True):
        p.grad = (gradient / count).view_as(p)
    optimizer.step()
    return (total / count).item()
