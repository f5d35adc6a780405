"""All or nothing."""

import copy
import math

import torch
from torch import nn

from wrong_answers import right, solved, wrong

LAB = solved("lab06")


def with_slips(
    check_steps=True,
    check_terms=True,
    check_loss=True,
    number=lambda place: place + 1,
    divisor=lambda parts, place, total, count_terms: total,
    gradients="hold",
    remember=True,
    update_late=True,
    clip=True,
    cut=torch.tensor_split,
    words="micro-batch {} has the loss {}.",
    passes_on=True,
    graphs=False,
    catches=BaseException,
    is_good=math.isfinite,
    clips=nn.utils.clip_grad_norm_,
    afterwards=lambda model, put_back, held: None,
):
    """The solution, with its parts to leave out."""

    def exact_step(model, optimizer, batch, num_steps, *, loss_sum, count_terms, max_norm=math.inf):
        rows, terms = len(batch[0]), count_terms(*batch)
        if check_steps and not 1 <= num_steps <= rows:
            raise ValueError(f"num_steps (={num_steps}) is not between 1 and {rows}.")
        if check_terms and not terms:
            raise ValueError("there is no target in the batch.")
        parameters = list(model.parameters())
        held = [p.grad for p in parameters]
        put_back = LAB.remember(model)
        total = 0.0
        try:
            optimizer.zero_grad(set_to_none=gradients != "in place")
            cuts = [cut(t, max(1, num_steps)) for t in batch]
            parts = list(zip(*cuts, strict=True))
            losses = []
            for place, part in enumerate(parts):
                loss = loss_sum(model, *part) / divisor(parts, place, max(1, terms), count_terms)
                if check_loss and not is_good(loss.item()):
                    raise ValueError(words.format(number(place), loss.item()))
                total += loss.item()
                if graphs:
                    losses.append(loss)
                else:
                    loss.backward()
                if clip == "each":
                    clips(parameters, max_norm)
                if not update_late and place == 0:
                    optimizer.step()
            if graphs:
                sum(losses).backward()
            if clip:
                clips(parameters, max_norm)
        except catches as error:
            if remember:
                put_back()
            if gradients != "lose":
                for p, g in zip(parameters, held, strict=True):
                    p.grad = g
            if not passes_on and not isinstance(error, ValueError):
                raise ValueError("something went wrong.") from error
            raise
        if update_late:
            optimizer.step()
        afterwards(model, put_back, held)
        return total

    return exact_step


accepts_any_number = wrong("num_steps=0: nothing was raised")(with_slips(check_steps=False))
averages_nothing = wrong("a batch without one target: nothing was raised")(
    with_slips(check_terms=False)
)
believes_in_nan = wrong("a loss of nan in the third micro-batch: nothing was raised")(
    with_slips(check_loss=False)
)
counts_from_0 = wrong("counts it from 0, and people count from 1")(
    with_slips(number=lambda place: place)
)
names_nothing = wrong("does not name the third")(with_slips(words="the loss is not finite."))
means_of_means = wrong("however many terms it has")(
    with_slips(divisor=lambda parts, place, n, count: max(1, count(*parts[place])) * len(parts))
)
adds_means_up = wrong("the micro-batches' means were added up")(
    with_slips(divisor=lambda parts, place, n, count: max(1, count(*parts[place])))
)
divides_by_nothing = wrong("nothing is divided: it is the sum over all terms")(
    with_slips(divisor=lambda parts, place, n, count: 1)
)
loses_the_gradients = wrong("Hold them in a list")(with_slips(gradients="lose"))
forgets_to_put_back = wrong("call the function that remember gave you")(with_slips(remember=False))
does_not_clip = wrong("not clipped to max_norm")(with_slips(clip=False))
cuts_by_chunk = wrong("Tensor.tensor_split cuts into so many")(with_slips(cut=torch.chunk))
hides_the_error = wrong("what the model raises is passed on as it is")(with_slips(passes_on=False))
keeps_all_graphs = wrong("call backward for each, it frees its graph")(with_slips(graphs=True))
asks_for_nan_alone = wrong("an infinite loss in the third micro-batch: nothing was raised")(
    with_slips(is_good=lambda loss: not math.isnan(loss))
)
lets_interrupts_pass = wrong("or for less, lets it pass by")(with_slips(catches=Exception))
puts_back_always = wrong("the model's buffers are not what its forwards left")(
    with_slips(afterwards=lambda model, put_back, held: put_back())
)
clips_each = wrong("clip once, after the last backward")(with_slips(clip="each"))
leaves_it_in_eval = wrong("a module is in another mode after your call")(
    with_slips(afterwards=lambda model, put_back, held: model.eval())
)


def floor_split(tensor, num):
    return tensor.split(
        [*[len(tensor) // num] * (num - 1), len(tensor) - len(tensor) // num * (num - 1)]
    )


leaves_the_rest_to_the_last = wrong("make them as equal as they can be")(
    with_slips(cut=floor_split)
)


@wrong("would draw the same numbers")
def seeds_at_the_end(*arguments, **options):
    return with_slips(afterwards=lambda *_: torch.manual_seed(0))(*arguments, **options)


@wrong("and the .grad from before it are back")
def gives_the_gradients_back(*arguments, **options):
    def put(model, put_back, held):
        for p, gradient in zip(model.parameters(), held, strict=True):
            p.grad = gradient

    return with_slips(afterwards=put)(*arguments, **options)


@wrong("rows at once")
def takes_it_whole(model, optimizer, batch, num_steps, **options):
    return with_slips()(model, optimizer, batch, 1, **options)


@wrong("the parameters had been updated before")
def looks_after_the_update(
    model, optimizer, batch, num_steps, *, loss_sum, count_terms, max_norm=math.inf
):
    def patient(model, *part):
        loss = loss_sum(model, *part)
        bad.append(not math.isfinite(loss.item()))
        return loss

    bad = []
    options = {"loss_sum": patient, "count_terms": count_terms, "max_norm": max_norm}
    total = with_slips(check_loss=False)(model, optimizer, batch, num_steps, **options)
    if any(bad):
        raise ValueError(f"micro-batch {bad.index(True) + 1} was not finite.")
    return total


@wrong("a ValueError in your own words is wanted")
def leaves_it_to_torch(model, optimizer, batch, num_steps, **options):
    for tensor in batch:
        tensor.tensor_split(num_steps)
    return with_slips()(model, optimizer, batch, num_steps, **options)


@right
def on_a_copy_of_everything(
    model, optimizer, batch, num_steps, *, loss_sum, count_terms, max_norm=math.inf
):
    """Gradients by autograd.grad: .grad is touched when nothing can fail any more."""
    if num_steps < 1 or num_steps > len(batch[0]):
        raise ValueError(f"{num_steps} micro-batches of {len(batch[0])} rows cannot be made.")
    if count_terms(*batch) == 0:
        raise ValueError("all targets are masked.")
    buffers, random_state = copy.deepcopy(dict(model.named_buffers())), torch.get_rng_state()
    parameters = list(model.parameters())
    sums, total, count = [torch.zeros_like(p) for p in parameters], 0.0, count_terms(*batch)
    try:
        for number in range(1, num_steps + 1):
            part = [t.tensor_split(num_steps)[number - 1] for t in batch]
            loss = loss_sum(model, *part) / count
            if not torch.isfinite(loss):
                raise ValueError(f"micro-batch {number}: {loss}")
            found = torch.autograd.grad(loss, parameters, allow_unused=True)
            for s, g in zip(sums, found, strict=True):
                s += 0 if g is None else g
            total += loss.item()
    except BaseException:
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
        torch.set_rng_state(random_state)
        raise
    for p, s in zip(parameters, sums, strict=True):
        p.grad = s
    nn.utils.clip_grad_norm_(parameters, max_norm)
    optimizer.step()
    return total


def clips_as_it_is_written(parameters, max_norm):
    gradients = [p.grad for p in parameters]
    norm = nn.utils.get_total_norm(gradients).item()
    if norm > max_norm:
        torch._foreach_mul_(gradients, max_norm / norm)


clips_by_hand = right(with_slips(clips=clips_as_it_is_written))
just_so = right(with_slips())
