"""Bytes per parameter, by recipe."""

import torch
from torch import nn

from solutions.answers import right, wrong

takes_four_bytes_each = wrong(
    "You counted four bytes for every element",
    "2 * weights.itemsize",
    "8",
    "num_states * weights.itemsize",
    "num_states * 4",
)
forgets_the_gradients = wrong(
    "The gradients are missing", "2 * weights.itemsize", "weights.itemsize"
)
forgets_momentum = wrong("Momentum keeps one tensor", '"momentum": 1', '"momentum": 0')
gives_adam_one_average = wrong("Adam keeps two averages", '"adamw": 2', '"adamw": 1')
keeps_all_states_in_float32 = wrong(
    "You counted float32 state", "num_states * weights.itemsize", "num_states * 4"
)
takes_autocast_for_bfloat16_weights = wrong(
    "Autocast only casts inside an operation",
    "    num_states =",
    "    weights = torch.bfloat16 if autocast else weights\n    num_states =",
)
keeps_the_copies_of_autocast = wrong(
    "You counted autocast's bfloat16 copies",
    "= 2 * weights.itemsize",
    "= 2 * weights.itemsize + 2 * autocast",
)
halves_the_gradients_of_autocast = wrong(
    "The gradients of float32 weights are float32",
    "= 2 * weights.itemsize",
    "= 2 * weights.itemsize - 2 * autocast",
)
forgets_the_copy = wrong("The float32 copy is missing", "4 * (1 + num_states)", "num_states * 2")
keeps_the_state_of_the_copy_in_half = wrong(
    "which dtype does its state have?", "4 * (1 + num_states)", "4 + num_states * 2"
)
keeps_the_gradient_of_the_copy = wrong(
    "You counted the float32 copy's gradient", "4 * (1 + num_states)", "4 * (2 + num_states)"
)
casts_the_gradients_for_good = wrong(
    "You counted float32 gradients", "4 * (1 + num_states)", "2 + 4 * (1 + num_states)"
)


@right
def by_a_table(weights, optimizer, *, autocast=False, master_copy=False):
    copied = {"sgd": 4, "momentum": 8, "adamw": 12}
    plain = {"sgd": 2, "momentum": 3, "adamw": 4}
    if master_copy:
        return 2 * weights.itemsize + copied[optimizer]
    return plain[optimizer] * weights.itemsize


@right
def does_a_step_and_looks(weights, optimizer, *, autocast=False, master_copy=False):
    weight = nn.Parameter(torch.zeros(8, dtype=weights))
    weight.grad = torch.zeros_like(weight)
    stepped = nn.Parameter(weight.detach().float()) if master_copy else weight
    stepped.grad = torch.zeros_like(stepped)
    if optimizer == "adamw":
        real = torch.optim.AdamW([stepped])
    else:
        real = torch.optim.SGD([stepped], momentum=0.9 if optimizer == "momentum" else 0)
    real.step()
    kept = [weight, weight.grad, *([stepped] if master_copy else [])]
    kept += [t for t in real.state[stepped].values() if torch.is_tensor(t) and t.dim()]
    return sum(t.nbytes for t in kept) // 8
