"""Bytes per parameter, by recipe."""

import torch
from torch import nn

from wrong_answers import right, wrong

STATES = {"sgd": 0, "momentum": 1, "adamw": 2}


@wrong("It is what four bytes for every element give")
def takes_four_bytes_each(weights, optimizer, *, autocast=False, master_copy=False):
    return 4 * (2 + STATES[optimizer]) + (4 if master_copy else 0)


@wrong("The gradients are missing")
def forgets_the_gradients(weights, optimizer, *, autocast=False, master_copy=False):
    copied = 4 if master_copy else 0
    return weights.itemsize + STATES[optimizer] * (copied or weights.itemsize) + copied


@wrong("Momentum keeps one tensor")
def forgets_momentum(weights, optimizer, *, autocast=False, master_copy=False):
    if optimizer == "momentum":
        optimizer = "sgd"
    return by_a_table(weights, optimizer, autocast=autocast, master_copy=master_copy)


@wrong("Adam keeps two averages")
def gives_adam_one_average(weights, optimizer, *, autocast=False, master_copy=False):
    if optimizer == "adamw":
        optimizer = "momentum"
    return by_a_table(weights, optimizer, autocast=autocast, master_copy=master_copy)


@wrong("It is what float32 state takes")
def keeps_all_states_in_float32(weights, optimizer, *, autocast=False, master_copy=False):
    return 2 * weights.itemsize + 4 * STATES[optimizer] + (4 if master_copy else 0)


@wrong("Autocast casts inside the operations")
def takes_autocast_for_bfloat16_weights(weights, optimizer, *, autocast=False, master_copy=False):
    weights = torch.bfloat16 if autocast else weights
    return by_a_table(weights, optimizer, master_copy=master_copy)


@wrong("Autocast's bfloat16 copies of the weights are gone")
def keeps_the_copies_of_autocast(weights, optimizer, *, autocast=False, master_copy=False):
    return by_a_table(weights, optimizer, master_copy=master_copy) + (2 if autocast else 0)


@wrong("The gradients of float32 weights are float32")
def halves_the_gradients_of_autocast(weights, optimizer, *, autocast=False, master_copy=False):
    return by_a_table(weights, optimizer, master_copy=master_copy) - (2 if autocast else 0)


@wrong("The float32 copy is missing")
def forgets_the_copy(weights, optimizer, *, autocast=False, master_copy=False):
    return by_a_table(weights, optimizer)


@wrong("what dtype has the state that it keeps?")
def keeps_the_state_of_the_copy_in_half(weights, optimizer, *, autocast=False, master_copy=False):
    return by_a_table(weights, optimizer) + (4 if master_copy else 0)


@wrong("The copy's own gradient is in it")
def keeps_the_gradient_of_the_copy(weights, optimizer, *, autocast=False, master_copy=False):
    total = by_a_table(weights, optimizer, master_copy=master_copy)
    return total + (4 if master_copy else 0)


@wrong("Float32 gradients are in it")
def casts_the_gradients_for_good(weights, optimizer, *, autocast=False, master_copy=False):
    total = by_a_table(weights, optimizer, master_copy=master_copy)
    return total + (2 if master_copy else 0)


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
