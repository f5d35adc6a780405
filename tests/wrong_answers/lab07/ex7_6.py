"""The whole, in place of loss.backward()."""

import contextlib
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from wrong_answers import right, solved, wrong

LAB = solved("lab07")


def look(towers, inputs, loss_of, micro_batch, *, but=()):
    """Refuse what must be refused, but for what is named."""
    rows = [len(x) for x in inputs]
    if len(set(rows[:2] if "third" in but else rows)) > 1 and "uneven" not in but:
        raise ValueError(f"rows: {rows}")
    if (rows[0] == 1 and "alone" not in but) or (rows[0] == 0 and "empty" not in but):
        raise ValueError(f"{rows[0]} rows have no negatives")
    if (micro_batch == 0 and "nothing" not in but) or (micro_batch < 0 and "negative" not in but):
        raise ValueError(f"micro_batch (={micro_batch})")
    if norms := LAB.batch_norms(towers):
        of_images = any(isinstance(m, nn.BatchNorm2d) for tower in towers for m in tower.modules())
        if not (of_images and "images" in but):
            raise ValueError(f"BatchNorm in training: {'...' if 'name' in but else norms}")


def with_slips(
    *,
    but=(),
    remember=None,
    embed=None,
    cache=None,
    push=None,
    undone=None,
    parts=torch.split,
    towers_pushed=lambda number: range(number),
):
    """The solution from its parts."""
    embed, push = embed or LAB.embed, push or LAB.push
    cache, remember = cache or LAB.cache_gradients, remember or LAB.remember
    undone = undone or LAB.undone_on_error

    def cached_backward(towers, inputs, loss_of, micro_batch):
        look(towers, inputs, loss_of, micro_batch, but=but)
        cut = [parts(rows, micro_batch) for rows in inputs]
        with undone(towers):
            embedded = [embed(t, p, remember) for t, p in zip(towers, cut, strict=True)]
            loss, gradients = cache(loss_of, [rows for rows, _ in embedded])
        torch.clear_autocast_cache()  # as the solution does, for older versions
        for number in towers_pushed(len(towers)):
            push(towers[number], cut[number], gradients[number], embedded[number][1])
        return loss

    return cached_backward


def all_in_one(rows, size):
    return (rows,)


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


def clearing(loss_of, embeddings):
    loss_of.zero_grad()
    return LAB.cache_gradients(loss_of, embeddings)


def unguarded(loss_of, embeddings):
    leaves = [rows.detach().requires_grad_() for rows in embeddings]
    loss = loss_of(*leaves)
    loss.backward()
    return loss.item(), [leaf.grad for leaf in leaves]


def unless_nan(loss_of, embeddings):
    with torch.no_grad():
        if torch.isnan(loss_of(*embeddings)):
            raise FloatingPointError("nan")
    return unguarded(loss_of, embeddings)


def of_the_embeddings_alone(loss_of, embeddings):
    leaves = [rows.detach().requires_grad_() for rows in embeddings]
    loss = loss_of(*leaves)
    if not torch.isfinite(loss):
        raise FloatingPointError(f"loss {loss.item()}")
    return loss.item(), torch.autograd.grad(loss, leaves)


def keeping(loss_of, embeddings):
    leaves = [rows.detach().requires_grad_() for rows in embeddings]
    loss = loss_of(*leaves)
    if not torch.isfinite(loss):
        raise FloatingPointError(f"loss {loss.item()}")
    loss.backward(retain_graph=True)
    loss_of.kept = loss
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


@wrong("like backward, add to it")
def clears_gradients(towers, inputs, loss_of, micro_batch):
    look(towers, inputs, loss_of, micro_batch)
    for module in (*towers, loss_of):
        module.zero_grad()
    return with_slips()(towers, inputs, loss_of, micro_batch)


@wrong("each row went through its tower once")
def keeps_one_graph(towers, inputs, loss_of, micro_batch):
    look(towers, inputs, loss_of, micro_batch)
    return LAB.one_graph(towers, inputs, loss_of, micro_batch)


@wrong("should be a float")
def returns_a_tensor(towers, inputs, loss_of, micro_batch):
    return torch.tensor(with_slips()(towers, inputs, loss_of, micro_batch))


@wrong("where that of the whole batch is")
def returns_the_loss_of_a_pair(towers, inputs, loss_of, micro_batch):
    return with_slips()(towers, inputs, loss_of, micro_batch) / len(inputs[0])


@wrong("the rest of the training would draw other numbers")
def seeds_again(towers, inputs, loss_of, micro_batch):
    look(towers, inputs, loss_of, micro_batch)
    loss = with_slips()(towers, inputs, loss_of, micro_batch)
    torch.manual_seed(0)
    return loss


@wrong("each micro-batch went through all towers before")
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


@wrong("the tower was in eval mode")
def evaluates(towers, inputs, loss_of, micro_batch):
    look(towers, inputs, loss_of, micro_batch)
    for tower in towers:
        tower.training = tower.dropout.training = False
    loss = with_slips()(towers, inputs, loss_of, micro_batch)
    for tower in towers:
        tower.training = tower.dropout.training = True
    return loss


@wrong("leave each as it came")
def trains_whatever_was_frozen(towers, inputs, loss_of, micro_batch):
    loss = with_slips()(towers, inputs, loss_of, micro_batch)
    for tower in towers:
        tower.train()
    return loss


@wrong("need a gradient now, or hold one")
def marks_the_inputs(towers, inputs, loss_of, micro_batch):
    loss = with_slips()(towers, inputs, loss_of, micro_batch)
    for rows in inputs:
        rows.requires_grad_()
    return loss


@wrong("change no tensor and no list in place")
def clears_the_inputs(towers, inputs, loss_of, micro_batch):
    loss = with_slips()(towers, inputs, loss_of, micro_batch)
    for rows in inputs:
        rows.zero_()
    return loss


@wrong("does this lab's work by itself")
def uses_torchs_checkpoint(towers, inputs, loss_of, micro_batch):
    look(towers, inputs, loss_of, micro_batch)
    wrapped = [partial(checkpoint, tower, use_reentrant=False) for tower in towers]
    return LAB.one_graph(wrapped, inputs, loss_of, micro_batch)


runs_all_at_once = wrong("at once, and micro_batch is")(with_slips(parts=all_in_one))
drops_the_last = wrong("Is a micro-batch left out")(with_slips(parts=without_the_last))
hides_its_graphs = wrong("Which graph lives on?")(
    with_slips(embed=with_graphs, push=through_the_kept_graph)
)
forgets_the_moments = wrong("was the first pass given `remember`?")(with_slips(remember=LAB.forget))
forgets_the_last_tower = wrong("push through all of them")(
    with_slips(towers_pushed=lambda number: range(number - 1))
)
takes_uneven_inputs = wrong("some have no partner, and it went")(
    with_slips(
        but=("uneven",),
        cache=lambda loss_of, e: LAB.cache_gradients(
            loss_of, [rows[: min(map(len, e))] for rows in e]
        ),
        push=lambda tower, parts, g, moments: LAB.push(
            tower, torch.cat(list(parts))[: len(g)].split(len(parts[0])), g, moments
        ),
    )
)
takes_a_pair_alone = wrong("a batch of one row has no negatives")(with_slips(but=("alone",)))
takes_no_rows = wrong("a micro_batch of 0 rows is none")(with_slips(but=("nothing",)))
takes_a_third_uneven = wrong("some have no partner, and this came")(with_slips(but=("third",)))
takes_an_empty_batch = wrong("a batch of no rows has no pairs")(with_slips(but=("empty",)))
takes_less_than_none = wrong("a micro_batch of -1 rows is none")(with_slips(but=("negative",)))
takes_batch_norm_of_images = wrong("makes that the whole batch, and it went through")(
    with_slips(but=("images",))
)
names_no_batch_norm = wrong("BatchNorm in training: ...'")(with_slips(but=("name",)))
looks_for_nan_alone = wrong("gave an infinite loss, and it went through")(
    with_slips(cache=unless_nan)
)
forgets_the_scale = wrong("the loss's own parameter got no gradient")(
    with_slips(cache=of_the_embeddings_alone)
)
keeps_the_loss = wrong("somebody holds on to the loss")(with_slips(cache=keeping))
takes_any_loss = wrong("the loss is not finite, and it went through")(with_slips(cache=unguarded))
undoes_nothing = wrong("inside undone_on_error where you cannot")(
    with_slips(undone=lambda towers: contextlib.nullcontext())
)


@wrong("that could be seen before a tower ran")
def looks_too_late(towers, inputs, loss_of, micro_batch):
    if len({len(x) for x in inputs}) > 1:
        with LAB.undone_on_error(towers), torch.no_grad():
            for tower, rows in zip(towers, inputs, strict=True):
                tower(rows[:2])
            look(towers, inputs, loss_of, micro_batch)
    return with_slips()(towers, inputs, loss_of, micro_batch)


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
