"""Several ranks."""

import contextlib

import torch
import torch.distributed as dist

from wrong_answers import right, wrong


def is_last(place, window):
    return place == len(window) - 1


def with_slips(
    syncs=is_last,
    around=("forward", "backward"),
    global_count=True,
    times_ranks=True,
    log="all",
    zero=True,
    early=False,
):
    """The solution, with the place of no_sync, the counts and the log to choose."""

    def rank_step(model, optimizer, window, *, loss_sum, count_terms):
        count = torch.tensor(float(sum(count_terms(*part) for part in window)))
        if early and not count:
            return 0.0
        if global_count:
            dist.all_reduce(count)
        if zero:
            optimizer.zero_grad()
        factor, total = dist.get_world_size() if times_ranks else 1, torch.zeros(()).double()
        for place, part in enumerate(window):
            skip = contextlib.nullcontext if syncs(place, window) else model.no_sync
            nothing = contextlib.nullcontext
            with skip() if "forward" in around else nothing():
                loss = loss_sum(model, *part) / count.clamp(min=1)
            with skip() if "backward" in around else nothing():
                (loss * factor).backward()
            total += loss.detach()
        if log == "all":
            dist.all_reduce(total)
        optimizer.step()
        return total.item() * (factor if log == "scaled" else 1)

    return rank_step


@wrong("one micro-batch's graph at a time")
def one_backward(model, optimizer, window, *, loss_sum, count_terms):
    count = torch.tensor(float(sum(count_terms(*part) for part in window)))
    dist.all_reduce(count)
    with model.no_sync():
        losses = [loss_sum(model, *part) for part in window[:-1]]
    loss = sum(losses) + loss_sum(model, *window[-1])
    optimizer.zero_grad()
    (loss * dist.get_world_size() / count).backward()
    total = loss.detach() / count
    dist.all_reduce(total)
    optimizer.step()
    return total.item()


never_skips = wrong("run under model.no_sync()")(with_slips(syncs=lambda place, window: True))
never_syncs = wrong("no gradient was ever reduced")(with_slips(syncs=lambda place, window: False))
syncs_at_the_first = wrong("from now on they are different models")(
    with_slips(syncs=lambda place, window: place == 0)
)
divides_by_its_own = wrong("add the counts up over the ranks")(
    with_slips(global_count=False, times_ranks=False)
)
divides_by_its_own_and_multiplies = wrong("besides: the count is that of all ranks")(
    with_slips(global_count=False)
)
forgets_the_average = wrong("averages over the ranks, so each multiplies")(
    with_slips(times_ranks=False)
)
logs_its_own = wrong("it is the part of this rank alone")(with_slips(log="own"))
does_not_zero = wrong("what was handed over in .grad")(with_slips(zero=False))
leaves_when_it_has_nothing = wrong("real ranks would hang here")(with_slips(early=True))


def counted(window, count_terms):
    count = torch.tensor(float(sum(count_terms(*part) for part in window)))
    dist.all_reduce(count)
    return count


@wrong("model.module knows nothing of ranks")
def goes_past_ddp(model, optimizer, window, *, loss_sum, count_terms):
    def inner(model, *part):
        return loss_sum(model.module, *part)

    return with_slips()(model, optimizer, window, loss_sum=inner, count_terms=count_terms)


@wrong("what it has averaged needs no reducing by hand")
def reduces_twice(model, optimizer, window, *, loss_sum, count_terms):
    def reduce(*_):
        for p in model.parameters():
            dist.all_reduce(p.grad)

    hook = optimizer.register_step_pre_hook(reduce)
    options = {"loss_sum": loss_sum, "count_terms": count_terms}
    loss = with_slips(times_ranks=False)(model, optimizer, window, **options)
    hook.remove()
    return loss


@wrong("does every rank make it, whatever it has")
def leaves_out_what_is_empty(model, optimizer, window, *, loss_sum, count_terms):
    count, total = counted(window, count_terms), 0.0
    optimizer.zero_grad()
    for place, part in enumerate(window):
        if count_terms(*part):
            with contextlib.nullcontext() if is_last(place, window) else model.no_sync():
                loss = loss_sum(model, *part) / count
                (loss * dist.get_world_size()).backward()
            total += loss.item()
    total = torch.tensor(total)
    dist.all_reduce(total)
    optimizer.step()
    return total.item()


@wrong("no_sync has to be around both")
def around_backward_alone(model, optimizer, window, **options):
    return with_slips(around=("backward",))(model, optimizer, window, **options)


@wrong("rows at once")
def takes_them_together(model, optimizer, window, **options):
    together = [tuple(map(torch.cat, zip(*window, strict=True)))]
    return with_slips()(model, optimizer, together, **options)


@wrong("with different shapes: [[()], [(2,)]]")
def counts_in_another_order(model, optimizer, window, *, loss_sum, count_terms):
    if dist.get_rank() == 0:
        return with_slips()(model, optimizer, window, loss_sum=loss_sum, count_terms=count_terms)
    dist.all_reduce(torch.zeros(2))
    return with_slips()(model, optimizer, window, loss_sum=loss_sum, count_terms=count_terms)


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
def leaves_out_the_empty_but_the_last(model, optimizer, window, *, loss_sum, count_terms):
    """All but the last go past DDP, and the loss is added up in float32."""
    count, total = counted(window, count_terms), 0.0
    optimizer.zero_grad()
    for place, part in enumerate(window):
        if is_last(place, window) or count_terms(*part):
            loss = loss_sum(model if is_last(place, window) else model.module, *part) / count
            (loss * dist.get_world_size()).backward()
            total += loss.item()
    optimizer.step()
    total = torch.tensor(total)
    dist.all_reduce(total)
    return total.item()


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


around_forward_alone = right(with_slips(around=("forward",)))
