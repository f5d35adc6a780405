"""Answers to 4.2, a tree run on layers."""

from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from tutorial_lib.instruments.segments.execution import Execution
from wrong_answers import right, wrong


def leaves(tree):
    return [leaf for item in tree for leaf in ([item] if isinstance(item, int) else leaves(item))]


def plainly(layers, numbers, x):
    for number in numbers:
        x = layers[number](x)
    return x


@wrong("no layer ran twice")
def ignores_the_tuples(layers, tree, x):
    return plainly(layers, leaves(tree), x)


@wrong("was run as if it were kept")
def goes_down_one_level_only(layers, tree, x):
    for item in tree:
        if isinstance(item, int):
            x = layers[item](x)
        else:
            x = checkpoint(plainly, layers, leaves(item), x, use_reentrant=False)
    return x


@wrong("one checkpoint goes around the whole tuple")
def checkpoints_each_layer_of_a_tuple(layers, tree, x):
    for item in tree:
        for number in [item] if isinstance(item, int) else leaves(item):
            run = layers[number]
            x = run(x) if isinstance(item, int) else checkpoint(run, x, use_reentrant=False)
    return x


@wrong("a number is a stage that is kept, and you checkpoint it too")
def checkpoints_numbers_too(layers, tree, x):
    for item in tree:
        if isinstance(item, int):
            x = checkpoint(layers[item], x, use_reentrant=False)
        else:
            x = checkpoint(checkpoints_numbers_too, layers, item, x, use_reentrant=False)
    return x


@wrong("a reentrant checkpoint then cuts the graph")
def is_reentrant(layers, tree, x):
    for item in tree:
        if isinstance(item, int):
            x = layers[item](x)
        else:
            x = checkpoint(is_reentrant, layers, item, x, use_reentrant=True)
    return x


@wrong("does a segment draw the same random numbers again")
def forgets_the_random_state(layers, tree, x):
    for item in tree:
        if isinstance(item, int):
            x = layers[item](x)
        else:
            segment = partial(forgets_the_random_state, layers, item)
            x = checkpoint(segment, x, use_reentrant=False, preserve_rng_state=False)
    return x


@wrong("does a lambda in the loop look up a name that has moved on")
def looks_the_segment_up_late(layers, tree, x):
    for item in tree:
        if isinstance(item, int):
            x = layers[item](x)
        else:
            x = checkpoint(
                lambda rows: looks_the_segment_up_late(layers, item, rows),  # noqa: B023
                x,
                use_reentrant=False,
            )
    return x


@wrong("what still holds tensors")
def keeps_all_outputs(layers, tree, x):
    outputs = [x]
    for item in tree:
        if isinstance(item, int):
            outputs.append(layers[item](outputs[-1]))
        else:
            segment = partial(keeps_all_outputs, layers, item)
            outputs.append(checkpoint(segment, outputs[-1], use_reentrant=False))
    outputs[-1].grad_fn.metadata["outputs"] = outputs
    return outputs[-1]


@wrong("no gradient came")
def detaches(layers, tree, x):
    with torch.no_grad():
        return plainly(layers, leaves(tree), x)


@wrong("the result is not what the layers give")
def forgets_the_last(layers, tree, x):
    return plainly(layers, leaves(tree)[:-1], x).square().mean()


@wrong("planning.apply runs a tree, and that is what you write")
def takes_the_library(layers, tree, x):
    return Execution.run(None, tree, {})


@right
def with_partials(layers, tree, x):
    for item in tree:
        segment = partial(with_partials, layers, item) if isinstance(item, tuple) else None
        x = checkpoint(segment, x, use_reentrant=False) if segment else layers[item](x)
    return x


class Segment(nn.Module):
    """A tree as a module."""

    def __init__(self, layers, tree):
        super().__init__()
        self.layers, self.tree = layers, tree

    def forward(self, x):
        for item in self.tree:
            if isinstance(item, int):
                x = self.layers[item](x)
            else:
                x = checkpoint(Segment(self.layers, item), x, use_reentrant=False)
        return x


@right
def as_modules(layers, tree, x):
    return Segment(layers, tree)(x)


@right
def without_early_stop(layers, tree, x):
    with set_checkpoint_early_stop(False):
        return Segment(layers, tree)(x)
