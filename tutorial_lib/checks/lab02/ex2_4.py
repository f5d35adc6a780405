"""The check of 2.4: the bytes that autograd saves."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from tutorial_lib import memory
from tutorial_lib.checks.core import Answer, Case, Check, CheckError, Result
from tutorial_lib.checks.lab02 import machine
from tutorial_lib.checks.lab02.steps import Picker
from tutorial_lib.checks.vocabulary import expect, read
from tutorial_lib.models.gpt import GPT, GPTConfig


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    picker = {"kind": "picker", "width": draw.randint(20, 40), "rows": draw.randint(30, 60)}
    gpt = {"kind": "gpt", "width": 4 * draw.randint(6, 10), "rows": draw.randint(3, 6)}
    return [picker, gpt]


def _forward(case: Case) -> tuple[nn.Module, Callable[[], Tensor]]:
    width, rows = case["width"], case["rows"]
    if case["kind"] == "picker":
        picker, x = Picker(width), torch.randn(rows, width)
        return picker, lambda: picker(x).sum()
    sizes = {"vocab_size": 96, "seq_len": 24, "num_layers": 2, "num_heads": 4, "d_model": width}
    gpt = GPT(GPTConfig(**sizes, attention="sdpa"))
    tokens = torch.randint(0, 96, (rows, 24))
    return gpt, lambda: gpt.loss(tokens)


def _run(answer: Answer, case: Case) -> Result:
    model, forward = _forward(case)
    with machine.PretendGPU(model) as gpu:
        forward()  # makes the inputs known
        before = gpu.memory_allocated()
        with machine.without_instruments():
            num_bytes = answer(forward, model)
        gc.collect()
        went_backward = any(parameter.grad is not None for parameter in model.parameters())
        left_behind = gpu.memory_allocated() - before
    return {"bytes": num_bytes, "left_behind": left_behind, "went_backward": went_backward}


def _saved(case: Case) -> int:
    model, forward = _forward(case)
    return memory.saved(forward, params_of=model).num_bytes


def _judge(case: Case, result: Result, saved: int) -> None:
    name = f"activation_bytes of a {case['kind']}"
    expect.number_of_bytes(result.get("bytes"), saved, name, _faults(case, saved))
    if read.flag(result, "went_backward"):
        raise CheckError(
            f"{name}: right, and parameters have gradients now. What autograd keeps is known when "
            "forward is over: run no backward."
        )
    left_behind = read.integer(result.get("left_behind"), "bytes left behind")
    if left_behind:
        raise CheckError(
            f"{name}: right, and {left_behind:,} bytes were left behind. Either something outside "
            "your function holds the output or what was saved; or the pack hook returns the tensor "
            "itself, and the graph holds a tensor which holds the graph: return what has none."
        )


def _faults(case: Case, saved: int) -> expect.Faults:
    """Log every tensor that is packed."""
    model, forward = _forward(case)
    there = [*model.parameters(), *model.buffers()]
    packed: list[Tensor] = []
    unlisted: list[Tensor] = []
    disguised: list[Tensor] = []
    outputs: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor.detach())
        if not any(tensor is other for other in there):
            unlisted.append(packed[-1])
        if not any(tensor is other for other in model.parameters()):
            disguised.append(packed[-1])
        return packed[-1]

    for module in model.modules():
        module.register_forward_hook(lambda module, args, out: outputs.append(out.nbytes))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    resident = {t.untyped_storage() for t in there}
    buffers = {b.untyped_storage() for b in model.buffers()}
    persistent = {t.untyped_storage() for t in model.state_dict().values()}
    own = [t for t in packed if t.untyped_storage() not in resident]
    first_views = {t.untyped_storage(): t.nbytes for t in reversed(own)}
    yield from {
        "It is the number of elements: ask each storage for its bytes.": saved // 4,
        "Parameters and buffers are in it: they lie there whether autograd refers to them or "
        "not.": _storage_bytes(packed),
        "Buffers are in it: they lie there anyhow, as the parameters do.": saved
        + _storage_bytes(t for t in packed if t.untyped_storage() in buffers),
        "A buffer is in it that state_dict() leaves out: model.buffers() has all.": saved
        + _storage_bytes(t for t in packed if t.untyped_storage() in buffers - persistent),
        "What is saved twice is in it twice: remember which storages you have met.": sum(
            t.untyped_storage().nbytes() for t in own
        ),
        "It adds up tensors: two views of one storage share its bytes.": sum(t.nbytes for t in own),
        "It is what the saved tensors show: a view keeps its whole storage alive.": sum(
            first_views.values()
        ),
        "Weights are in it: what is saved of a Linear is a transposed view, another tensor with "
        "the same storage. Compare storages.": _storage_bytes(unlisted),
        "Weights and buffers are in it: what is saved of a Linear is a transposed view, another "
        "tensor with the same storage. Compare storages.": _storage_bytes(disguised),
        "It is the outputs of all modules: not what autograd keeps of them.": sum(outputs),
    }.items()


def _storage_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(storage.nbytes() for storage in {t.untyped_storage() for t in tensors})


activation_bytes = Check(
    "lab02.activation_bytes",
    "2.4",
    "equal to memory.saved, with views, shared storages and buffers, and no knot left",
    _cases,
    _run,
    _judge,
    oracle=_saved,
    forbidden=machine.NO_INSTRUMENTS,
)
