"""The checks of 2.3 to 2.5: the peak of a step, saved bytes, and storages that outlive it."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from tutorial_lib import memory
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read

from . import given
from .given.machine import PretendGPU

_PASSED_2_3 = "equal to memory.measure, whatever ran before"
_PASSED_2_4 = (
    "equal to memory.saved, with views, shared storages and buffers, and nothing left alive"
)
_PASSED_2_5 = "what memory.measure finds left behind, and no false alarm"


def _cases_2_3(draw: Draw) -> Cases:
    inner, outer = draw.sample(range(48, 80), 2)
    case = {
        "widths": [outer, inner, outer],
        "rows": draw.randint(300, 400),
        "workspace": draw.randint(400_000, 500_000),
        "earlier": draw.randint(900_000, 990_000),
        "left": draw.randint(10_000, 20_000),
    }
    yield {**case, "optimizer": "adamw", "warmup": 1, "kept": 0}
    kept = draw.randint(10_000, 20_000)
    yield {**case, "optimizer": "momentum", "warmup": 2, "kept": kept}


def _peak(case: Case) -> int:
    step = given.ColdStep(case)
    report = memory.measure(step, model=step.model, optimizer=step.optimizer)
    return report.peak_bytes - report.baseline_bytes


@check(given.steady_peak, _PASSED_2_3, _cases_2_3, oracle=_peak)
def steady_peak(case: Case, result: Result, peak: int) -> None:
    expect.number_of_bytes(result["bytes"], peak, "steady_peak(step, gpu)", _faults_2_3(case))
    ran, wanted = read.integer(result["calls"], "steps that ran"), case["warmup"] + 1
    name = f"steady_peak with warmup={case['warmup']}"
    expect.fact(ran == wanted, f"{name}: {ran} steps ran, and {wanted} should: warmup, then one.")


def _faults_2_3(case: Case) -> Faults:
    # everything is read at every moment
    with PretendGPU() as gpu:
        torch.zeros(case["earlier"])
        left = torch.zeros(case["left"])
        earlier = gpu.max_memory_allocated()
        step = given.ColdStep(case)
        before = gpu.memory_allocated()
        gpu.reset_peak_memory_stats()
        step()
        cold, base = gpu.max_memory_allocated(), gpu.memory_allocated()
        gpu.reset_peak_memory_stats()
        step()
        steady, after = gpu.max_memory_allocated(), gpu.memory_allocated()
    del left
    ever = max(earlier, cold, steady)
    yield from {
        "What lay there before the step is in it: read that too, and subtract it.": steady,
        "It is the first step, without optimizer state, while kernels are tried out: warm up.": cold
        - before,
        "It is all there was in the first step: warm up, and subtract what lay there before.": cold,
        "It is the peak of an earlier run: reset it before the step.": ever - base,
        "It is the highest peak of any run: reset it before the step, and subtract what lay there "
        "before the step.": ever,
        "It is the peak of the warm-up: reset it between warm-up and step.": cold - base,
        "Nothing is left when a step is over: ask for the most that was there meanwhile, not for "
        "what is there now.": after - base,
        "It is what is there when the step is over: ask for the most there was meanwhile.": after,
        "What is there after the step was subtracted, so what the step leaves behind is missing: "
        "read what lies there before it.": steady - after,
        "What lay there was read before the warm-up, which has left gradients and optimizer state "
        "behind: read it after.": steady - before,
    }.items()


def _cases_2_4(draw: Draw) -> Cases:
    rows = 2 * draw.randint(20, 30) + 1  # no multiple of the width: then faults are told apart
    yield {"kind": "picker", "width": draw.randint(20, 40), "rows": rows}
    yield {"kind": "gpt", "width": 4 * draw.randint(6, 10), "rows": draw.randint(3, 6)}


def _saved(case: Case) -> int:
    model, forward = given.make_forward(case)
    return memory.saved(forward, params_of=model).num_bytes


@check(given.activation_bytes, _PASSED_2_4, _cases_2_4, oracle=_saved)
def activation_bytes(case: Case, result: Result, saved: int) -> None:
    name = f"activation_bytes of a {case['kind']}"
    expect.fact(
        read.integer(result["held"], "bytes held") >= saved
        or read.integer(result["bytes"], name) > saved,
        f"{name}: what was saved is gone before forward is over, since neither your function nor "
        "what pack returns holds it. Its address, and the id of its storage, then come again with "
        "another tensor. Keep the storages themselves, or return tensor.detach() from pack.",
    )
    expect.number_of_bytes(result["bytes"], saved, name, _faults_2_4(case, saved))
    left_behind = read.integer(result["left_behind"], "bytes left behind")
    faults = {
        f"{name}: right, and parameters have gradients now. What autograd keeps is known when "
        "forward is over: run no backward.": read.flag(result, "went_backward"),
        f"{name}: right, and {left_behind:,} bytes were left behind. Either something outside your "
        "function holds the output or what was saved; or pack returns the tensor itself, and the "
        "graph holds a tensor which holds the graph: return what has none.": left_behind != 0,
    }
    expect.no_fault(faults)


def _faults_2_4(case: Case, saved: int) -> expect.Faults:
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


def _cases_2_5(draw: Draw) -> Cases:
    rows, width, hidden = draw.sample(range(20, 60), 3)
    sizes = {"rows": rows, "width": width, "hidden": hidden, "keep": draw.randint(2, 5)}
    yield sizes | {"leak": "nothing", "optimizer": "adamw"}
    yield sizes | {"leak": "a loss with its graph", "optimizer": "momentum"}
    yield sizes | {"leak": "slices", "optimizer": "momentum"}
    yield sizes | {"leak": "views of old tensors", "optimizer": "sgd"}
    yield sizes | {"leak": "a sum in an old tensor", "optimizer": "momentum"}


class _Measured:
    """A training step that was run once, and the report of it."""

    def __init__(self, case: Case) -> None:
        self.training = step = given.LeakyTraining(case)
        self.report = memory.measure(step, model=step.model, optimizer=step.optimizer, warmup=0)
        self.leaks = Counter((life.op, life.num_bytes) for life in self.report.leaks())

    def left(self, category: str) -> Counter[int]:
        """Count the sizes of the step's storages of a category that still live."""
        lives = (life for life in self.report.timeline if life.born > 0 and life.died is None)
        return Counter(life.num_bytes for life in lives if life.category == category)


@check(given.find_leaks, _PASSED_2_5, _cases_2_5, oracle=_Measured)
def find_leaks(case: Case, result: Result, measured: _Measured) -> None:
    calls = read.integer(result["calls"], "calls of step")
    expect.fact(calls == 1, f"step was called {calls} times: once is wanted.")
    seen = _pairs(result["leaks"])
    name = f"a step that keeps {case['leak']}"
    sizes, wanted = _sizes(seen), _sizes(measured.leaks.elements())
    if sizes != wanted:
        shown = ", ".join(f"{size:,}" for size in sorted(sizes.elements())) or "nothing"
        reasons = _reasons(seen, sizes, wanted, measured)
        expect.no_fault({f"{name}: {shown} came. {words}": fits for words, fits in reasons.items()})
    operations = ", ".join(sorted({op for op, _ in seen}))
    expect.fact(
        Counter(seen) == measured.leaks,
        f"{name}: the bytes are right, and the operations are {operations}. The one that made the "
        "storage is wanted, by func.overloadpacket.__name__, and none that used it later.",
    )


def _pairs(leaks: Any) -> list[tuple[str, int]]:
    expect.fact(
        isinstance(leaks, list) and all(isinstance(x, list) and len(x) == 2 for x in leaks),
        f"a list of pairs (operation, bytes) is needed, and {str(leaks)[:100]} came.",
    )
    return [(str(op), read.integer(num_bytes, "bytes of a leak")) for op, num_bytes in leaks]


def _sizes(leaks: Iterable[tuple[str, int]]) -> Counter[int]:
    return Counter(num_bytes for _, num_bytes in leaks)


def _reasons(
    seen: list[tuple[str, int]], sizes: Counter[int], wanted: Counter[int], measured: _Measured
) -> dict[str, bool]:
    """List possible faults, and whether the sizes that are too many or missing speak for them."""
    training, extra, missing = measured.training, sizes - wanted, wanted - sizes
    suspects = [(op, size) for op, size in seen if size in extra]
    made = {(life.op, life.num_bytes) for life in measured.report.timeline}
    old = Counter(size for op, size in suspects if (op, size) not in made)
    gradients, state = measured.left("gradients"), measured.left("optimizer_state")
    loss, garbage = Counter([4]), Counter(training.garbage_bytes)  # a step returns four bytes
    in_place = any(op.endswith("_") for op, _ in suspects)
    is_steady = extra <= gradients + state
    is_silent, is_often = not extra and missing == wanted, bool(extra) and set(extra) <= set(wanted)
    is_slices = bool(extra) and extra <= Counter(view.nbytes for view in training.views)
    return {
        "Something was left behind, and an empty list says that nothing was.": is_silent,
        "A slice keeps the whole storage alive: give the bytes of the storage.": is_slices,
        "Several tensors that share a storage are one leak: list storages, not tensors.": is_often,
        "Something is missing: what an operation makes for itself was never an object of "
        "Python's, and the graph holds it in C++. Catch each tensor when it is born.": not extra,
        "An operation whose name ends in _ changes a tensor and makes none, as the update does "
        "with the parameters: leave out what was among its arguments.": in_place,
        "What step() returned is in it: your function holds it while it looks. Let it go.": extra
        <= loss,
        "An operation wrote into an old tensor that came by keyword, out=...: look for what is "
        "known among the keyword arguments too.": extra <= Counter([training.written.nbytes]),
        "What lay there before the step is in it: a view of an old tensor makes no storage.": extra
        <= old,
        "The gradients are in it: a step is meant to leave them.": extra <= gradients,
        "The optimizer's state is in it: a step is meant to leave it.": extra <= state,
        "Gradients and optimizer state are in it: a step is meant to leave both.": is_steady,
        "Garbage is in it, that refers to itself and waits for Python's collector: collect before "
        "you look.": extra <= garbage,
        "More than one thing is in it that is no leak: gradients, optimizer state, what step() "
        "returned, or garbage not yet collected.": extra <= gradients + state + loss + garbage,
        "Some are not storages that the step made and that still live: print each pair.": True,
    }
