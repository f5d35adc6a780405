"""The mean over the tokens that count."""

import torch
from torch import Tensor

from solutions.answers import right, wrong

hands_on_ignored_tokens = wrong(
    "but its target isn't a valid one",
    "total = loss_sum(hidden[counts], targets[counts])",
    "total = loss_sum(hidden.flatten(0, 1), targets.flatten())",
)
gives_the_sum = wrong(
    "it is the sum over the tokens",
    "total / max(here if num_counted is None else num_counted, 1)",
    "total",
)
divides_by_all_tokens = wrong(
    "it is divided by all tokens",
    "max(here if num_counted is None else num_counted, 1)",
    "targets.numel()",
)
divides_by_its_own = wrong(
    "num_counted has the tokens of the window",
    "max(here if num_counted is None else num_counted, 1)",
    "max(here, 1)",
)
divides_by_nothing = wrong(
    "with num_counted=None and a window whose counted tokens are [[0, 0]] the loss is nan",
    "max(here if num_counted is None else num_counted, 1)",
    "(here if num_counted is None else num_counted)",
)
divides_by_a_window_of_nothing = wrong(
    "with num_counted=0 and a window whose counted tokens are [[0, 0]] the loss is nan",
    "max(here if num_counted is None else num_counted, 1)",
    "(max(here, 1) if num_counted is None else num_counted)",
)
leaves_out_the_refusal = wrong("but it went through", "num_counted < here", "num_counted < 0")
names_one_number = wrong("but this came:", "here}: count over", "targets.numel()}: count over")
raises_where_nothing_counts = wrong(
    "this came: ZeroDivisionError",
    "    total =",
    "    if not here:\n        raise ZeroDivisionError\n    total =",
)
gives_a_zero_without_a_graph = wrong(
    "without a graph",
    "    total =",
    "    if not here:\n        return hidden.new_zeros(())\n    total =",
)
gives_a_zero_that_leads_to_nothing = wrong(
    "the loss has no path back",
    "    total =",
    "    if not here:\n        return torch.zeros((), requires_grad=True)\n    total =",
)
gives_a_zero_of_the_rows_alone = wrong(
    "the loss leads back only to hidden",
    "    total =",
    "    if not here:\n        return hidden.sum() * 0\n    total =",
)
shifts_the_targets = wrong(
    "targets were shifted",
    "    counts = targets != IGNORED\n",
    "    hidden, targets = hidden[:, :-1], targets[:, 1:]\n    counts = targets != IGNORED\n",
)
puts_zeros_in_place_of_what_is_ignored = wrong(
    "an ignored token has a loss with any other target too",
    "loss_sum(hidden[counts], targets[counts])",
    "loss_sum((hidden * counts[..., None]).flatten(0, 1), (targets * counts).flatten())",
)
fills_the_targets_in_place = wrong(
    "your call changed its arguments", "    total =", "    targets[~counts] = 0\n    total ="
)


@right
def row_by_row(loss_sum, hidden, targets, num_counted=None):
    parts, number = [hidden.sum() * 0], 0
    for rows, theirs in zip(hidden, targets, strict=True):
        places = (theirs != -100).nonzero().flatten()
        number += len(places)
        parts.append(loss_sum(rows.index_select(0, places), theirs.index_select(0, places)))
    if num_counted is None:
        num_counted = number
    if number > num_counted:
        raise ValueError(f"{number} tokens count here, and {num_counted} in the window")
    return sum(parts) / max(num_counted, 1)


@right
def masked_select(loss_sum, hidden, targets, num_counted=None):
    mask = ~targets.eq(-100)
    rows = hidden.masked_select(mask[..., None]).view(-1, hidden.shape[-1])
    number = mask.sum()
    if num_counted is not None and number > num_counted:
        raise ValueError(f"{num_counted} is less than {number.item()}")
    total: Tensor = loss_sum(rows, targets.masked_select(mask))
    return torch.div(total, (number if num_counted is None else torch.tensor(num_counted)).clamp(1))
