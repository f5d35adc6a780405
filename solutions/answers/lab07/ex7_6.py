"""The whole, in place of loss.backward()."""

from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

from solutions.answers import right, solved, wrong

clears_gradients = wrong(
    "add to it, as backward does",
    "    with undone",
    "    for module in (*towers, loss_of):\n        module.zero_grad()\n    with undone",
)
keeps_one_graph = wrong(
    "each row went through its tower once",
    "three_stages(towers, inputs, loss_of, micro_batch, remember)",
    "one_graph(towers, inputs, loss_of, micro_batch)",
)
returns_a_tensor = wrong(
    "should be a float", "return three", "return torch.tensor(three", "remember)", "remember))"
)
returns_the_loss_of_a_pair = wrong("but you returned", "remember)", "remember) / rows[0]")
runs_all_at_once = wrong(
    "at once, but micro_batch is", "micro_batch, remember", "rows[0], remember"
)
forgets_the_moments = wrong(
    "was the first pass given `remember`?", "micro_batch, remember", "micro_batch, forget"
)
takes_a_pair_alone = wrong("a batch of one row has no negatives", "rows[0] < 2", "rows[0] < 1")
takes_no_rows = wrong("a micro_batch of 0 rows is impossible", "micro_batch < 1", "micro_batch < 0")
takes_a_third_uneven = wrong("some have no partner, but this came", "set(rows)", "set(rows[:2])")
takes_an_empty_batch = wrong("a batch of no rows has no pairs", "rows[0] < 2", "rows[0] == 1")
takes_less_than_none = wrong(
    "a micro_batch of -1 rows is impossible", "micro_batch < 1", "micro_batch == 0"
)
takes_batch_norm_of_images = wrong(
    "makes that the whole batch, but it went through",
    "    if norms := batch_norms(towers)",
    "    modules = [module for tower in towers for module in tower.modules()]\n"
    "    norms = batch_norms(towers)\n"
    "    if norms and not any(isinstance(module, nn.BatchNorm2d) for module in modules)",
)
refuses_batch_norm_in_evaluation = wrong(
    "don't refuse a BatchNorm in eval mode",
    "batch_norms(towers):",
    "[m for t in towers for m in t.modules() if type(m).__name__.startswith('BatchNorm')]:",
)
names_no_batch_norm = wrong(
    "BatchNorm in training: ...'",
    'f"{norms[0]} is a BatchNorm in training: call its eval()."',
    '"BatchNorm in training: ..."',
)
undoes_nothing = wrong(
    "check inside undone_on_error", "undone_on_error(towers)", "contextlib.nullcontext()"
)
seeds_again = wrong(
    "the rest of the training would draw other numbers",
    "        return three",
    "        loss = three",
    "remember)",
    "remember)\n    torch.manual_seed(0)\n    return loss",
)
trains_whatever_was_frozen = wrong(
    "leave each module as it was",
    "        return three",
    "        loss = three",
    "remember)",
    "remember)\n    [tower.train() for tower in towers]\n    return loss",
)
marks_the_inputs = wrong(
    "require a gradient, or hold one",
    "        return three",
    "        loss = three",
    "remember)",
    "remember)\n    [rows.requires_grad_() for rows in inputs]\n    return loss",
)
clears_the_inputs = wrong(
    "change no tensor or list in place",
    "        return three",
    "        loss = three",
    "remember)",
    "remember)\n    [rows.zero_() for rows in inputs]\n    return loss",
)
evaluates = wrong(
    "the tower was in eval mode",
    "        return three",
    "        for tower in towers:\n"
    "            tower.training = tower.dropout.training = False\n"
    "        loss = three",
    "remember)",
    "remember)\n"
    "        for tower in towers:\n"
    "            tower.training = tower.dropout.training = True\n"
    "        return loss",
)
looks_too_late = wrong(
    "which you could see before a tower ran",
    "    if len(set(rows))",
    "    if len(set(rows)) > 1:\n"
    "        with undone_on_error(towers), torch.no_grad():\n"
    "            for tower, of_tower in zip(towers, inputs, strict=True):\n"
    "                tower(of_tower[:2])\n"
    "            raise ValueError(f'{rows} rows came')\n"
    "    if len(set(rows))",
)


LAB = solved("lab07")


def look(towers, inputs, loss_of, micro_batch, *, uneven=False):
    """Refuse what must be refused."""
    rows, norms = [len(x) for x in inputs], LAB.batch_norms(towers)
    if (len(set(rows)) > 1 and not uneven) or rows[0] < 2 or micro_batch < 1 or norms:
        raise ValueError(f"rows {rows}, micro_batch {micro_batch}, norms {norms}")


def with_slips(
    *,
    uneven=False,
    embed=None,
    cache=None,
    push=None,
    parts=torch.split,
    towers_pushed=lambda number: range(number),
):
    """The solution from its parts."""
    embed, push = embed or LAB.embed, push or LAB.push
    cache = cache or LAB.cache_gradients

    def cached_backward(towers, inputs, loss_of, micro_batch):
        look(towers, inputs, loss_of, micro_batch, uneven=uneven)
        cut = [parts(rows, micro_batch) for rows in inputs]
        with LAB.undone_on_error(towers):
            embedded = [embed(t, p, LAB.remember) for t, p in zip(towers, cut, strict=True)]
            loss, gradients = cache(loss_of, [rows for rows, _ in embedded])
        torch.clear_autocast_cache()  # as the solution does, for older versions
        for number in towers_pushed(len(towers)):
            push(towers[number], cut[number], gradients[number], embedded[number][1])
        return loss

    return cached_backward


def without_the_last(rows, size):
    parts = rows.split(size)
    return parts if len(parts) == 1 or len(parts[-1]) == size else parts[:-1]


def with_graphs(tower, parts, remember):
    """Embed and keep the graphs, for a push that goes backward through them."""
    embeddings = torch.cat([tower(part) for part in parts])
    for part in parts:  # so that the rows are counted twice
        buffers = {name: buffer.clone() for name, buffer in tower.named_buffers()}
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.func.functional_call(tower, buffers, (part,))
    return embeddings, [embeddings]


def through_the_kept_graph(tower, parts, gradients, moments):
    moments[0].backward(gradients)


def with_a_slip(loss_of, embeddings, *, passes=torch.isfinite, own=True, keep=False, says=None):
    """Do as `cache_gradients`, but for a word."""
    leaves = [rows.detach().requires_grad_() for rows in embeddings]
    loss = loss_of(*leaves)
    if not passes(loss):
        raise FloatingPointError(says or f"loss {loss.item()}")
    if not own:
        return loss.item(), torch.autograd.grad(loss, leaves)
    loss.backward(retain_graph=keep)
    loss_of.kept = loss if keep else None
    return loss.item(), [leaf.grad for leaf in leaves]


@wrong("those of plain accumulation")
def accumulates(towers, inputs, loss_of, micro_batch):
    look(towers, inputs, loss_of, micro_batch)
    total, rows = 0.0, len(inputs[0])
    for parts in zip(*[x.split(micro_batch) for x in inputs], strict=True):
        with torch.no_grad():
            for tower, part in zip(towers, parts, strict=True):
                tower(part)
        out = [tower(part) for tower, part in zip(towers, parts, strict=True)]
        if len(parts[0]) == 1:
            continue
        loss = loss_of(*out)
        (loss * len(parts[0]) / rows).backward()
        total += loss.item() * len(parts[0]) / rows
    return total


@wrong("you ran each micro-batch through all towers")
def embeds_all_towers_in_turn(towers, inputs, loss_of, micro_batch):
    look(towers, inputs, loss_of, micro_batch)
    parts = [rows.split(micro_batch) for rows in inputs]
    with LAB.undone_on_error(towers):
        runs = [
            [LAB.embed(t, [part], LAB.remember) for t, part in zip(towers, ours, strict=True)]
            for ours in zip(*parts, strict=True)
        ]
        embedded = [
            torch.cat([rows for rows, _ in of_tower]) for of_tower in zip(*runs, strict=True)
        ]
        loss, gradients = LAB.cache_gradients(loss_of, embedded)
    moments = [[moment for _, (moment,) in of_tower] for of_tower in zip(*runs, strict=True)]
    for pushed in zip(towers, parts, gradients, moments, strict=True):
        LAB.push(*pushed)
    return loss


@wrong("does this lab's work by itself")
def uses_torchs_checkpoint(towers, inputs, loss_of, micro_batch):
    look(towers, inputs, loss_of, micro_batch)
    wrapped = [partial(checkpoint, tower, use_reentrant=False) for tower in towers]
    return LAB.one_graph(wrapped, inputs, loss_of, micro_batch)


drops_the_last = wrong("Is a micro-batch left out")(with_slips(parts=without_the_last))
hides_its_graphs = wrong("Which graph is still held?")(
    with_slips(embed=with_graphs, push=through_the_kept_graph)
)
forgets_the_last_tower = wrong("push through all of them")(
    with_slips(towers_pushed=lambda number: range(number - 1))
)
takes_uneven_inputs = wrong("some have no partner, but it went")(
    with_slips(
        uneven=True,
        cache=lambda loss_of, e: LAB.cache_gradients(
            loss_of, [rows[: min(map(len, e))] for rows in e]
        ),
        push=lambda tower, parts, g, moments: LAB.push(
            tower, torch.cat(list(parts))[: len(g)].split(len(parts[0])), g, moments
        ),
    )
)
looks_for_nan_alone = wrong("gave an infinite loss, but it went through")(
    with_slips(cache=partial(with_a_slip, passes=lambda loss: not loss.isnan()))
)
forgets_the_scale = wrong("the loss's own parameter got no gradient")(
    with_slips(cache=partial(with_a_slip, own=False))
)
says_the_same_of_both = wrong("and the error is the same where it is inf")(
    with_slips(cache=partial(with_a_slip, says="the loss is nan or infinite"))
)
keeps_the_loss = wrong("something still holds the loss")(
    with_slips(cache=partial(with_a_slip, keep=True))
)
takes_any_loss = wrong("the loss is not finite, but it went through")(
    with_slips(cache=partial(with_a_slip, passes=lambda loss: True))
)


from_its_parts = right(with_slips())


@right
def without_the_stages(towers, inputs, loss_of, micro_batch):
    look(towers, inputs, loss_of, micro_batch)
    parts = [rows.split(micro_batch) for rows in inputs]
    begun, leaves = [], []
    with LAB.undone_on_error(towers):
        for tower, ours in zip(towers, parts, strict=True):
            moments, embeddings = [], []
            for part in ours:
                moments.append(LAB.remember(tower))
                embeddings.append(tower(part).detach())
            begun.append(moments)
            leaves.append(torch.cat(embeddings).requires_grad_())
        loss = loss_of(*leaves)
        if not torch.isfinite(loss):
            raise FloatingPointError(f"loss {loss.item()}")
    loss.backward()
    for tower, ours, moments, leaf in zip(towers, parts, begun, leaves, strict=True):
        gradients = leaf.grad.split(micro_batch)
        for part, moment, gradient in zip(ours, moments, gradients, strict=True):
            with moment():
                torch.autograd.backward(tower(part), gradient)
    return loss.item()
