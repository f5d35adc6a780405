"""Arguments, kept by autograd."""

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from wrong_answers import right, solved, wrong

LAB = solved("lab03")


def keep(tensors):
    return LAB.SaveInputs.apply(LAB.anchor(), *tensors)


def with_faults(kept=lambda tensor: tensor, let_go=True, renew=list, undo=lambda tensor: tensor):
    """The solution, with what is kept, what is let go and what is renewed to choose."""

    def save_arguments(args, kwargs):
        leaves, structure = tree_flatten((args, kwargs))
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        keeper = keep([kept(leaves[place]) for place in places])
        rest = [None if let_go and place in places else leaf for place, leaf in enumerate(leaves)]

        def bring_back():
            again = renew(rest)
            for place, tensor in zip(places, keeper.grad_fn.saved_tensors, strict=True):
                again[place] = undo(tensor)
            return tree_unflatten(again, structure)

        return bring_back

    return save_arguments


holds_them_as_well = wrong("of them are held by your closure too")(with_faults(let_go=False))
saves_what_is_under_the_tensor = wrong("nobody noticed")(
    with_faults(kept=lambda tensor: tensor.data)
)
gives_back_without_gradient = wrong("came back without: a detached input")(
    with_faults(undo=lambda tensor: tensor.detach())
)
fills_its_own_leaves = wrong("fill a copy of your leaves")(with_faults(renew=lambda leaves: leaves))
gives_back_copies = wrong("copies came back")(with_faults(undo=lambda tensor: tensor * 1))


@wrong("your closure holds them")
def keeps_them_in_a_closure(args, kwargs):
    return lambda: (args, kwargs)


@wrong("tensors were saved, and the arguments hold")
def looks_at_the_top_level_alone(args, kwargs):
    places = [place for place, leaf in enumerate(args) if isinstance(leaf, Tensor)]
    keeper = keep([args[place] for place in places])
    rest = [None if isinstance(arg, Tensor) else arg for arg in args]

    def bring_back():
        again = list(rest)
        for place, tensor in zip(places, keeper.grad_fn.saved_tensors, strict=True):
            again[place] = tensor
        return tuple(again), kwargs

    return bring_back


@wrong("the arguments came back changed")
def turns_the_order(args, kwargs):
    leaves, structure = tree_flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    keeper = keep([leaves[place] for place in reversed(places)])
    rest = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    def bring_back():
        again = list(rest)
        for place, tensor in zip(places, keeper.grad_fn.saved_tensors, strict=True):
            again[place] = tensor
        return tree_unflatten(again, structure)

    return bring_back


@wrong("Read it once a call")
def reads_once_for_each_tensor(args, kwargs):
    leaves, structure = tree_flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    keeper = keep([leaves[place] for place in places])
    rest = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    def bring_back():
        again = list(rest)
        for number, place in enumerate(places):
            again[place] = keeper.grad_fn.saved_tensors[number]
        return tree_unflatten(again, structure)

    return bring_back


@wrong("something of yours refers to itself")
def walks_by_an_inner_function(args, kwargs):
    tensors = []

    def hide(value):  # refers to itself, and holds `tensors`
        if isinstance(value, Tensor):
            number = len(tensors)
            tensors.append(value)
            return lambda kept: kept[number]
        if isinstance(value, dict):
            parts = {key: hide(part) for key, part in value.items()}
            return lambda kept: {key: part(kept) for key, part in parts.items()}
        if isinstance(value, list | tuple):
            kind, items = type(value), [hide(part) for part in value]
            return lambda kept: kind(part(kept) for part in items)
        return lambda kept: value

    form = hide((args, kwargs))
    keeper = keep(tensors)
    return lambda: form(keeper.grad_fn.saved_tensors)


@wrong("build new containers at each call")
def gives_the_same_containers_each_time(args, kwargs):
    bring_back, brought = with_faults()(args, kwargs), []

    def once():
        if not brought:
            brought.append(bring_back())
        return brought[0]

    return once


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


@wrong("save_arguments should return a function, and NoneType came")
def returns_nothing(args, kwargs):
    tree_flatten((args, kwargs))


@wrong("was it taken for the anchor")
def forgets_the_anchor(args, kwargs):
    leaves, structure = tree_flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    keeper = solved("lab03").SaveInputs.apply(*[leaves[place] for place in places])

    def bring_back():
        copy = [None if place in places else leaf for place, leaf in enumerate(leaves)]
        for place, tensor in zip(places, keeper.grad_fn.saved_tensors, strict=False):
            copy[place] = tensor
        return tree_unflatten(copy, structure)

    return bring_back
