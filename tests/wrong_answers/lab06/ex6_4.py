"""Once an update."""

import math

import torch
from torch import nn

from wrong_answers import right, wrong


def share(y, window):
    return len(y) / sum(len(t) for _, t in window)


def with_slips(
    weight=share,
    zero=True,
    scale=True,
    unscale=True,
    clip="once",
    schedule=lambda before, after: after >= before,
    schedule_each=False,
    log=lambda loss, scaler: loss.item(),
    norm_after=False,
    update=True,
    step=None,
    zero_each=False,
):
    """The solution, with everything that happens once to choose."""

    def scaled_step(model, optimizer, scheduler, scaler, window, max_norm, loss_of):
        if zero:
            optimizer.zero_grad()
        total, parameters = 0.0, list(model.parameters())
        for x, y in window:
            if zero_each:
                optimizer.zero_grad()
            loss = loss_of(model, x, y) * weight(y, window)
            (scaler.scale(loss) if scale else loss).backward()
            total += log(loss, scaler)
            if clip == "each":
                nn.utils.clip_grad_norm_(parameters, max_norm * scaler.get_scale())
            if schedule_each:
                scheduler.step()
        if clip == "before":
            nn.utils.clip_grad_norm_(parameters, max_norm)
        if unscale:
            scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(parameters, max_norm if clip == "once" else 1e30)
        if norm_after:
            norm = nn.utils.get_total_norm([p.grad for p in parameters])
        before = scaler.get_scale()
        if step:
            step(scaler, optimizer)
        else:
            scaler.step(optimizer)
        if update:
            scaler.update()
        if not schedule_each and schedule(before, scaler.get_scale()):
            scheduler.step()
        return total, norm.item()

    return scaled_step


@wrong("one micro-batch's graph at a time")
def one_backward(model, optimizer, scheduler, scaler, window, max_norm, loss_of):
    losses = [loss_of(model, x, y) * share(y, window) for x, y in window]
    optimizer.zero_grad()
    loss = sum(losses)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= before:
        scheduler.step()
    return loss.item(), norm.item()


forgets_the_division = wrong("the micro-batches' means were added up")(
    with_slips(weight=lambda y, window: 1)
)
means_of_means = wrong("each micro-batch counts the same")(
    with_slips(weight=lambda y, window: 1 / len(window))
)
zeroes_in_the_loop = wrong("zero once, at the start")(with_slips(zero_each=True))
does_not_zero = wrong("what was handed over in .grad")(with_slips(zero=False))
does_not_scale = wrong("Attempted unscale_ but _scale is None")(with_slips(scale=False))
clips_before_unscaling = wrong("clipped while it was still scaled")(
    with_slips(clip="before", norm_after=False)
)
clips_each = wrong("clip once, after the last backward")(with_slips(clip="each"))
does_not_clip = wrong("the gradient was not clipped")(with_slips(clip="never"))
schedules_each_time = wrong("it belongs to the update, like the clipping")(
    with_slips(schedule_each=True)
)
schedules_always = wrong("from now on it is one ahead")(
    with_slips(schedule=lambda before, after: True)
)
schedules_at_the_same_scale = wrong("the scale grew, and the scheduler did not step")(
    with_slips(schedule=lambda before, after: after == before)
)
logs_the_scaled_loss = wrong("is for people to read")(
    with_slips(log=lambda loss, scaler: loss.item() * scaler.get_scale())
)
never_unscales = wrong("that of a gradient still scaled")(with_slips(unscale=False))
returns_the_clipped_norm = wrong("before clipping, which clip_grad_norm_ returns")(
    with_slips(norm_after=True)
)
never_updates_the_scale = wrong("unscale_() is being called after step()")(with_slips(update=False))
steps_past_the_scaler = wrong("No inf checks were recorded")(
    with_slips(unscale=False, step=lambda scaler, optimizer: optimizer.step())
)


@wrong("the scheduler steps after scaler.step")
def schedules_before_the_update(model, optimizer, scheduler, scaler, *rest):
    def step(scaler, optimizer):
        scheduler.step()
        scaler.step(optimizer)

    never = with_slips(step=step, schedule=lambda before, after: False)
    return never(model, optimizer, scheduler, scaler, *rest)


@wrong("and may have an infinite one, as here")
def asks_for_nan_alone(model, optimizer, scheduler, scaler, *rest):
    never = with_slips(schedule=lambda before, after: False)
    loss, norm = never(model, optimizer, scheduler, scaler, *rest)
    if not math.isnan(norm):
        scheduler.step()
    return loss, norm


@wrong("a scaler that is switched off skips no update")
def asks_for_a_finite_norm(model, optimizer, scheduler, scaler, *rest):
    never = with_slips(schedule=lambda before, after: False)
    loss, norm = never(model, optimizer, scheduler, scaler, *rest)
    if math.isfinite(norm):
        scheduler.step()
    return loss, norm


@wrong("leave it to scaler.step what is skipped")
def skips_by_hand(*arguments):
    def step(scaler, optimizer):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        if nn.utils.get_total_norm(gradients).isfinite() or scaler.get_scale() > 1:
            scaler.step(optimizer)

    return with_slips(step=step)(*arguments)


@right
def returns_the_norm_as_a_tensor(*arguments):
    loss, norm = with_slips()(*arguments)
    return loss, torch.tensor(norm)


@wrong("scaler.update() is for once a window")
def updates_the_scale_each_time(model, optimizer, scheduler, scaler, window, max_norm, loss_of):
    optimizer.zero_grad()
    total, sums, parameters = 0.0, None, list(model.parameters())
    for x, y in window:
        loss = loss_of(model, x, y) * share(y, window)
        gradients = torch.autograd.grad(scaler.scale(loss), parameters)
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient
        scaler.unscale_(optimizer)
        sums = [p.grad + (s if sums else 0) for p, s in zip(parameters, sums or parameters)]  # noqa: B905
        total += loss.item()
        scaler.update()
    for p, s in zip(parameters, sums, strict=True):
        p.grad = s
    norm = nn.utils.clip_grad_norm_(parameters, max_norm)
    optimizer.step()
    scheduler.step()
    return total, norm.item()


@wrong("or the gradient unscaled twice")
def unscales_by_hand_as_well(*arguments):
    def step(scaler, optimizer):
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad /= scaler.get_scale()
        scaler.step(optimizer)

    return with_slips(step=step)(*arguments)


@wrong("rows at once")
def takes_them_together(model, optimizer, scheduler, scaler, window, max_norm, loss_of):
    together = [tuple(map(torch.cat, zip(*window, strict=True)))]
    return with_slips()(model, optimizer, scheduler, scaler, together, max_norm, loss_of)


@right
def asks_the_optimizer(model, optimizer, scheduler, scaler, window, max_norm, loss_of):
    """Learns from a hook whether the update was made."""
    made = []
    hook = optimizer.register_step_post_hook(lambda *_: made.append(1))
    loss, norm = with_slips(schedule=lambda before, after: bool(made))(
        model, optimizer, scheduler, scaler, window, max_norm, loss_of
    )
    hook.remove()
    return loss, norm


@right
def clips_by_hand(model, optimizer, scheduler, scaler, window, max_norm, loss_of):
    """Without the 1e-6 that PyTorch adds to the norm."""
    model.zero_grad()
    total, old = 0.0, scaler.get_scale()
    for x, y in window:
        loss = loss_of(model, x, y) * share(y, window)
        scaler.scale(loss).backward()
        total += loss.item()
    scaler.unscale_(optimizer)
    gradients = [p.grad for p in model.parameters()]
    norm = nn.utils.get_total_norm(gradients)
    if norm > max_norm:
        torch._foreach_mul_(gradients, (max_norm / norm).item())
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= old:
        scheduler.step()
    return total, norm.item()


@right
def weighs_after_scaling(model, optimizer, scheduler, scaler, window, max_norm, loss_of):
    model.zero_grad()
    count, losses, old = sum(len(y) for _, y in window), [], scaler.get_scale()
    for x, y in window:
        loss = loss_of(model, x, y)
        (scaler.scale(loss) * len(y) / count).backward()
        losses.append(loss.item() * len(y) / count)
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    if not scaler.get_scale() < old:
        scheduler.step()
    return sum(losses), float(norm)
