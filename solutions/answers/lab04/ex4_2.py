"""Answers to 4.2, a tree run on layers."""

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from solutions.answers import right, wrong
from tutorial_lib.instruments.segments.execution import Execution

ignores_the_tuples = wrong(
    "no layer ran twice",
    "checkpoint(run_tree, layers, item, x, use_reentrant=False)",
    "run_tree(layers, item, x)",
)
checkpoints_each_layer_of_a_tuple = wrong(
    "one checkpoint goes around the whole tuple",
    "            x = checkpoint(run_tree, layers, item, x, use_reentrant=False)",
    "            for one in item:\n"
    "                if isinstance(one, int):\n"
    "                    x = checkpoint(layers[one], x, use_reentrant=False)\n"
    "                else:\n"
    "                    x = run_tree(layers, (one,), x)",
)
checkpoints_numbers_too = wrong(
    "a number is a stage that is kept, but you checkpoint it too",
    "layers[item](x)",
    "checkpoint(layers[item], x, use_reentrant=False)",
)
is_reentrant = wrong(
    "a reentrant checkpoint then cuts the graph", "use_reentrant=False", "use_reentrant=True"
)
forgets_the_random_state = wrong(
    "does a segment draw the same random numbers again",
    "use_reentrant=False",
    "use_reentrant=False, preserve_rng_state=False",
)
looks_the_segment_up_late = wrong(
    "does a lambda in the loop look up a variable",
    "run_tree, layers, item, x",
    "lambda rows: run_tree(layers, item, rows), x",
)
detaches = wrong("no gradient came", "layers[item](x)", "layers[item](x).detach()")
with_partials = right(
    "    for item",
    "    from functools import partial\n\n    for item",
    "run_tree, layers, item,",
    "partial(run_tree, layers, item),",
)


def leaves(tree):
    return [leaf for item in tree for leaf in ([item] if isinstance(item, int) else leaves(item))]


def plainly(layers, numbers, x):
    for number in numbers:
        x = layers[number](x)
    return x


@wrong("a segment inside a segment was kept")
def goes_down_one_level_only(layers, tree, x):
    for item in tree:
        if isinstance(item, int):
            x = layers[item](x)
        else:
            x = checkpoint(plainly, layers, leaves(item), x, use_reentrant=False)
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


@wrong("the result is not what the layers give")
def forgets_the_last(layers, tree, x):
    return plainly(layers, leaves(tree)[:-1], x).square().mean()


@wrong("planning.apply runs a tree, and that is what you write")
def takes_the_library(layers, tree, x):
    return Execution.run(None, tree, {})


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
