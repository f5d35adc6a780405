"""The bytes that autograd saves, by hooks."""

import torch

from solutions.answers import right, wrong
from tutorial_lib import memory

counts_everything = wrong("You counted parameters and buffers", "saved - resident", "saved")
forgets_the_buffers = wrong(
    "You counted buffers:", "[*model.parameters(), *model.buffers()]", "model.parameters()"
)
counts_a_storage_each_time = wrong(
    "You counted twice what is saved twice",
    "set()",
    "[]",
    "saved.add(",
    "saved.append(",
    "saved - resident",
    "saved if storage not in resident",
)
compares_tensors_and_not_storages = wrong(
    "You counted weights: what a Linear saves",
    "t.untyped_storage() for t",
    "id(t) for t",
    "saved.add(",
    "id(tensor) in resident or saved.add(",
    " - resident",
    "",
)
compares_with_parameters_alone = wrong(
    "You counted weights and buffers",
    "t.untyped_storage() for t in [*model.parameters(), *model.buffers()]",
    "id(parameter) for parameter in model.parameters()",
    "saved.add(",
    "id(tensor) in resident or saved.add(",
    " - resident",
    "",
)
counts_elements = wrong(
    "It is the number of elements", "saved - resident)", "saved - resident) // 4"
)
takes_the_state_dict_for_all = wrong(
    "that state_dict() leaves out",
    "[*model.parameters(), *model.buffers()]",
    "model.state_dict().values()",
)
goes_backward = wrong("run no backward", "        forward()", "        forward().backward()")
remembers_addresses_alone = wrong(
    "what was saved is freed before forward is over",
    "saved = set()",
    "saved = {}",
    "saved.add(tensor.untyped_storage())",
    "storage = tensor.untyped_storage()\n"
    "        saved[storage.data_ptr()] = storage.nbytes() if storage not in resident else 0",
    "return tensor.detach()",
    "return tensor.shape",
    "sum(storage.nbytes() for storage in saved - resident)",
    "sum(saved.values())",
)
takes_tensors_for_storages = wrong(
    "once for each tensor object",
    "t.untyped_storage() for t",
    "t for t",
    "saved.add(tensor.untyped_storage())",
    "saved.add(tensor)",
    "storage.nbytes() for",
    "storage.untyped_storage().nbytes() for",
)
compares_where_tensors_begin = wrong(
    "once for each data_ptr of a tensor",
    "t.untyped_storage() for t",
    "t.data_ptr() for t",
    "saved = set()",
    "saved = {}",
    "saved.add(tensor.untyped_storage())",
    "saved[tensor.data_ptr()] = tensor.untyped_storage()",
    "storage.nbytes() for storage in saved - resident",
    "saved[place].nbytes() for place in saved.keys() - resident",
)
ties_a_knot = wrong("bytes were left behind. Something", "tensor.detach()", "tensor")


def saved_by(forward):
    """List aliases of all tensors that autograd saves, in order."""
    packed = []

    def pack(tensor):
        packed.append(tensor.detach())
        return packed[-1]

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return packed


def storages(tensors):
    return {tensor.untyped_storage() for tensor in tensors}


@wrong("It adds up tensors")
def adds_up_tensors(forward, model):
    resident = storages([*model.parameters(), *model.buffers()])
    found = saved_by(forward)
    return sum(t.nbytes for t in found if t.untyped_storage() not in resident)


@wrong("a view keeps its whole storage alive")
def counts_what_the_views_show(forward, model):
    resident = storages([*model.parameters(), *model.buffers()])
    shown = {}
    for tensor in saved_by(forward):
        shown.setdefault(tensor.untyped_storage(), tensor.nbytes)
    return sum(size for storage, size in shown.items() if storage not in resident)


@wrong("You added up all modules' outputs")
def adds_up_the_outputs_of_modules(forward, model):
    sizes = []
    hooks = [
        module.register_forward_hook(lambda module, args, out: sizes.append(out.nbytes))
        for module in model.modules()
    ]
    forward()
    for hook in hooks:
        hook.remove()
    return sum(sizes)


@wrong("memory.saved is the oracle")
def asks_the_instrument(forward, model):
    return memory.saved(forward, params_of=model).num_bytes


@wrong("memory.predict and memory.capped count as the oracle does")
def asks_the_meter(forward, model):
    return memory.measure(lambda: forward().backward(), model=model).at_peak["activations"]


@right
def by_their_addresses(forward, model):
    resident = {s.data_ptr() for s in storages([*model.parameters(), *model.buffers()])}
    found = {s.data_ptr(): s.nbytes() for s in storages(saved_by(forward))}
    return sum(size for address, size in found.items() if address not in resident)


@right
def by_addresses_that_the_graph_holds(forward, model):
    sizes = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    for tensor in (*model.parameters(), *model.buffers()):
        sizes.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(sizes.values())


@right
def with_a_list_of_what_was_met(forward, model):
    met = [t.untyped_storage() for t in [*model.parameters(), *model.buffers()]]
    num_bytes = 0
    for tensor in saved_by(forward):
        storage = tensor.untyped_storage()
        if not any(storage is other for other in met):
            met.append(storage)
            num_bytes += storage.nbytes()
    return num_bytes
