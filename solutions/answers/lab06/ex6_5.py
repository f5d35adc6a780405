"""All or nothing."""

import copy
import math

import torch
from torch import nn

from solutions.answers import right, wrong

accepts_any_number = wrong(
    "num_steps=0: nothing was raised",
    "impossible(num_steps, len(batch[0])",
    "impossible(1, 1",
    "split(num_steps)",
    "split(max(1, num_steps))",
)
averages_nothing = wrong(
    "a batch without one target: nothing was raised",
    "len(batch[0]), num_terms",
    "len(batch[0]), 1",
    "/ num_terms",
    "/ max(1, num_terms)",
)
believes_in_nan = wrong(
    "a loss of nan in the third micro-batch: nothing was raised",
    "not math.isfinite(loss.item())",
    "False",
)
counts_from_0 = wrong("counts it from 0, but people count from 1", ", start=1", "")
names_nothing = wrong(
    "does not name the third",
    "micro-batch {number} of {num_steps}: {loss.item()}",
    "the loss is not finite",
)
names_all = wrong(
    "names every micro-batch: name only one",
    "micro-batch {number} of {num_steps}: {loss.item()}",
    "not finite in one of the micro-batches {[*range(1, num_steps + 1)]}",
)
means_of_means = wrong(
    "however many terms it has", "/ num_terms", "/ max(1, count_terms(*micro_batch)) / num_steps"
)
adds_means_up = wrong(
    "the micro-batches' means were added up", "/ num_terms", "/ max(1, count_terms(*micro_batch))"
)
divides_by_nothing = wrong("nothing is divided: it is the sum over all terms", " / num_terms", "")
loses_the_gradients = wrong("Hold them in a list", "parameter.grad = gradient", "pass")
forgets_to_put_back = wrong("call the function that remember gave you", "        put_back()\n", "")
does_not_clip = wrong(
    "not clipped to max_norm", "        nn.utils.clip_grad_norm_(parameters, max_norm)\n", ""
)
cuts_by_chunk = wrong("Tensor.tensor_split cuts into so many", "tensor_split", "chunk")
lets_backward_fail = wrong(
    "is backward in the `try`",
    "    except BaseException:",
    "    except torch.OutOfMemoryError:\n        raise\n    except BaseException:",
)
hides_the_error = wrong(
    "what the model raises is passed on as it is",
    "BaseException:",
    "BaseException as error:",
    "        raise\n",
    "        if not isinstance(error, ValueError):\n"
    "            raise ValueError('something went wrong.') from error\n"
    "        raise\n",
)
keeps_all_graphs = wrong(
    "call backward for each, it frees its graph",
    "            loss.backward()\n            total += loss.item()\n",
    "            total = total + loss\n        total.backward()\n",
    "return total",
    "return total.item()",
)
asks_for_nan_alone = wrong(
    "an infinite loss in the third micro-batch: nothing was raised",
    "not math.isfinite(",
    "math.isnan(",
)
lets_interrupts_pass = wrong(
    "or anything narrower, doesn't catch it", "except BaseException", "except Exception"
)
puts_back_always = wrong(
    "the model's buffers are not as its forwards left",
    "    return total",
    "    put_back()\n    return total",
)
clips_each = wrong(
    "clip once, after the last backward",
    "            total +=",
    "            nn.utils.clip_grad_norm_(parameters, max_norm)\n            total +=",
)
leaves_it_in_eval = wrong(
    "your call left a module in a different mode",
    "    return total",
    "    model.eval()\n    return total",
)
leaves_the_rest_to_the_last = wrong(
    "make them as equal as possible",
    "split(num_steps)",
    "split([len(t) // num_steps * i for i in range(1, num_steps)])",
)
seeds_at_the_end = wrong(
    "would draw the same numbers", "    return total", "    torch.manual_seed(0)\n    return total"
)
gives_the_gradients_back = wrong(
    "and the .grad from before it are back",
    "    return total",
    "    for parameter, gradient in zip(parameters, gradients, strict=True):\n"
    "        parameter.grad = gradient\n"
    "    return total",
)
takes_it_whole = wrong("rows at once", "split(num_steps)", "split(1)")
looks_after_the_update = wrong(
    "the parameters had been updated before",
    'raise ValueError(f"micro-batch {number} of {num_steps}: {loss.item()}.")',
    "bad = number",
    "total = 0.0",
    "total, bad = 0.0, 0",
    "    return total",
    "    if bad:\n        raise ValueError(f'micro-batch {bad} was not finite.')\n    return total",
)
leaves_it_to_torch = wrong(
    "raise a ValueError, as refuse_impossible does",
    "    refuse",
    "    for tensor in batch:\n        tensor.tensor_split(num_steps)\n    refuse",
)
clips_by_hand = right(
    "nn.utils.clip_grad_norm_(parameters, max_norm)",
    "found = [p.grad for p in parameters]\n"
    "        norm = nn.utils.get_total_norm(found).item()\n"
    "        if norm > max_norm:\n"
    "            torch._foreach_mul_(found, max_norm / norm)",
)
clears_by_the_model = right("optimizer.zero_grad()", "model.zero_grad()")


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
