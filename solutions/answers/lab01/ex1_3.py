"""The bytes that autograd saves, layer by layer."""

import math

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from solutions.answers import right, wrong
from tutorial_lib import memory

counts_elements = wrong("It is the number of elements", "return 4 * ", "return ")
leaves_out_the_input = wrong(
    "The input of the first layer is missing", "in kept)", "in kept) - num_rows * widths[0]"
)
counts_shared_tensors_twice = wrong(
    "A ReLU costs nothing here", "set(), 0", "[], 0", "kept.add(", "kept.append("
)
lets_gelu_keep_its_output = wrong(
    "A GELU isn't like a ReLU", "isinstance(layer, nn.ReLU)", "isinstance(layer, nn.ReLU | nn.GELU)"
)
counts_one_statistic = wrong("LayerNorm keeps two numbers per row", "2 * num_rows", "num_rows")
counts_statistics_of_features = wrong(
    "LayerNorm's two numbers per feature",
    "2 * num_rows if isinstance",
    "2 * widths[-1] if isinstance",
)
forgets_the_statistics = wrong("LayerNorm keeps more than its input", " + statistics)", ")")
adds_up_the_outputs = wrong(
    "It is the sum of all outputs",
    "sum(widths[place] for place in kept) + statistics",
    "sum(widths[1:])",
)
adds_up_everything = wrong(
    "It is the input and all outputs",
    "sum(widths[place] for place in kept) + statistics",
    "sum(widths)",
)
counts_the_weights = wrong(
    "includes the weights",
    "    return 4 * (",
    "    # autograd refers to a weight where the gradient goes on to an earlier layer\n"
    "    weights = [layer.weight for layer in chain[1:] if isinstance(layer, nn.Linear)]\n"
    "    return sum(weight.nbytes for weight in weights) + 4 * (",
)
takes_the_batch_for_all_rows = wrong(
    "It is what one position of the sequence takes", "torch.Size(positions).numel()", "positions[0]"
)


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


@wrong("memory.saved, the oracle here, uses autograd's hooks")
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
