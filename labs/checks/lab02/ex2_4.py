"""The check of 2.4: the bytes that autograd saves."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from tutorial_lib import memory
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, check, expect, read

from . import given

_PASSED = "equal to memory.saved, with views, shared storages and buffers, and nothing left alive"


def _cases(draw: Draw) -> Cases:
    rows = 2 * draw.randint(20, 30) + 1  # no multiple of the width: then faults are told apart
    yield {"kind": "picker", "width": draw.randint(20, 40), "rows": rows}
    yield {"kind": "gpt", "width": 4 * draw.randint(6, 10), "rows": draw.randint(3, 6)}


def _saved(case: Case) -> int:
    model, forward = given.make_forward(case)
    return memory.saved(forward, params_of=model).num_bytes


@check(given.activation_bytes, _PASSED, _cases, oracle=_saved)
def activation_bytes(case: Case, result: Result, saved: int) -> None:
    name = f"activation_bytes of a {case['kind']}"
    expect.fact(
        read.integer(result["held"], "bytes held") >= saved
        or read.integer(result["bytes"], name) > saved,
        f"{name}: what was saved is gone before forward is over, since neither your function nor "
        "what pack returns holds it. Its address, and the id of its storage, then come again with "
        "another tensor. Keep the storages themselves, or return tensor.detach() from pack.",
    )
    expect.number_of_bytes(result["bytes"], saved, name, _faults(case, saved))
    left_behind = read.integer(result["left_behind"], "bytes left behind")
    faults = {
        f"{name}: right, and parameters have gradients now. What autograd keeps is known when "
        "forward is over: run no backward.": read.flag(result, "went_backward"),
        f"{name}: right, and {left_behind:,} bytes were left behind. Either something outside "
        "your function holds the output or what was saved; or the pack hook returns the tensor "
        "itself, and the graph holds a tensor which holds the graph: return what has "
        "none.": left_behind != 0,
    }
    expect.no_fault(faults)


def _faults(case: Case, saved: int) -> expect.Faults:
    model, forward = given.make_forward(case)
    parameters, there = [*model.parameters()], [*model.parameters(), *model.buffers()]
    held: list[Tensor] = []  # what was packed, so that no id comes again
    outputs: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        held.append(tensor)
        return tensor.detach()

    def but_for(known: Sequence[Tensor], key: Callable[[Tensor], int] = id) -> list[Tensor]:
        """List what was packed and is none of the known tensors, once for each key."""
        listed = set(map(key, known))
        return [*{key(t): t for t in held if key(t) not in listed}.values()]

    for module in model.modules():
        module.register_forward_hook(lambda module, args, out: outputs.append(out.nbytes))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    resident, packed, buffers = _storages(there), _storages(held), _storages(model.buffers())
    own = [t for t in held if t.untyped_storage() not in resident]
    first_views = {t.untyped_storage(): t.nbytes for t in reversed(own)}
    unsaved = buffers - _storages(model.state_dict().values())
    yield from {
        "It is the number of elements: ask each storage for its bytes.": saved // 4,
        "Parameters and buffers are in it: they lie there whether autograd refers to them or "
        "not.": _total(packed),
        "Buffers are in it: they lie there anyhow, as the parameters do.": saved
        + _total(packed & buffers),
        "A buffer is in it that state_dict() leaves out: model.buffers() has all.": saved
        + _total(packed & unsaved),
        "What is saved twice is in it twice: remember which storages you have met.": _whole(own),
        "It adds up tensors: two views of one storage share its bytes.": sum(t.nbytes for t in own),
        "It is what the saved tensors show: a view keeps its whole storage alive.": sum(
            first_views.values()
        ),
        "Weights are in it: what is saved of a Linear is a transposed view, another tensor with "
        "the same storage. Compare storages.": _total(_storages(but_for(there))),
        "Weights and buffers are in it: what is saved of a Linear is a transposed view, another "
        "tensor with the same storage. Compare storages.": _total(_storages(but_for(parameters))),
        "A storage is in it once for each tensor object: two views of one memory, or a weight and "
        "its transpose, are two objects. Compare storages.": _whole(but_for(there)),
        "A storage is in it once for each data_ptr of a tensor: a view of its second half begins "
        "elsewhere. Compare storages.": _whole(but_for(there, Tensor.data_ptr)),
        "It is the outputs of all modules: not what autograd keeps of them.": sum(outputs),
    }.items()


def _storages(tensors: Iterable[Tensor]) -> set[torch.UntypedStorage]:
    return {tensor.untyped_storage() for tensor in tensors}


def _whole(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def _total(storages: Iterable[torch.UntypedStorage]) -> int:
    return sum(storage.nbytes() for storage in storages)
