"""PyTorch's own samples of its operators, real and predicted: prints what differs, a line each.

Run as a script, since the import of the samples changes PyTorch's settings:
`python tests/operator_samples.py sizes|types`. The samples are those of
`torch.testing._internal.common_methods_invocations` (2.13), of float32.
"""

import logging
import sys
import types
import unittest
import warnings

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from tutorial_lib import memory

MOST_SAMPLES, MOST_CALLS = 6, 40  # of each operator
# Values decide the shape of these, and a prediction's inputs have none.
ASSUMED = {"nonzero", "argwhere", "tensor_split"}


def samples():
    """Yield name, function, input and arguments of each sample."""
    # The samples' module imports a package for snapshots of text, which nothing here takes.
    stub = types.ModuleType("expecttest")
    stub.TestCase = unittest.TestCase
    sys.modules.setdefault("expecttest", stub)
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        if torch.float32 not in op.dtypes:
            continue
        try:
            made = list(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd))
        except Exception:  # a package is missing
            continue
        for one in made[:MOST_SAMPLES]:
            given = (one.input, one.args, one.kwargs)
            if all(t.layout is torch.strided for t in tensors(given)):
                yield op.name, lambda x, args, kwargs, op=op: op(x, *args, **kwargs), given


def tensors(nest):
    return [leaf for leaf in tree_leaves(nest) if isinstance(leaf, Tensor)]


def storages(found):
    keep = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in found}
    return sorted(keep.values())


def observed(run, given):
    """Bytes of the storages of outputs, of saved tensors beside inputs, and of gradients."""
    saved, inputs = [], tensors(given)
    own = {t.untyped_storage()._cdata for t in inputs}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: saved.append(t.detach()) or t, lambda t: t
    ):
        outs = [t for t in tensors(run(*given)) if t.layout is torch.strided]
    kept = [t for t in saved if t.untyped_storage()._cdata not in own]
    sizes = storages(outs), storages(kept)
    ends = [t for t in outs if t.requires_grad]
    wrt = [t for t in inputs if t.requires_grad]
    if not (ends and wrt):
        return (*sizes, [])
    seeds = [torch.ones_like(t) for t in ends]
    grads = torch.autograd.grad(ends, wrt, seeds, allow_unused=True)
    return (*sizes, storages(tensors(grads)))


def as_predicted(tensor):
    if not tensor.is_floating_point() and not tensor.is_complex():
        return torch.tensor(tensor.tolist(), dtype=tensor.dtype)
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return made.requires_grad_(tensor.requires_grad)


def compare_sizes():
    """Print the operators whose storages a prediction has with other bytes."""
    count = 0
    for name, run, given in samples():
        if name in ASSUMED:
            continue
        try:
            real = observed(run, tree_map_only(Tensor, twin, given))
        except Exception:  # no derivative, or of complex numbers
            continue
        count += 1
        try:
            with memory.predicting("cpu"):
                predicted = observed(run, tree_map_only(Tensor, as_predicted, given))
        except Exception as error:
            predicted = f"{type(error).__name__}: {error}"[:80]
        if predicted != real:
            off = (
                0 if isinstance(predicted, str) else sum(map(sum, predicted)) - sum(map(sum, real))
            )
            print(f"{name}: off by {off} bytes: real {real}, predicted {predicted}")
    print(f"{count} samples")


def twin(tensor):
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


class Calls(TorchDispatchMode):
    """Keep what each operation below a sample is called with."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
        kept = tree_map_only(Tensor, lambda t: t.detach().clone(), (args, kwargs or {}))
        self.seen.append((func, *kept))
        return func(*args, **(kwargs or {}))


def with_one_type_changed(args, kwargs):
    """Yield the arguments with one tensor in another type, and which one in which."""
    given = tensors((args, kwargs))
    for place, changed in enumerate(given):
        kinds = [torch.bfloat16, torch.float64] if changed.is_floating_point() else []
        for kind in [*kinds, torch.int32] if changed.dtype is torch.int64 else kinds:
            change = lambda t, changed=changed, kind=kind: t.to(kind) if t is changed else t.clone()  # noqa: E731
            yield f"{place} {kind}", tree_map_only(Tensor, change, (args, kwargs))


def compare_types():
    """Print, of forward operations, those whose refusal of a type differs from the real one's."""
    tried, count = set(), 0
    for _, run, given in samples():
        calls = Calls()
        try:
            with torch.no_grad(), calls:
                run(*tree_map_only(Tensor, twin, given))
        except Exception:
            pass
        for func, args, kwargs in calls.seen[:MOST_CALLS]:
            kinds = func, *(t.dtype for t in tensors((args, kwargs)))
            if func.namespace != "aten" or len(kinds) < 3 or kinds in tried:
                continue
            tried.add(kinds)
            for which, (new, named) in with_one_type_changed(args, kwargs):
                count += 1
                real = error_of(lambda f=func, a=new, k=named: f(*a, **k))
                with memory.predicting("cpu"):
                    new, named = tree_map_only(Tensor, as_predicted, (new, named))
                    seen = error_of(lambda f=func, a=new, k=named: f(*a, **k))
                if bool(real) != bool(seen):
                    print(f"{func} {which}: real {real or 'runs'}, predicted {seen or 'runs'}")
    print(f"{count} mixtures")


def error_of(run):
    try:
        run()
    except Exception as error:
        return f"{type(error).__name__}: {error}".partition("\n")[0][:90]
    return ""


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    {"sizes": compare_sizes, "types": compare_types}[sys.argv[1]]()
