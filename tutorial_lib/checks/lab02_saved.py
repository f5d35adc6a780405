"""The check of lab 02 that counts what autograd saves."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib import memory
from tutorial_lib.checks import lab02_oracles as oracles
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.lab02_machine import PretendGPU
from tutorial_lib.checks.lab02_steps import Picker
from tutorial_lib.checks.results import expect_bytes, flag, whole_number
from tutorial_lib.models.gpt import GPT, GPTConfig


def _saving_cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    picker = {"kind": "picker", "width": draw.randint(20, 40), "rows": draw.randint(30, 60)}
    gpt = {"kind": "gpt", "width": 4 * draw.randint(6, 10), "rows": draw.randint(3, 6)}
    return [picker, gpt | {"attention": "sdpa"}, gpt | {"attention": "eager"}]


def _make_saving(case: Case) -> tuple[nn.Module, Callable[[], Tensor]]:
    width, rows = case["width"], case["rows"]
    if case["kind"] == "picker":
        picker, x = Picker(width), torch.randn(rows, width)
        return picker, lambda: picker(x).sum()
    sizes = {"vocab_size": 96, "seq_len": 24, "num_layers": 2, "num_heads": 4, "d_model": width}
    gpt = GPT(GPTConfig(**sizes, attention=case["attention"]))
    tokens = torch.randint(0, 96, (rows, 24))
    return gpt, lambda: gpt.loss(tokens)


def _run_saving(answer: Callable[..., Any], case: Case) -> Result:
    model, forward = _make_saving(case)
    with PretendGPU(model) as gpu:
        forward()  # makes the inputs known
        before = gpu.memory_allocated()
        with oracles.by_hand():
            num_bytes = answer(forward, model)
        gc.collect()
        went_backward = any(parameter.grad is not None for parameter in model.parameters())
        tangled = gpu.memory_allocated() - before
    return {"bytes": num_bytes, "tangled": tangled, "went_backward": went_backward}


def _judge_saving(case: Case, result: Result) -> None:
    model, forward = _make_saving(case)
    wanted = memory.saved(forward, params_of=model).num_bytes
    name = f"activation_bytes of {case.get('attention', 'a')} {case['kind']}"
    expect_bytes(result.get("bytes"), wanted, name, _saving_slips(case, wanted))
    if flag(result, "went_backward"):
        raise CheckError(
            f"{name}: right, and parameters have gradients now. What autograd keeps is known when "
            "forward is over: run no backward."
        )
    tangled = whole_number(result.get("tangled"), "bytes left behind")
    if tangled:
        raise CheckError(
            f"{name}: right, and {tangled:,} bytes were left behind. Either something outside your "
            "function holds the output or what was saved; or the pack hook returns the tensor "
            "itself, and the graph holds a tensor which holds the graph: return what has none."
        )


def _saving_slips(case: Case, wanted: int) -> Mapping[str, int]:
    """Log every tensor that is packed; give what each careless way of adding them up comes to."""
    model, forward = _make_saving(case)
    there = [*model.parameters(), *model.buffers()]
    packed: list[Tensor] = []
    strangers: list[Tensor] = []
    outputs: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor.detach())
        if not any(tensor is other for other in there):
            strangers.append(packed[-1])
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
    return {
        "It is the number of elements: ask each storage for its bytes.": wanted // 4,
        "Parameters and buffers are in it: they lie there whether autograd refers to them or "
        "not.": _storage_bytes(packed),
        "Buffers are in it: they lie there anyhow, as the parameters do.": wanted
        + _storage_bytes(t for t in packed if t.untyped_storage() in buffers),
        "A buffer is in it that state_dict() leaves out: model.buffers() has all.": wanted
        + _storage_bytes(t for t in packed if t.untyped_storage() in buffers - persistent),
        "What is saved twice is in it twice: remember which storages you have met.": sum(
            t.untyped_storage().nbytes() for t in own
        ),
        "It adds up tensors: two views of one storage share its bytes.": sum(t.nbytes for t in own),
        "It is what the saved tensors show: a view keeps its whole storage alive.": sum(
            first_views.values()
        ),
        "Weights are in it: what is saved of a Linear is a transposed view, another tensor with "
        "the same storage. Compare storages.": _storage_bytes(strangers),
        "It is the outputs of all modules: not what autograd keeps of them.": sum(outputs),
    }


def _storage_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(storage.nbytes() for storage in {t.untyped_storage() for t in tensors})


activation_bytes = Check(
    name="lab02.activation_bytes",
    exercise="2.4",
    passed="equal to memory.saved, with views, shared storages and buffers, and no knot left",
    cases=_saving_cases,
    run=_run_saving,
    judge=_judge_saving,
)
