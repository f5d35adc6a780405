"""The checks of lab 02 that follow tensors: what autograd saves, and what outlives a step."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib import memory
from tutorial_lib.checks import lab02_oracles as oracles
from tutorial_lib.checks.core import Case, Check, CheckError, Result, expect_bytes, whole_number
from tutorial_lib.checks.lab02_machine import PretendGPU
from tutorial_lib.checks.lab02_steps import LeakyTraining, Picker
from tutorial_lib.models.gpt import GPT, GPTConfig

# 2.4


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
        return {"bytes": num_bytes, "tangled": gpu.memory_allocated() - before}


def _judge_saving(case: Case, result: Result) -> None:
    model, forward = _make_saving(case)
    wanted = memory.saved(forward, params_of=model).num_bytes
    name = f"activation_bytes of {case.get('attention', 'a')} {case['kind']}"
    expect_bytes(result.get("bytes"), wanted, name, _saving_slips(case, wanted))
    tangled = whole_number(result.get("tangled"), "bytes left behind")
    if tangled:
        raise CheckError(
            f"{name}: right, and {tangled:,} bytes were left behind that nobody can free. A pack "
            "hook that returns the tensor itself lets the graph hold a tensor which holds the "
            "graph: return what has no graph."
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
    own = [t for t in packed if t.untyped_storage() not in resident]
    first_views = {t.untyped_storage(): t.nbytes for t in reversed(own)}
    return {
        "It is the number of elements: ask each storage for its bytes.": wanted // 4,
        "Parameters and buffers are in it: they lie there whether autograd refers to them or "
        "not.": _storage_bytes(packed),
        "Buffers are in it: they lie there anyhow, as the parameters do.": wanted
        + _storage_bytes(t for t in packed if t.untyped_storage() in buffers),
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

# 2.5


def _leak_cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    rows, width, hidden = draw.sample(range(20, 60), 3)
    sizes = {"rows": rows, "width": width, "hidden": hidden, "keep": draw.randint(2, 5)}
    return [
        sizes | {"leak": "nothing", "optimizer": "adamw"},
        sizes | {"leak": "a loss with its graph", "optimizer": "momentum"},
        sizes | {"leak": "slices", "optimizer": "momentum"},
        sizes | {"leak": "views of old tensors", "optimizer": "sgd"},
    ]


def _run_leaks(answer: Callable[..., Any], case: Case) -> Result:
    training = LeakyTraining(case)
    with oracles.by_hand():
        leaks = answer(training, training.model, training.optimizer)
    return {"leaks": leaks, "calls": training.calls}


def _judge_leaks(case: Case, result: Result) -> None:
    if result.get("calls") != 1:
        raise CheckError(f"step was called {result.get('calls')} times: once is wanted.")
    seen = _pairs(result.get("leaks"))
    training = LeakyTraining(case)
    report = memory.measure(training, model=training.model, optimizer=training.optimizer, warmup=0)
    wanted = [(life.op, life.num_bytes) for life in report.leaks()]
    sizes = Counter(num_bytes for _, num_bytes in seen)
    wanted_sizes = Counter(num_bytes for _, num_bytes in wanted)
    name = f"a step that keeps {case['leak']}"
    extra, missing = sizes - wanted_sizes, wanted_sizes - sizes
    if extra or missing:
        shown = ", ".join(f"{size:,}" for size in sorted(sizes.elements())) or "nothing"
        raise CheckError(f"{name}: {shown} came. {_why(training, report, extra, missing)}")
    if Counter(seen) != Counter(wanted):
        shown = ", ".join(sorted({op for op, _ in seen}))
        raise CheckError(
            f"{name}: the bytes are right, and the operations are {shown}. The one that made the "
            "storage is wanted, by func.overloadpacket.__name__, and none that used it later."
        )


def _pairs(leaks: Any) -> list[tuple[str, int]]:
    if not isinstance(leaks, list) or not all(isinstance(x, list) and len(x) == 2 for x in leaks):
        raise CheckError(
            f"a list of pairs (operation, bytes) is needed, and {str(leaks)[:100]} came."
        )
    return [(str(op), whole_number(num_bytes, "bytes of a leak")) for op, num_bytes in leaks]


def _why(
    training: LeakyTraining,
    report: memory.MemoryReport,
    extra: Counter[int],
    missing: Counter[int],
) -> str:
    """Name the mistake by the sizes that are too many or missing."""
    lives = [life for life in report.timeline if life.born > 0 and life.died is None]
    gradients, state = (
        Counter(life.num_bytes for life in lives if life.category == category)
        for category in ("gradients", "optimizer_state")
    )
    old = Counter(tensor.untyped_storage().nbytes() for tensor in training.old)
    leaked = Counter(life.num_bytes for life in report.leaks())
    views = Counter(tensor.nbytes for tensor in training.views)
    if not extra and missing == leaked:
        return "Something was left behind, and an empty list says that nothing was."
    if extra and extra <= views:
        return "A slice keeps the whole storage alive: give the bytes of the storage."
    if extra and set(extra) <= set(leaked):
        return "Several tensors that share a storage are one leak: list storages, not tensors."
    if missing and not extra:
        return (
            "Something is missing: what an operation makes for itself was never an object of "
            "Python's, and the graph holds it in C++. Catch each tensor when it is born."
        )
    reasons = {
        "The gradients are in it: a step is meant to leave them.": gradients,
        "The optimizer's state is in it: a step is meant to leave it.": state,
        "Gradients and optimizer state are in it: a step is meant to leave both.": gradients
        + state,
        "What lay there before the step is in it: a view of an old tensor makes no storage.": old,
        "Garbage is in it, that refers to itself and waits for Python's collector: collect before "
        "you look.": Counter(training.garbage_bytes),
    }
    for explanation, sizes in reasons.items():
        if extra and extra <= sizes:
            return explanation
    return "These are not the storages that the step made and that still live."


find_leaks = Check(
    name="lab02.find_leaks",
    exercise="2.5",
    passed="what memory.measure finds left behind, and no false alarm",
    cases=_leak_cases,
    run=_run_leaks,
    judge=_judge_leaks,
)
