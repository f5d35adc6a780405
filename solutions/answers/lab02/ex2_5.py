"""A leak detector."""

import gc
import warnings
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from solutions.answers import right, solved, wrong
from tutorial_lib import memory

forgets_the_optimizer = wrong(
    "You listed the optimizer's state", ", list(optimizer.state.values())", ""
)
forgets_the_gradients = wrong("You listed gradients: a step", "gradients, list(", "*(")
lists_all_that_lives = wrong("You listed gradients and optimizer state", " if s not in meant", "")
looks_before_the_collector_came = wrong("You listed garbage", "    gc.collect()\n", "")
lists_all_births = wrong(
    "You listed several things that aren't leaks",
    "    gc.collect()\n",
    "",
    " if s not in meant",
    "",
)
holds_what_the_step_returned = wrong(
    "You listed what step() returned", "        step()", "        loss = step()"
)
warms_up = wrong("step was called 2 times", "    with Births", "    step()\n    with Births")
gives_the_sum = wrong(
    "a list of pairs (operation, bytes) is needed, but",
    "[(op, storage.nbytes()) for op, storage in left]",
    "sum(storage.nbytes() for _, storage in left)",
)
sees_nothing = wrong("Your list is empty, but something was", "in left]", "in []]")


def collected(step, mode=None):
    """Run a step; gives its storages that no collector frees, with their operations."""
    with mode or solved("lab02").Births() as births:
        step()
    gc.collect()
    return births.made_by


def tensors_in(*trees):
    return solved("lab02").tensors_in(trees)


def storages(*trees):
    return {tensor.untyped_storage() for tensor in tensors_in(trees)}


def no_leak(model, optimizer):
    gradients = [parameter.grad for parameter in model.parameters()]
    return storages(gradients, list(optimizer.state.values()))


def pairs(made_by, meant):
    return [(op, s.nbytes()) for s, op in made_by.items() if s not in meant]


class Results(solved("lab02").Births):
    """Takes every result for new memory."""

    def known(self, args, kwargs):
        return set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tensors_in(out):
            if tensor.untyped_storage() not in self.known(args, kwargs):
                self.made_by.setdefault(tensor.untyped_storage(), func.overloadpacket.__name__)
        return out


@wrong("An operation whose name ends in _")
def takes_the_changed_for_new(step, model, optimizer):
    return pairs(collected(step, Results()), no_leak(model, optimizer))


class ByPosition(Results):
    """Knows the positional arguments alone."""

    def known(self, args, kwargs):
        return storages(args)


@wrong("that was passed as out=")
def forgets_the_keywords(step, model, optimizer):
    return pairs(collected(step, ByPosition()), no_leak(model, optimizer))


@wrong("You listed what was there before:")
def takes_views_for_new(step, model, optimizer):
    old = storages(list(model.parameters()))
    return pairs(collected(step, Results()), no_leak(model, optimizer) | old)


def python_knows():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [o for o in gc.get_objects() if type(o) in (torch.Tensor, torch.nn.Parameter)]


@wrong("the graph holds in C++ and Python never sees")
def asks_python_for_its_tensors(step, model, optimizer):
    before = storages(python_knows())
    step()
    gc.collect()
    old = no_leak(model, optimizer) | before
    return [("?", s.nbytes()) for s in storages(python_knows()) if s not in old]


def windows(step, model, optimizer):
    """Return each leak's operation and storage, and the tensors on it that Python knows."""
    made_by = collected(step)
    meant = no_leak(model, optimizer)
    left = [(op, s) for s, op in made_by.items() if s not in meant]
    known = python_knows()
    return [(op, s, [t for t in known if t.untyped_storage() is s]) for op, s in left]


@wrong("A slice keeps the whole storage alive")
def gives_what_the_slices_show(step, model, optimizer):
    found = windows(step, model, optimizer)
    return [(op, min((t.nbytes for t in shown), default=s.nbytes())) for op, s, shown in found]


@wrong("list storages, not tensors")
def lists_every_view(step, model, optimizer):
    found = windows(step, model, optimizer)
    return [(op, s.nbytes()) for op, s, shown in found for _ in shown or [s]]


class LastUse(solved("lab02").Births):
    """Names the operation that touched a storage last."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = super().__torch_dispatch__(func, types, args, kwargs)
        for tensor in tensors_in(out):
            if tensor.untyped_storage() in self.made_by:
                self.made_by[tensor.untyped_storage()] = func.overloadpacket.__name__
        return out


@wrong("the bytes are right, but the operations are")
def names_the_last_operation(step, model, optimizer):
    return pairs(collected(step, LastUse()), no_leak(model, optimizer))


@wrong("memory.predict and memory.capped count as the oracle does")
def asks_the_meter(step, model, optimizer):
    return memory.measure(step, model=model, optimizer=optimizer, warmup=0).leaks()


@right
def from_weak_references(step, model, optimizer):
    found = {}

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            old = {id(s) for s in storages(args, kwargs)}
            out = func(*args, **(kwargs or {}))
            for storage in storages(out):
                if id(storage) not in old:
                    found[weakref.ref(storage)] = func.overloadpacket.__name__
            return out

    with Mode():
        step()
    gc.collect()
    meant = no_leak(model, optimizer)
    return [(op, ref().nbytes()) for ref, op in found.items() if ref() and ref() not in meant]


@right
def the_largest_first_as_lists(step, model, optimizer):
    found = pairs(collected(step), no_leak(model, optimizer))
    return [list(pair) for pair in sorted(found, key=lambda pair: -pair[1])]
