"""Answers to 5.5, saved tensors that wait on the host."""

import weakref

import torch
from torch.autograd.graph import saved_tensors_hooks

from solutions.answers import right, wrong

moves_nothing = wrong("nothing was copied to the host", "< min_bytes", "< 10**12")
looks_for_parameters = wrong(
    "parameters were copied too",
    "StorageWeakRef(storage) in resident",
    "isinstance(tensor, torch.nn.Parameter)",
)
moves_everything = wrong("small storages were copied too", " or storage.nbytes() < min_bytes", "")
compares_bytes_of_tensors = wrong(
    "compare `storage.nbytes()`", "storage.nbytes() <", "tensor.nbytes <"
)
holds_no_new_copy = wrong(
    "give a new copy a name",
    "copy = copies[key] =",
    "copies[key] =",
    "return copy,",
    "return copies[key],",
)
gives_the_hooks_alone = wrong(
    "offloading should return a context manager",
    "saved_tensors_hooks(pack, unpack)",
    "pack, unpack",
)
copies_every_tensor = wrong(
    "storages were copied once for each tensor",
    "key = StorageWeakRef(storage), tensor._version",
    "key = object()",
)
goes_by_the_address = wrong(
    "you took two storages for one",
    "key = StorageWeakRef(storage), tensor._version",
    "key = storage.data_ptr()",
)
forgets_writes_in_place = wrong("an earlier copy is stale", ", tensor._version", "")
forgets_the_offset = wrong("size, stride and offset say", "tensor.storage_offset()", "0")
gives_the_tensor_itself = wrong("held by a cycle", "tensor.detach()", "tensor")
copies_into_a_plain_dictionary = wrong(
    "something of yours still holds the copies", "weakref.WeakValueDictionary()", "{}"
)
moves_what_is_larger = wrong("of exactly min_bytes stayed", "< min_bytes", "<= min_bytes")
copies_and_keeps_the_tensor = wrong(
    "the copied tensors were still on the device",
    "*place\n",
    "*place, tensor.detach()\n",
    "packed[1:]",
    "packed[1:5]",
)
takes_out_of_a_table = wrong(
    "unpack must not remove anything",
    "    return saved_tensors_hooks(pack, unpack)",
    "    table = {}\n"
    "\n"
    "    def number(tensor):\n"
    "        table[len(table), id(tensor)] = pack(tensor)\n"
    "        return list(table)[-1]\n"
    "\n"
    "    return saved_tensors_hooks(number, lambda key: unpack(table.pop(key)))",
)
with_the_version_first = right(
    "StorageWeakRef(storage), tensor._version", "tensor._version, StorageWeakRef(storage)"
)


def placed(tensor):
    return tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset()


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
