"""The check of 5.5: saved tensors that wait on the host."""

import math
from functools import partial

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from tutorial_lib.checks.given import observe
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read
from tutorial_lib.memory.private_torch import storage_key

from . import given
from .ex5_modules import draw_sizes, expect_gradients
from .given.host import ADDRESS, TWO_BACKWARDS, Host, make_step

_PASSED = "five kinds of steps: exact gradients, each large storage copied once, nothing left over"
# What to try where the gradients of a kind of step are wrong.
_ADVICE = {
    "one step": f"wrong numbers came back, or {ADDRESS}",
    "parts of a storage": (
        "a saved tensor may be a slice, a transpose or an expansion: size, stride and offset say "
        "where its numbers are in the storage."
    ),
    "micro-batches": (
        "the batch is in a buffer that is overwritten before each micro-batch, under the same "
        "hooks: an earlier copy is stale."
    ),
    "two backwards": TWO_BACKWARDS,
    "double backward": "this step differentiates a gradient again, but its graph is cut somewhere.",
}


def _cases(draw: Draw) -> Cases:
    sizes = draw_sizes(draw)
    limits = {step: draw.randint(900, 1500) for step in _ADVICE}
    # to the byte what a norm puts out: a storage of exactly this size is copied
    limits["one step"] = 4 * sizes["batch"] * math.prod(sizes["sizes"].values())
    limits["parts of a storage"] = draw.randint(1300, 1500)  # a small result and a view stay
    limits["double backward"] += 2200  # the result of Tanh is smaller, and stays
    yield from ({**sizes, "step": step, "min_bytes": limits[step]} for step in _ADVICE)


class _Kept:
    """A case's step without hooks, and with hooks that only look."""

    def __init__(self, case: Case) -> None:
        model, step = make_step(case)
        self.peak, _ = observe.peak_above(step, model)
        self.limit, self.gradients = case["min_bytes"], observe.gradients_of(model)
        model, step = make_step(case)
        resident = {storage_key(p.untyped_storage()) for p in model.parameters()}
        # of each saved tensor its storage, bytes of both, and whether it is a parameter's
        self.saved: list[tuple[int, int, int, bool]] = []
        alive = []  # else an address is used twice

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            key = storage_key(storage)
            self.saved.append((key, storage.nbytes(), tensor.nbytes, key in resident))
            alive.append(tensor.detach())
            return alive[-1]

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            step()

    def copied(
        self,
        *,
        small: bool = False,
        above: int = 0,
        parameters: bool = False,
        each: bool = False,
        part: bool = False,
    ) -> int:
        """Add up the bytes that should be copied, where no word is given."""
        rows = [
            (key, whole)
            for key, whole, own, is_parameter in self.saved
            if (small or (own if part else whole) >= self.limit + above)
            and (parameters or not is_parameter)
        ]
        return sum(num_bytes for _, num_bytes in (rows if each else set(rows)))


def _all_on_the_host(host: Host, *_: nn.Module | int) -> saved_tensors_hooks:
    def pack(tensor: Tensor) -> partial[Tensor]:
        shape, offset = (tensor.size(), tensor.stride()), int(tensor.storage_offset())
        return partial(host.put(tensor).get, tensor.dtype, *shape, offset)

    return saved_tensors_hooks(pack, lambda get: get())


@check(
    given.offloading,
    _PASSED,
    _cases,
    oracle=_Kept,
    sits=_all_on_the_host,
    where="{step}: ".format_map,
)
def offloading(case: Case, result: Result, kept: _Kept) -> None:
    step, wanted = case["step"], kept.copied()
    if step in ("one step", "parts of a storage"):
        seen = read.integer(read.total(result, "copied"), "copied bytes")
        less, more = (
            f"a storage was left out, or {ADDRESS}",
            "each large storage once, and no parameter's.",
        )
        expect.close(
            seen,
            wanted,
            _copy_faults(kept),
            otherwise=f"{seen:,} bytes were copied to the host, but {wanted:,} should be: "
            f"{less if seen < wanted else more}",
        )
    differ = f"gradients differ from those without hooks: {_ADVICE[step]}"
    expect_gradients(result, kept.gradients, differ)
    keys = ("stayed", "peak", "left")
    stayed, peak, left = (read.integer(result[key], f"bytes ({key})") for key in keys)
    faults = {
        f"{stayed:,} bytes were still on the device after the step, held by a cycle: for a tensor "
        "that stays, pack must return tensor.detach(), since an operation's own result would "
        "otherwise hold its graph.": stayed != 0,
        f"the peak is {peak:,} bytes, and {kept.peak:,} without hooks: the copied tensors were "
        "still on the device. Have pack return only the copy, and unpack bring it back.": (
            step == "one step" and kept.peak - peak < wanted // 2
        ),
        f"{left:,} bytes were left on the host after the step, inside `with`: the graph is gone, "
        "but something of yours still holds the copies, as a plain dictionary does. A "
        "weakref.WeakValueDictionary holds none.": left != 0,
    }
    expect.no_fault(faults)


def _copy_faults(kept: _Kept) -> Faults:
    yield from {
        "nothing was copied to the host.": 0,
        "parameters were copied too, but they stay on the device anyway. A saved weight may be a "
        "view, such as its transpose: compare storages.": kept.copied(parameters=True),
        "small storages were copied too: compare with min_bytes.": kept.copied(small=True),
        "a storage of exactly min_bytes stayed: copy it too, since min_bytes is the smallest size "
        "to copy.": (kept.copied(above=1)),
        "min_bytes was compared with the bytes of tensors. A tensor may be a small part of its "
        "storage, or an expansion of it: compare `storage.nbytes()`.": kept.copied(part=True),
        "storages were copied once for each tensor that was saved: several tensors may share "
        "one.": kept.copied(each=True),
    }.items()
