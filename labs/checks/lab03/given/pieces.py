"""The halves that run the answers to 3.1 to 3.4, the pieces of a checkpoint."""

import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from tutorial_lib import memory
from tutorial_lib.checks.given import Answer, Case, CheckError, Result, answered, exam, run_half
from tutorial_lib.checks.given.observe import pretended_gpu_states
from tutorial_lib.checks.given.values import plain

from . import chain

_FORBIDDEN = [chain.NO_TORCH_CHECKPOINT]


@run_half("3.1", forbidden=_FORBIDDEN, exam=exam.of_checkpoint(lambda answer: answer.apply))
def discard(answer: Answer, case: Case) -> Result:
    apply = getattr(answer, "apply", None)
    if apply is None:
        raise CheckError("Discard has no apply: it is a subclass of torch.autograd.Function.")
    with _forbid_recursion(answer):
        try:
            seen = chain.run(apply, case)
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            raise CheckError(
                "backward went on through the saved inputs into the blocks before this one, so "
                "their graph was gone at their own turn. Recompute from detached inputs."
            ) from error
        return {**seen, "saved": _saved_multiples(apply, case)}


@contextlib.contextmanager
def _forbid_recursion(answer: Any) -> Iterator[None]:
    """Refuse a backward inside itself: it would go on until the machine's memory is used up."""
    inherited = getattr(answer, "backward", None) is torch.autograd.Function.backward
    name = "vjp" if inherited else "backward"  # two names for one method
    plain_backward: Any = getattr(answer, name, None)
    inside: set[Any] = set()

    def guarded(ctx: Any, *gradients: Any) -> Any:
        if ctx in inside:
            raise CheckError(
                "backward was called inside your backward. It starts from the output of your "
                "Function, which leads back to your backward, without end: run the function "
                "again, and go backward from the new output."
            )
        inside.add(ctx)
        try:
            return plain_backward(ctx, *gradients)
        finally:
            inside.discard(ctx)

    with mock.patch.object(answer, name, staticmethod(guarded), create=True):
        yield


def _saved_multiples(call: chain.Call, case: Case) -> float:
    """Tell how many times its input autograd saves for a block."""
    (block, *_), x, gate = chain.make_chain(case, run_name="_apart")
    h = x.clone()
    saved = memory.saved(lambda: call(block, h, gate), params_of=block)
    return sum(row.num_bytes for row in saved.rows if row.shape != tuple(gate.shape)) / h.nbytes


@run_half("3.2", forbidden=_FORBIDDEN, exam=exam.of_checkpoint())
def hooked(answer: Answer, case: Case) -> Result:
    return chain.run(answer, case)


@run_half("3.3", forbidden=_FORBIDDEN)
def remember_surroundings(answer: Answer, case: Case) -> Result:
    torch.manual_seed(case["seed"])
    x = torch.randn(case["rows"], case["width"])
    runs = {"random": _random, "devices": _devices, "autocast": _autocast, "norm": _norm}
    return runs[case["kind"]](answer, case, x)


def _remembered(answer: Answer, *arguments: Any, **options: Any) -> Any:
    return answered.function(answer(*arguments, **options), "remember_surroundings")


def _random(answer: Answer, case: Case, x: Tensor) -> Result:
    drop = nn.Dropout(0.5)
    before = torch.get_rng_state()
    restored = _remembered(answer, drop, preserve_rng_state=case["preserve"])
    moved_by_call = not torch.equal(before, torch.get_rng_state())
    forward = drop(x)
    torch.rand(7)  # other layers draw in between
    between = torch.get_rng_state()
    with restored():
        again = drop(x)
    after = torch.get_rng_state()
    with restored():
        third = drop(x)
    now = torch.get_rng_state()
    with contextlib.suppress(KeyError), restored():
        drop(x)
        raise KeyError
    return {
        "moved_by_call": moved_by_call,
        "same": torch.equal(forward, again),
        "same_again": torch.equal(forward, third),
        "put_back": torch.equal(between, after),
        "put_back_after_error": torch.equal(now, torch.get_rng_state()),
    }


def _devices(answer: Answer, case: Case, x: Tensor) -> Result:
    with pretended_gpu_states(case["seed"] % 100) as states:
        restored = _remembered(answer, nn.Identity(), [torch.device("cuda", 0)])
        states.append(states[-1] + 2)  # the forward draws, and other layers after it
        between = states[-1]
        with restored():
            inside = states[-1]
            states.append(inside + 1)
        return {"inside": inside, "put_back": states[-1] == between}


def _autocast(answer: Answer, case: Case, x: Tensor) -> Result:
    # no weights: autocast keeps their copies until the outermost block ends, whatever the dtype
    with _cast_to(case["forward"], cached=case["cached"]):
        restored = _remembered(answer, nn.Identity())
    with _cast_to(case["backward"]):
        with restored():
            inside, cached = str((x @ x.T).dtype), torch.is_autocast_cache_enabled()
        outside = str((x @ x.T).dtype)
    at_the_end = str((x @ x.T).dtype)
    return {"inside": inside, "cached": cached, "outside": outside, "at_the_end": at_the_end}


def _cast_to(name: str, *, cached: bool = True) -> contextlib.AbstractContextManager[None]:
    dtype = getattr(torch, name or "bfloat16")
    return torch.autocast("cpu", dtype, enabled=bool(name), cache_enabled=cached)


def _norm(answer: Answer, case: Case, x: Tensor) -> Result:
    norm: Any = nn.BatchNorm1d(case["width"])
    block = nn.Sequential(nn.Linear(case["width"], case["width"]), norm)
    restored = _remembered(answer, block)
    forward = block(x)
    mean = norm.running_mean.clone()
    with restored():
        again = block(x)
    batches, unmoved = norm.num_batches_tracked, torch.equal(mean, norm.running_mean)
    counted = batches if batches is None else int(batches)
    block(x)
    return {
        "same": torch.equal(forward, again),
        "counts_later": norm.num_batches_tracked is not None,
        "counted": counted,
        "unmoved": unmoved,
    }


@run_half("3.4", forbidden=_FORBIDDEN)
def save_arguments(answer: Answer, case: Case) -> Result:
    runs = {"kept": _kept, "in place": _in_place, "again": _again}
    return runs[case["kind"]](answer, case)


def make_arguments(case: Case) -> tuple[dict[str, Tensor], tuple[Any, ...], dict[str, Any]]:
    """Build tensors, and the arguments that hold them."""
    torch.manual_seed(case["seed"])
    drawn = torch.randn(4, case["size"], requires_grad=True)
    # computed, so that no graph keeps them: only what was saved, and what holds on to them
    parts = {name: row * 2 for name, row in zip("abcd", drawn, strict=True)}
    args = (parts["a"], [parts["b"], "word"], case["number"])
    return parts, args, {"pair": (parts["c"], None), "deep": {"d": [parts["d"]]}}


def _in_place(answer: Answer, case: Case) -> Result:
    parts, args, kwargs = make_arguments(case)
    bring_back = answered.function(answer(args, kwargs), "save_arguments")
    parts["b"].detach().add_(1)
    try:
        bring_back()
    except RuntimeError as error:
        return {"noticed": "inplace" in str(error)}
    return {"noticed": False}


def _again(answer: Answer, case: Case) -> Result:
    parts, args, kwargs = make_arguments(case)
    bring_back = answered.function(answer(args, kwargs), "save_arguments")
    args[1].pop()
    first, _ = bring_back()
    identical = first[0] is parts["a"] and first[1][0] is parts["b"]
    needs_grad = first[0].requires_grad
    first[1].clear()
    second, named = bring_back()
    return {
        "identical": identical,
        "needs_grad": needs_grad,
        "lists": [len(first[1]), len(second[1])],
        "kinds": [type(second).__name__, type(named["pair"]).__name__],
        "held_later": _kept(answer, case)["held_later"],
    }


def _kept(answer: Answer, case: Case) -> Result:
    parts, args, kwargs = make_arguments(case)
    pool: list[Tensor] = []
    asked: list[int] = []

    def pack(tensor: Tensor) -> int:
        pool.append(tensor.detach().clone())
        return len(pool) - 1

    def unpack(number: int) -> Tensor:
        asked.append(number)
        return pool[number].clone()

    gc.disable()  # so that what a cycle holds is there when it is counted
    try:
        with saved_tensors_hooks(pack, unpack):
            bring_back = answered.function(answer(args, kwargs), "save_arguments")
        alive = [weakref.ref(tensor) for tensor in parts.values()]
        del parts, args, kwargs
        for_now = _count_alive(alive)
    finally:
        gc.enable()
    gc.collect()
    held = _count_alive(alive)
    came = bring_back()
    alive, brought = [weakref.ref(t) for t in flat(came) if isinstance(t, Tensor)], plain(came)
    del came
    gc.collect()
    seen = {"packed": len(pool), "held": held, "held_by_cycle": for_now - held}
    return {**seen, "unpacked": len(asked), "held_later": _count_alive(alive), "brought": brought}


def _count_alive(references: list[weakref.ref[Tensor]]) -> int:
    return sum(reference() is not None for reference in references)


def flat(value: Any) -> list[Any]:
    """List the contents of containers, however deep, keys and all."""
    if isinstance(value, dict):
        return [item for key, part in value.items() for item in [key, *flat(part)]]
    if isinstance(value, list | tuple):
        return [item for part in value for item in flat(part)]
    return [value]
