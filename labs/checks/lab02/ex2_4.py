"""The check of 2.4: the bytes that autograd saves."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from tutorial_lib import memory
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Exercise, Result, expect, fact, read

from . import given


def _cases(draw: Draw) -> Cases:
    yield {"kind": "picker", "width": draw.randint(20, 40), "rows": draw.randint(30, 60)}
    yield {"kind": "gpt", "width": 4 * draw.randint(6, 10), "rows": draw.randint(3, 6)}


def _saved(case: Case) -> int:
    model, forward = given.make_forward(case)
    return memory.saved(forward, params_of=model).num_bytes


def _judge(case: Case, result: Result, saved: int) -> None:
    name = f"activation_bytes of a {case['kind']}"
    expect.number_of_bytes(result["bytes"], saved, name, _faults(case, saved))
    fact(
        not read.flag(result, "went_backward"),
        f"{name}: right, and parameters have gradients now. What autograd keeps is known when "
        "forward is over: run no backward.",
    )
    left_behind = read.integer(result["left_behind"], "bytes left behind")
    fact(
        left_behind == 0,
        f"{name}: right, and {left_behind:,} bytes were left behind. Either something outside "
        "your function holds the output or what was saved; or the pack hook returns the tensor "
        "itself, and the graph holds a tensor which holds the graph: return what has none.",
    )


def _faults(case: Case, saved: int) -> expect.Faults:
    model, forward = given.make_forward(case)
    parameters, there = [*model.parameters()], [*model.parameters(), *model.buffers()]
    packed: list[Tensor] = []
    ids: list[int] = []  # of what was packed, which may die
    outputs: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        ids.append(id(tensor))
        packed.append(tensor.detach())
        return packed[-1]

    def storages_but_for(known: Sequence[Tensor]) -> set[torch.UntypedStorage]:
        listed = set(map(id, known))
        return _storages(t for i, t in zip(ids, packed, strict=True) if i not in listed)

    for module in model.modules():
        module.register_forward_hook(lambda module, args, out: outputs.append(out.nbytes))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    resident, buffers = _storages(there), _storages(model.buffers())
    own = [t for t in packed if t.untyped_storage() not in resident]
    first_views = {t.untyped_storage(): t.nbytes for t in reversed(own)}
    unsaved = buffers - _storages(model.state_dict().values())
    yield from {
        "It is the number of elements: ask each storage for its bytes.": saved // 4,
        "Parameters and buffers are in it: they lie there whether autograd refers to them or "
        "not.": _total(_storages(packed)),
        "Buffers are in it: they lie there anyhow, as the parameters do.": saved
        + _total(_storages(packed) & buffers),
        "A buffer is in it that state_dict() leaves out: model.buffers() has all.": saved
        + _total(_storages(packed) & unsaved),
        "What is saved twice is in it twice: remember which storages you have met.": sum(
            t.untyped_storage().nbytes() for t in own
        ),
        "It adds up tensors: two views of one storage share its bytes.": sum(t.nbytes for t in own),
        "It is what the saved tensors show: a view keeps its whole storage alive.": sum(
            first_views.values()
        ),
        "Weights are in it: what is saved of a Linear is a transposed view, another tensor with "
        "the same storage. Compare storages.": _total(storages_but_for(there)),
        "Weights and buffers are in it: what is saved of a Linear is a transposed view, another "
        "tensor with the same storage. Compare storages.": _total(storages_but_for(parameters)),
        "It is the outputs of all modules: not what autograd keeps of them.": sum(outputs),
    }.items()


def _storages(tensors: Iterable[Tensor]) -> set[torch.UntypedStorage]:
    return {tensor.untyped_storage() for tensor in tensors}


def _total(storages: Iterable[torch.UntypedStorage]) -> int:
    return sum(storage.nbytes() for storage in storages)


activation_bytes = Exercise(
    run=given.activation_bytes,
    passed="equal to memory.saved, with views, shared storages and buffers, and nothing left alive",
    cases=_cases,
    judge=_judge,
    oracle=_saved,
)
