"""The bytes that autograd saves, layer by layer."""

import math

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from tutorial_lib import memory
from wrong_answers import right, wrong


def tensors(chain, input_shape):
    """Bytes of the chain's tensors: the input, then each layer's output."""
    rows, width = math.prod(input_shape[:-1]), input_shape[-1]
    sizes = [4 * rows * width]
    for layer in chain:
        width = layer.out_features if isinstance(layer, nn.Linear) else width
        sizes.append(4 * rows * width)
    return sizes


def statistics(chain, input_shape):
    return sum(
        8 * math.prod(input_shape[:-1]) for layer in chain if isinstance(layer, nn.LayerNorm)
    )


def wanted_places(chain, by_output=(nn.ReLU,)):
    return [i + 1 if isinstance(layer, by_output) else i for i, layer in enumerate(chain)]


@wrong("It is the number of elements")
def counts_elements(chain, input_shape):
    return from_the_last_to_the_first(chain, input_shape) // 4


@wrong("The input of the first layer is missing")
def leaves_out_the_input(chain, input_shape):
    return from_the_last_to_the_first(chain, input_shape) - tensors(chain, input_shape)[0]


@wrong("A ReLU costs nothing here")
def counts_shared_tensors_twice(chain, input_shape):
    sizes = tensors(chain, input_shape)
    kept = sum(sizes[place] for place in wanted_places(chain))
    return kept + statistics(chain, input_shape)


@wrong("A GELU is no ReLU")
def lets_gelu_keep_its_output(chain, input_shape):
    sizes = tensors(chain, input_shape)
    kept = sum(sizes[place] for place in set(wanted_places(chain, (nn.ReLU, nn.GELU))))
    return kept + statistics(chain, input_shape)


@wrong("LayerNorm keeps two numbers for each row")
def counts_one_statistic(chain, input_shape):
    half = statistics(chain, input_shape) // 2
    return from_the_last_to_the_first(chain, input_shape) - half


@wrong("LayerNorm keeps something beside its input")
def forgets_the_statistics(chain, input_shape):
    sizes = tensors(chain, input_shape)
    return sum(sizes[place] for place in set(wanted_places(chain)))


@wrong("It is the sum of all outputs")
def adds_up_the_outputs(chain, input_shape):
    return sum(tensors(chain, input_shape)[1:])


@wrong("It is the input and all outputs")
def adds_up_everything(chain, input_shape):
    return sum(tensors(chain, input_shape))


@wrong("The weights are in it")
def counts_the_weights(chain, input_shape):
    # autograd refers to a weight where the gradient goes on to an earlier layer
    weights = sum(layer.weight.nbytes for layer in chain[1:] if isinstance(layer, nn.Linear))
    return from_the_last_to_the_first(chain, input_shape) + weights


@wrong("It is what one position of the sequence takes")
def takes_the_batch_for_all_rows(chain, input_shape):
    return from_the_last_to_the_first(chain, (input_shape[0], input_shape[-1]))


@wrong("hooks lie below memory.saved")
def asks_hooks_that_were_imported_before(chain, input_shape):
    storages = set()

    def pack(tensor):
        storages.add(tensor.untyped_storage())
        return tensor.detach()

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        chain(torch.randn(input_shape))
    weights = {parameter.untyped_storage() for parameter in chain.parameters()}
    return sum(storage.nbytes() for storage in storages - weights)


@wrong("memory.saved is the oracle here")
def asks_the_instrument(chain, input_shape):
    return memory.saved(lambda: chain(torch.randn(input_shape)), params_of=chain).num_bytes


@right
def from_the_last_to_the_first(chain, input_shape):
    sizes = tensors(chain, input_shape)
    total = statistics(chain, input_shape)
    needed = False  # by the layer after this one
    for place in range(len(chain) - 1, -1, -1):
        keeps_output = isinstance(chain[place], nn.ReLU)
        total += sizes[place + 1] if needed or keeps_output else 0
        needed = not keeps_output
    return total + (sizes[0] if needed else 0)


@right
def runs_the_layers(chain, input_shape):
    x, kept = torch.zeros(input_shape), {}
    for layer in chain:
        y = layer(x)
        held = y if isinstance(layer, nn.ReLU) else x
        kept[id(held)] = held
        if isinstance(layer, nn.LayerNorm):
            for statistic in (x.mean(-1), x.var(-1)):
                kept[id(statistic)] = statistic
        x = y
    return sum(tensor.nbytes for tensor in kept.values())
