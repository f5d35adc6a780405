"""Arguments, kept by autograd."""

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from solutions.answers import right, solved, wrong

holds_them_as_well = wrong(
    "of them are held by your closure too",
    "    for place in places:\n        leaves[place] = None\n",
    "",
)
saves_what_is_under_the_tensor = wrong(
    "but no error came", "(leaves[place] for", "(leaves[place].data for"
)
gives_back_without_gradient = wrong(
    "came back detached: a detached input", "= tensor\n", "= tensor.detach()\n"
)
fills_its_own_leaves = wrong("fill a copy of your leaves", "list(leaves)", "leaves")
gives_back_copies = wrong("copies came back", "= tensor\n", "= tensor * 1\n")
looks_at_the_top_level_alone = wrong(
    "tensors were saved, and the arguments hold",
    "leaves, structure = tree_flatten((args, kwargs))",
    "leaves = list(args)",
    "tree_unflatten(again, structure)",
    "tuple(again), kwargs",
)
turns_the_order = wrong(
    "the arguments came back changed", "for place in places))", "for place in reversed(places)))"
)
gives_the_same_containers_each_time = wrong(
    "build new containers at each call",
    "    def bring_back",
    "    from functools import cache\n\n    @cache\n    def bring_back",
)
reads_once_for_each_tensor = wrong(
    "Read it once per call",
    "place, tensor in zip(places, keeper.grad_fn.saved_tensors, strict=True)",
    "number, place in enumerate(places)",
    "= tensor\n",
    "= keeper.grad_fn.saved_tensors[number]\n",
)
returns_nothing = wrong(
    "save_arguments should return a function, but NoneType came", "return bring_back", "bring_back"
)
forgets_the_anchor = wrong(
    "was it taken for the anchor", "anchor(), ", "", "strict=True", "strict=False"
)

walks_by_an_inner_function = wrong(
    "something of yours refers to itself",
    "    for place in places:\n        leaves[place] = None\n",
    "    kept = list(leaves)\n\n"
    "    def drop(place):  # refers to itself, and holds `kept`\n"
    "        if place < len(kept):\n"
    "            leaves[place] = None if place in places else kept[place]\n"
    "            drop(place + 1)\n\n"
    "    drop(0)\n",
)


LAB = solved("lab03")


def keep(tensors):
    return LAB.SaveInputs.apply(LAB.anchor(), *tensors)


@wrong("your closure holds them")
def keeps_them_in_a_closure(args, kwargs):
    return lambda: (args, kwargs)


@right
def with_place_holders(args, kwargs):
    tensors = []

    def stand_in(leaf):
        if not isinstance(leaf, Tensor):
            return lambda kept: leaf
        tensors.append(leaf)
        number = len(tensors) - 1
        return lambda kept: kept[number]

    form = tree_map(stand_in, (args, kwargs))
    keeper = keep(tensors)
    tensors.clear()

    def bring_back():
        kept = keeper.grad_fn.saved_tensors
        return tree_map(lambda place: place(kept), form)

    return bring_back


@right
def tensors_and_the_rest_apart(args, kwargs):
    leaves, structure = tree_flatten((args, kwargs))
    is_tensor = [isinstance(leaf, Tensor) for leaf in leaves]
    rest = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
    keeper = keep([leaf for leaf in leaves if isinstance(leaf, Tensor)])
    del leaves

    def bring_back():
        tensors, others = iter(keeper.grad_fn.saved_tensors), iter(rest)
        return tree_unflatten([next(tensors if is_t else others) for is_t in is_tensor], structure)

    return bring_back
