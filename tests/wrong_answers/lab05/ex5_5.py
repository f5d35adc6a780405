"""Answers to 5.5, saved tensors that wait on the host."""

import weakref

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from wrong_answers import right, wrong


def by_key(tensor):
    return StorageWeakRef(tensor.untyped_storage()), tensor._version


def placed(tensor):
    return tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset()


def whole_bytes(tensor):
    return tensor.untyped_storage().nbytes()


def offload(host, model, min_bytes, *, key=by_key, place=placed, stays=torch.Tensor.detach,
            copies=None, is_resident=None, size=whole_bytes):  # fmt: skip
    """The right hooks where no word is given."""
    copies = weakref.WeakValueDictionary() if copies is None else copies
    resident = {StorageWeakRef(p.untyped_storage()) for p in model.parameters()}

    def pack(tensor):
        storage = tensor.untyped_storage()
        is_one = is_resident(tensor) if is_resident else StorageWeakRef(storage) in resident
        if is_one or size(tensor) < min_bytes:
            return stays(tensor)
        copy = copies.get(key(tensor))
        if copy is None:
            copy = copies[key(tensor)] = host.put(tensor)
        return copy, place(tensor)

    def unpack(packed):
        return packed if isinstance(packed, torch.Tensor) else packed[0].get(*packed[1])

    return saved_tensors_hooks(pack, unpack)


@wrong("nothing was copied to the host")
def moves_nothing(host, model, min_bytes):
    return offload(host, model, 10**12)


@wrong("parameters were copied too")
def looks_for_parameters(host, model, min_bytes):
    def is_parameter(tensor):
        return isinstance(tensor, nn.Parameter)

    return offload(host, model, min_bytes, is_resident=is_parameter)


@wrong("small storages were copied too")
def moves_everything(host, model, min_bytes):
    return offload(host, model, 0)


@wrong("compare `storage.nbytes()`")
def compares_bytes_of_tensors(host, model, min_bytes):
    return offload(host, model, min_bytes, size=lambda tensor: tensor.nbytes)


@wrong("give a new copy a name")
def holds_no_new_copy(host, model, min_bytes):
    copies = weakref.WeakValueDictionary()

    def pack(tensor):
        if by_key(tensor) not in copies:
            copies[by_key(tensor)] = host.put(tensor)
        return copies[by_key(tensor)], placed(tensor)

    return saved_tensors_hooks(pack, lambda packed: packed[0].get(*packed[1]))


@wrong("offloading should return a context manager")
def gives_the_hooks_alone(host, model, min_bytes):
    hooks = offload(host, model, min_bytes)
    return hooks.pack_hook, hooks.unpack_hook


@wrong("storages were copied once for each tensor")
def copies_every_tensor(host, model, min_bytes):
    return offload(host, model, min_bytes, key=lambda tensor: object())


@wrong("two storages went for one")
def goes_by_the_address(host, model, min_bytes):
    return offload(host, model, min_bytes, key=lambda tensor: tensor.untyped_storage().data_ptr())


@wrong("the copy of an earlier filling is stale")
def forgets_writes_in_place(host, model, min_bytes):
    return offload(host, model, min_bytes, key=lambda t: StorageWeakRef(t.untyped_storage()))


@wrong("size, stride and offset say")
def forgets_the_offset(host, model, min_bytes):
    return offload(host, model, min_bytes, place=lambda tensor: (*placed(tensor)[:3], 0))


@wrong("held by a cycle")
def gives_the_tensor_itself(host, model, min_bytes):
    return offload(host, model, min_bytes, stays=lambda tensor: tensor)


@wrong("something of yours still holds the copies")
def copies_into_a_plain_dictionary(host, model, min_bytes):
    return offload(host, model, min_bytes, copies={})


@wrong("of exactly min_bytes stayed")
def moves_what_is_larger(host, model, min_bytes):
    return offload(host, model, min_bytes + 1)


@wrong("the copied tensors were still on the device")
def copies_and_keeps_the_tensor(host, model, min_bytes):
    hooks = offload(host, model, min_bytes)

    def pack(tensor):
        return tensor.detach(), hooks.pack_hook(tensor)

    return saved_tensors_hooks(pack, lambda packed: packed[0])


@wrong("unpack must use nothing up")
def takes_out_of_a_table(host, model, min_bytes):
    table, hooks = {}, offload(host, model, min_bytes)
    pack, unpack = hooks.pack_hook, hooks.unpack_hook

    def number(tensor):
        table[len(table), id(tensor)] = pack(tensor)
        return list(table)[-1]

    return saved_tensors_hooks(number, lambda key: unpack(table.pop(key)))


@right
def with_every_word_right(host, model, min_bytes):
    return offload(host, model, min_bytes)


@right
class Offload:
    """A context manager of its own; a storage is known by a weak reference to it."""

    def __init__(self, host, model, min_bytes):
        self.host, self.min_bytes = host, min_bytes
        self.parameters = {p.data_ptr() for p in model.parameters()}
        self.copies = []

    def pack(self, tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self.parameters or storage.nbytes() < self.min_bytes:
            return tensor.detach()
        for known, version, copy in self.copies:
            if known() is storage and version == tensor._version and copy() is not None:
                return copy(), placed(tensor)
        copy = self.host.put(tensor)
        self.copies.append((weakref.ref(storage), tensor._version, weakref.ref(copy)))
        return copy, placed(tensor)

    def unpack(self, packed):
        return packed if isinstance(packed, torch.Tensor) else packed[0].get(*packed[1])

    def __enter__(self):
        self.hooks = saved_tensors_hooks(self.pack, self.unpack)
        self.hooks.__enter__()

    def __exit__(self, *error):
        self.hooks.__exit__(*error)
