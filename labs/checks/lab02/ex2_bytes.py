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

_PASSED_2_3 = "same bytes as memory.measure, whatever ran before"
_PASSED_2_4 = (
    "same bytes as memory.saved, with views, shared storages and buffers; keeps nothing alive"
)
_PASSED_2_5 = "finds what memory.measure finds left behind, without false alarms"


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
    expect.fact(ran == wanted, f"{name}: {ran} steps ran, but {wanted} should: warmup, then one.")


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
        "You counted what was there before the step: read that too, and subtract it.": steady,
        "It is the first step, without optimizer state and with kernels still tried out: warm "
        "up.": cold - before,
        "It is all memory of the first step: warm up, and subtract what was there before.": cold,
        "It is the peak of an earlier run: reset it before the step.": ever - base,
        "It is the highest peak of any run: reset it before the step, and subtract what was there "
        "before the step.": ever,
        "It is the peak of the warm-up: reset it between warm-up and step.": cold - base,
        "Nothing is left when a step is over: read the most that was allocated during the step, "
        "not what is allocated now.": after - base,
        "It is what is allocated after the step: read the peak during it.": after,
        "You subtracted what is there after the step, so what the step leaves behind is missing: "
        "read before the step.": steady - after,
        "You read what was there before the warm-up, which leaves gradients and optimizer state "
        "behind: read it after the warm-up.": steady - before,
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
        f"{name}: what was saved is freed before forward is over, since neither your function nor "
        "pack's result holds it. Another tensor may then get the same address, and its storage the "
        "same id. Keep the storages themselves, or return tensor.detach() from pack.",
    )
    expect.number_of_bytes(result["bytes"], saved, name, _faults_2_4(case, saved))
    left_behind = read.integer(result["left_behind"], "bytes left behind")
    faults = {
        f"{name}: right, but parameters have gradients now. You know what autograd keeps once "
        "forward is over: run no backward.": read.flag(result, "went_backward"),
        f"{name}: right, but {left_behind:,} bytes were left behind. Something outside your "
        "function holds them; or pack returns the tensor itself, which holds the graph that holds "
        "it: return tensor.detach().": left_behind != 0,
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
        "You counted parameters and buffers: they are there whether autograd saves them or "
        "not.": _total(packed),
        "You counted buffers: they are there anyway, like the parameters.": saved
        + _total(packed & buffers),
        "You counted a buffer that state_dict() leaves out: model.buffers() lists all.": saved
        + _total(packed & unsaved),
        "You counted twice what is saved twice: note which storages you saw.": _whole(own),
        "It adds up tensors: two views of one storage share its bytes.": sum(t.nbytes for t in own),
        "You counted only the views' elements: a view keeps its whole storage alive.": sum(
            first_views.values()
        ),
        "You counted weights: what a Linear saves is a transposed view, another tensor with the "
        "same storage. Compare storages.": _total(_storages(but_for(there))),
        "You counted weights and buffers: what a Linear saves is a transposed view, another tensor "
        "with the same storage. Compare storages.": _total(_storages(but_for(parameters))),
        "You counted a storage once for each tensor object: two views of it, or a weight and its "
        "transpose, are two objects. Compare storages.": _whole(but_for(there)),
        "You counted a storage once for each data_ptr of a tensor: a view of its second half "
        "starts at a different one. Compare storages.": _whole(but_for(there, Tensor.data_ptr)),
        "You added up all modules' outputs: that isn't what autograd keeps.": sum(outputs),
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
    expect.fact(calls == 1, f"step was called {calls} times: call it once.")
    seen = _pairs(result["leaks"])
    name = f"a step that keeps {case['leak']}"
    sizes, wanted = _sizes(seen), _sizes(measured.leaks.elements())
    if sizes != wanted:
        shown = ", ".join(f"{size:,}" for size in sorted(sizes.elements())) or "nothing"
        reasons = _reasons(seen, sizes, wanted, measured)
        expect.no_fault({f"{name}: got {shown}. {words}": fits for words, fits in reasons.items()})
    operations = ", ".join(sorted({op for op, _ in seen}))
    expect.fact(
        Counter(seen) == measured.leaks,
        f"{name}: the bytes are right, but the operations are {operations}. Name the one that made "
        "the storage, by func.overloadpacket.__name__, not one that used it later.",
    )


def _pairs(leaks: Any) -> list[tuple[str, int]]:
    expect.fact(
        isinstance(leaks, list) and all(isinstance(x, list) and len(x) == 2 for x in leaks),
        f"a list of pairs (operation, bytes) is needed, but {str(leaks)[:100]} came.",
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
        "Your list is empty, but something was left behind.": is_silent,
        "A slice keeps the whole storage alive: return the bytes of the storage.": is_slices,
        "Several tensors that share a storage are one leak: list storages, not tensors.": is_often,
        "Something is missing: an operation may make tensors for itself, which the graph holds in "
        "C++ and Python never sees. Catch each tensor when it is made.": not extra,
        "An operation whose name ends in _ changes a tensor but makes none, as the update changes "
        "the parameters: leave out what was among its arguments.": in_place,
        "You listed what step() returned: your function holds it while it looks. Drop it.": extra
        <= loss,
        "An operation wrote into an old tensor that was passed as out=...: look for known tensors "
        "among the keyword arguments too.": extra <= Counter([training.written.nbytes]),
        "You listed what was there before: a view of an old tensor makes no new storage.": extra
        <= old,
        "You listed gradients: a step is meant to leave them.": extra <= gradients,
        "You listed the optimizer's state: a step is meant to leave it.": extra <= state,
        "You listed gradients and optimizer state: a step is meant to leave both.": is_steady,
        "You listed garbage: objects that refer to themselves wait for Python's collector. Collect "
        "before you look.": extra <= garbage,
        "You listed several things that aren't leaks: gradients, optimizer state, what step() "
        "returned, or garbage not yet collected.": extra <= gradients + state + loss + garbage,
        "Some aren't storages that the step made and left behind: print each pair.": True,
    }
