"""Once an update."""

import torch
from torch import nn

from solutions.answers import right, wrong

one_backward = wrong(
    "one micro-batch's graph at a time",
    "        scaler.scale(loss).backward()\n        total += loss.item()\n",
    "        total = total + loss\n    scaler.scale(total).backward()\n",
    "return total",
    "return total.item()",
)
forgets_the_division = wrong(
    "the micro-batches' means were added up", " * (len(y) / num_images)", ""
)
means_of_means = wrong("each micro-batch counts the same", "len(y) / num_images", "1 / len(window)")
zeroes_in_the_loop = wrong(
    "zero once, at the start", "        loss =", "        optimizer.zero_grad()\n        loss ="
)
does_not_zero = wrong("the .grad from before your call", "    optimizer.zero_grad()\n", "")
does_not_scale = wrong("Attempted unscale_ but _scale is None", "scaler.scale(loss)", "loss")
clips_before_unscaling = wrong(
    "clipped while it was still scaled",
    "    scaler.unscale_(optimizer)\n",
    "",
    "    scale =",
    "    scaler.unscale_(optimizer)\n"
    "    norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])\n"
    "    scale =",
)
clips_each = wrong(
    "clip once, after the last backward",
    "        total +=",
    "        nn.utils.clip_grad_norm_(model.parameters(), max_norm * scaler.get_scale())\n"
    "        total +=",
    "parameters(), max_norm)",
    "parameters(), 1e30)",
)
does_not_clip = wrong(
    "the gradient was not clipped", "parameters(), max_norm)", "parameters(), 1e30)"
)
schedules_each_time = wrong(
    "step it with the update, like the clipping",
    "        scheduler.step()\n",
    "        pass\n",
    "        total +=",
    "        scheduler.step()\n        total +=",
)
schedules_always = wrong("is one ahead from now on", "scaler.get_scale() >= scale:", "True:")
schedules_at_the_same_scale = wrong(
    "the scale grew, but the scheduler did not step", ">= scale", "== scale"
)
logs_the_scaled_loss = wrong(
    "but people read it", "loss.item()", "loss.item() * scaler.get_scale()"
)
never_unscales = wrong("since the gradient is still scaled", "    scaler.unscale_(optimizer)\n", "")
returns_the_clipped_norm = wrong(
    "before clipping, which clip_grad_norm_ returns",
    "    scale =",
    "    norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])\n    scale =",
)
never_updates_the_scale = wrong(
    "unscale_() is being called after step()", "    scaler.update()\n", ""
)
steps_past_the_scaler = wrong(
    "No inf checks were recorded",
    "    scaler.unscale_(optimizer)\n",
    "",
    "scaler.step(optimizer)",
    "optimizer.step()",
)
schedules_before_the_update = wrong(
    "the scheduler steps after scaler.step",
    "        scheduler.step()\n",
    "        pass\n",
    "    scaler.step",
    "    scheduler.step()\n    scaler.step",
)
asks_for_nan_alone = wrong(
    "norm may be nan or infinite, as here", "scaler.get_scale() >= scale", "not math.isnan(norm)"
)
asks_for_a_finite_norm = wrong(
    "a scaler that is switched off skips no update",
    "scaler.get_scale() >= scale",
    "math.isfinite(norm)",
)
skips_by_hand = wrong(
    "let scaler.step decide what is skipped",
    "    scaler.step",
    "    if norm.isfinite() or scale > 1:\n        scaler.step",
)
returns_the_norm_as_a_tensor = right("norm.item()", "norm")
unscales_by_hand_as_well = wrong(
    "or you unscaled the gradient twice",
    "    scaler.step",
    "    for p in model.parameters():\n        p.grad /= scale\n    scaler.step",
)
takes_them_together = wrong(
    "rows at once",
    "    num_images",
    "    window = [tuple(map(torch.cat, zip(*window, strict=True)))]\n    num_images",
)
asks_the_optimizer = right(
    "scale = scaler.get_scale()",
    "made = []\n    hook = optimizer.register_step_post_hook(lambda *_: made.append(1))",
    "scaler.get_scale() >= scale:",
    "made:",
    "    scaler.update()",
    "    scaler.update()\n    hook.remove()",
)
clips_by_hand = right(  # without the 1e-6 that PyTorch adds to the norm
    "norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)",
    "gradients = [p.grad for p in model.parameters()]\n"
    "    norm = nn.utils.get_total_norm(gradients)\n"
    "    if norm > max_norm:\n"
    "        torch._foreach_mul_(gradients, (max_norm / norm).item())",
)
weighs_after_scaling = right(
    "loss_of(model, x, y) * (len(y) / num_images)",
    "loss_of(model, x, y)",
    "scaler.scale(loss).backward()",
    "(scaler.scale(loss) * len(y) / num_images).backward()",
    "loss.item()",
    "loss.item() * len(y) / num_images",
)


@wrong("call scaler.update() once per window")
def updates_the_scale_each_time(model, optimizer, scheduler, scaler, window, max_norm, loss_of):
    optimizer.zero_grad()
    total, sums, parameters = 0.0, None, list(model.parameters())
    for x, y in window:
        loss = loss_of(model, x, y) * (len(y) / sum(len(t) for _, t in window))
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
