# %% [markdown] id="title"
# # Lab 03: my checkpoint
#
# You write the core of `torch.utils.checkpoint`: first as an `autograd.Function`, then
# with hooks. At the end your function has the same gradients and peak as PyTorch's.
#
# **Budget:** 90 minutes, 1 GiB of memory, no GPU needed. Read chapters 04 and 05 first.
#
# | exercise | you write | points |
# |---|---|---|
# | 3.1 | discard and recompute, as an `autograd.Function` | 3 |
# | 3.2 | the same with hooks: recompute once, and no further than needed | 3 |
# | 3.3 | random state, autocast, BatchNorm: two runs that agree | 3 |
# | 3.4 | any arguments, kept by autograd | 2 |
# | 3.5 | several backwards, and tensors that live no longer than needed | 3 |
# | 3.6 | `checkpoint` itself | 3 |
#
# Write each answer into its `# exercise` cell, helpers and imports into your own cells
# above it. The checks refuse `torch.utils.checkpoint`.

# %% id="imports"
import contextlib
import weakref
from functools import partial
from itertools import zip_longest
from types import SimpleNamespace

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from tutorial_lib import checks, memory
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, GPTConfig

# %% [markdown] id="the-mark"
# ## The peak to reach

# %% id="blocks"
torch.set_num_threads(1)  # sums in one order, and no waiting for a busy core
torch.manual_seed(0)
config = GPTConfig(seq_len=64, num_layers=6, num_heads=4, d_model=64, dropout=0.1)
blocks = GPT(config).blocks.eval()  # no dropout, until 3.3
x = torch.randn(4, 64, 64)  # (batch, sequence, d_model)


def step(call):
    h = x
    for block in blocks:
        h = call(block, h)
    h.square().mean().backward()


# %% id="instruments"
def peak_bytes(call):
    step(call)  # the first time, PyTorch imports things
    blocks.zero_grad()
    with memory.watch(model=blocks) as report:
        step(call)
    return report.peak_bytes - report.baseline_bytes


def gradients(call):
    blocks.zero_grad()
    torch.manual_seed(1)
    step(call)
    return [parameter.grad for parameter in blocks.parameters()]


def same(some, others):
    return all(map(torch.equal, some, others))


# %% [markdown] id="predict-mark"
# **Predict.** All six blocks are checkpointed. What percentage of the plain step's peak
# is left?

# %% id="guess-mark"
guess = None  # percent


# %% id="given-plain"
def plain(function, *args):
    return function(*args)


# %% id="measure-mark"
torch_checkpoint = partial(torch.utils.checkpoint.checkpoint, use_reentrant=False)
goal = {
    "plain": peak_bytes(plain),
    "PyTorch's checkpoint": peak_bytes(torch_checkpoint),
}
left = 100 * goal["PyTorch's checkpoint"] / goal["plain"]
print(f"{left:.0f} %{beside(guess, left)}")
goal

# %% [markdown] id="text-3-1"
# ## 3.1 Discard and recompute
#
# Difficulty 2/5 · importance 4/5 · 12 minutes
#
# Write `Discard`, an `autograd.Function`. In forward, run the function and save only
# its inputs. In backward, which gets the output's gradient, run the function again with
# gradients on, and go backward through the new graph. An input may need no gradient, or
# hold integers, which can't have one.
#
# The goal: autograd saves only a block's input, and each block runs exactly twice.


# %% id="answer-3-1"
# exercise 3.1
class Discard(torch.autograd.Function):
    """Run a function, keep only its inputs, and run it again when backward comes."""

    @staticmethod
    def forward(ctx, function, *tensors: Tensor) -> Tensor:
        """Run a function of tensors; have autograd save these, and nothing else."""
        ### BEGIN SOLUTION
        ctx.function = function
        ctx.save_for_backward(*tensors)
        return function(*tensors)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, grad_output: Tensor) -> tuple:
        """Recompute, and go backward through the recomputation.

        Fills the `.grad` of the function's parameters, as any backward does.

        Returns:
            A gradient for each argument of forward after ctx, None where there is none.
        """
        ### BEGIN SOLUTION
        inputs = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]
        with torch.enable_grad():
            output = ctx.function(*inputs)
        torch.autograd.backward(output, grad_output)
        return None, *(tensor.grad for tensor in inputs)
        ### END SOLUTION


# %% id="check-3-1"
# check 3.1 (3 points)
checks.lab03.discard(Discard)

# %% [markdown] id="hints-3-1"
# <details><summary>Hint 1: forward</summary>
#
# Store the function on `ctx`, and pass the tensors to `ctx.save_for_backward`. In
# backward, `ctx.saved_tensors` returns them.
# </details>
# <details><summary>Hint 2: why detach?</summary>
#
# The saved inputs still belong to the previous blocks' graph. Give the recomputation
# detached inputs that require a gradient if the originals did.
# </details>
# <details><summary>Hint 3: going backward</summary>
#
# In backward, gradients are off: `torch.enable_grad()` turns them on. Then
# `torch.autograd.backward`, given the output and its gradient, fills the `.grad` of
# your detached inputs and of the parameters.
# </details>

# %% [markdown] id="after-3-1"
# The first block's input is data, which doesn't require a gradient.
#
# **Predict.** After a step with `Discard`, how many parameter tensors of the six blocks
# have a gradient?

# %% id="guess-cut"
guess = None  # parameter tensors

# %% id="cut-graph"
try:
    gradients(Discard.apply)
except RuntimeError as error:
    print(error)
reached = sum(parameter.grad is not None for parameter in blocks.parameters())
print(f"{reached} parameters{beside(guess, reached)}")

# %% [markdown] id="read-cut-graph"
# Autograd looks only at a Function's tensor arguments, not at the parameters that the
# function uses.

# %% [markdown] id="text-3-2"
# ## 3.2 With hooks
#
# Difficulty 3/5 · importance 5/5 · 12 minutes
#
# Under `saved_tensors_hooks(pack, unpack)`, forward builds its usual graph. Autograd
# keeps what `pack(tensor)` returns, here a number, and calls `unpack` with it when
# backward needs the tensor:
#
# ```text
# forward      pack(a) -> 0    pack(b) -> 1    pack(c) -> 2
# backward     unpack(2): run again, collect a, b, c, stop; return c, then b, then a
# ```
#
# The recomputation saves the same tensors in the same order, so the number identifies
# the tensor. Stop recomputing once the last tensor has been collected. To do so, raise
# `StopEarlyError`, defined below.
#
# **Predict.** How many times does the forward of an MLP (Linear, GELU, Linear) call
# `pack`, if its input doesn't require a gradient?

# %% id="guess-pack"
guess = None  # calls


# %% id="given-stop-early"
class StopEarlyError(Exception):
    """Raised in a recomputation when all tensors are there, to leave the function."""


# %% id="watch-pack"
mlp, seen = blocks[0].mlp, []
weights = {parameter.data_ptr() for parameter in mlp.parameters()}


def show(tensor):
    kind = "weight" if tensor.data_ptr() in weights else "activation"
    seen.append((tuple(tensor.shape), kind))
    return tensor


with saved_tensors_hooks(show, lambda tensor: tensor):
    mlp(x)
print(f"{len(seen)} calls{beside(guess, len(seen))}")
seen

# %% [markdown] id="goal-3-2"
# Write two functions: `collect`, which is the recomputation's pack hook, and `unpack`.
# The goal: each block starts twice, but only the run in forward reaches its end, and
# the peak equals PyTorch's above. For that peak, release a recomputed tensor once it
# has been used.


# %% id="answer-3-2"
# exercise 3.2
def hooked(function, *args):
    """Run a function, have autograd keep nothing; recompute on demand, stop early."""
    num_saved = 0
    recomputed: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> int:
        nonlocal num_saved
        num_saved += 1
        return num_saved - 1

    def collect(tensor: Tensor) -> Tensor:
        """Store a recomputed tensor, return what the new graph keeps; or stop."""
        ### BEGIN SOLUTION
        recomputed[len(recomputed)] = kept = tensor.detach()
        if len(recomputed) == num_saved:
            raise StopEarlyError
        return kept
        ### END SOLUTION

    def run_again() -> None:
        function(*args)

    def unpack(number: int) -> Tensor:
        """In backward: recompute if nothing is stored; return a tensor only once."""
        ### BEGIN SOLUTION
        if not recomputed:
            hooks = saved_tensors_hooks(collect, lambda kept: kept)
            with torch.enable_grad(), hooks, contextlib.suppress(StopEarlyError):
                run_again()
        return recomputed.pop(number)
        ### END SOLUTION

    with saved_tensors_hooks(pack, unpack):
        return function(*args)


# %% id="check-3-2"
# check 3.2 (3 points)
checks.lab03.hooked(hooked)

# %% [markdown] id="hints-3-2"
# <details><summary>Hint 1: collect</summary>
#
# `len(recomputed)` is the arriving tensor's number, since nothing is removed during the
# recomputation.
# </details>
# <details><summary>Hint 2: the recomputation</summary>
#
# Recompute under `torch.enable_grad()` and `saved_tensors_hooks(collect, ...)`.
# `contextlib.suppress` catches the exception.
# </details>
# <details><summary>Hint 3: right gradients, but too much memory?</summary>
#
# A computed tensor keeps its graph alive, and that graph holds what `collect` returned.
# `tensor.detach()` shares the memory, but has no graph.
# </details>

# %% [markdown] id="text-3-3"
# ## 3.3 The same twice
#
# Difficulty 3/5 · importance 5/5 · 12 minutes
#
# With dropout, `hooked` draws different masks in the recomputation, and no error is
# raised.
#
# **Predict.** Compared with the plain step, what is the largest relative error (in
# norm) of a parameter's gradient, in percent?

# %% id="guess-dropout"
guess = None  # percent


# %% id="dropout-off"
blocks.train()
wanted = gradients(plain)


def largest_error(call):
    pairs = zip(gradients(call), wanted, strict=True)
    return 100 * max(float((a - b).norm() / b.norm()) for a, b in pairs)


off = largest_error(hooked)
print(f"off by up to {off:.0f} %{beside(guess, off)}")

# %% [markdown] id="read-dropout-off"
# Three things must be right in the recomputation:
#
# - the **random state**: the same as in forward, on the CPU and on each device that the
#   function uses. Afterwards, restore the state from *before* the recomputation, or
#   else the next layer draws the same numbers again;
# - **autocast**: the same as in forward;
# - **BatchNorm's running statistics**: the recomputation must not change them.
#
# Write `remember_surroundings`, with the functions in the next cells. It has two
# blanks: replace both `raise` lines.


# %% id="given-rng"
def read_rng(devices):
    """Read the random state of the CPU and of these devices."""
    states = {gpu: torch.get_device_module(gpu).get_rng_state(gpu) for gpu in devices}
    return torch.get_rng_state(), states


def write_rng(read):
    """Set the random states that `read_rng` read."""
    of_cpu, states = read
    torch.set_rng_state(of_cpu)
    for gpu, state in states.items():
        torch.get_device_module(gpu).set_rng_state(state, gpu)


# %% id="given-autocast"
def read_autocast():
    """Read the settings of torch.autocast: keyword arguments by device type."""
    accelerator = torch.accelerator.current_accelerator()
    kinds = ["cpu", accelerator.type] if accelerator is not None else ["cpu"]
    cache = torch.is_autocast_cache_enabled()
    return {
        kind: {
            "enabled": torch.is_autocast_enabled(kind),
            "dtype": torch.get_autocast_dtype(kind),
            "cache_enabled": cache,
        }
        for kind in kinds
        if torch.amp.is_autocast_available(kind)
    }


# %% id="given-norms"
def batch_norms(function):
    """List a module's (or a method's owner's) BatchNorms that would count a batch."""
    owner = getattr(function, "__self__", function)
    modules = owner.modules() if isinstance(owner, nn.Module) else ()
    norms = (m for m in modules if isinstance(m, nn.modules.batchnorm._BatchNorm))
    return [norm for norm in norms if norm.training and norm.track_running_stats]


@contextlib.contextmanager
def uncounted(norms):
    """Make these BatchNorms normalize without updating their statistics."""
    before = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, momentum, count in before:
            norm.momentum, norm.num_batches_tracked = momentum, count


# %% id="answer-3-3"
# exercise 3.3
def remember_surroundings(function, devices=(), preserve_rng_state=True):
    """Remember the current state of what a result depends on besides the arguments.

    Args:
        function: What will be run again.
        devices: GPUs whose random state is remembered as well as the CPU's.
        preserve_rng_state: If False, leave the random state alone.

    Returns:
        A function that returns a context manager. Inside it, everything is as it is
        now. After it, even after an exception, everything is as it was on entry.
    """
    default_device = torch.get_default_device()
    ### BEGIN SOLUTION
    rng = read_rng(devices) if preserve_rng_state else None
    autocast, norms = read_autocast(), batch_norms(function)
    ### END SOLUTION

    @contextlib.contextmanager
    def restored():
        with contextlib.ExitStack() as stack:
            if torch.get_default_device() != default_device:
                stack.enter_context(default_device)
            ### BEGIN SOLUTION
            if rng is not None:
                stack.callback(write_rng, read_rng(devices))
                write_rng(rng)
            for kind, settings in autocast.items():
                stack.enter_context(torch.autocast(kind, **settings))
            stack.enter_context(uncounted(norms))
            ### END SOLUTION
            yield

    return restored


# %% id="check-3-3"
# check 3.3 (3 points)
checks.lab03.remember_surroundings(remember_surroundings)

# %% [markdown] id="hints-3-3"
# <details><summary>Hint 1: two moments</summary>
#
# In the upper blank, which runs during forward, read the random state and autocast's
# settings, and list the BatchNorms. In the lower blank, which runs during backward, set
# the first two, and enter `uncounted` for the BatchNorms. </details>
# <details><summary>Hint 2: and back again</summary>
#
# `stack.callback(f, a)` calls `f(a)` when the stack is left, even by an error.
# `stack.enter_context(c)` enters `c`, and leaves it with the stack.
# </details>
# <details><summary>Hint 3: autocast</summary>
#
# Enter `torch.autocast(kind, **settings)` for each kind from `read_autocast`, even if
# autocast was off in forward.
# </details>
#
# `faithful` is `hooked` with your function around the recomputation:


# %% id="dropout-on"
def faithful(function, *args):
    restored, runs = remember_surroundings(function), []

    def run(*args):
        runs.append(1)
        with restored() if len(runs) > 1 else contextlib.nullcontext():
            return function(*args)

    return hooked(run, *args)


print(f"off by {largest_error(faithful)} %")

# %% [markdown] id="text-3-4"
# ## 3.4 Any arguments
#
# Difficulty 2/5 · importance 4/5 · 12 minutes
#
# `hooked` keeps its arguments in a closure, where autograd can't see them. Three things
# go wrong:
#
# - no error is raised when an argument is changed in place;
# - a checkpoint *around* another can't discard the inner checkpoint's inputs, so
#   nesting saves no memory;
# - a list that the function pops from is empty when the function runs again.
#
# So write `save_arguments`: flatten the arguments, let autograd save the tensors, and
# reassemble everything later. `SaveInputs`, given below, saves tensors. `tree_flatten`
# returns the leaves of nested arguments, and their structure;
# `tree_unflatten(leaves, structure)` rebuilds the arguments.


# %% id="given-3-4"
class SaveInputs(torch.autograd.Function):
    """Has autograd keep some tensors, for as long as the output of `apply` lives.

    `output.grad_fn.saved_tensors` returns them. Each read calls the hooks again.
    """

    @staticmethod
    def forward(ctx, anchor, *tensors):
        """Save the tensors; the anchor needs a gradient, so that a node is made."""
        ctx.save_for_backward(*tensors)
        return torch.empty(0)

    @staticmethod
    def backward(ctx, grad_output):
        """Refuse: nothing is ever computed from the output."""
        raise AssertionError("nobody goes backward through saved inputs.")


# %% id="given-anchor"
def anchor():
    """Make an empty tensor that needs a gradient (chapter 04's *dummy tensor*)."""
    return torch.empty(0, requires_grad=True)


arguments = (([torch.zeros(2), "name"], 3), {"mask": torch.ones(2)})
leaves, structure = tree_flatten(arguments)
leaves


# %% id="answer-3-4"
# exercise 3.4
def save_arguments(args: tuple, kwargs: dict):
    """Have autograd keep the arguments of a call: tensors, others, containers of both.

    Returns:
        A function without arguments that returns `(args, kwargs)` as they were. The
        tensors are the same objects, read once per call, and only `SaveInputs` holds
        them. The containers are new in each call.
    """
    ### BEGIN SOLUTION
    leaves, structure = tree_flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    keeper = SaveInputs.apply(anchor(), *(leaves[place] for place in places))
    for place in places:
        leaves[place] = None
    ### END SOLUTION

    def bring_back() -> tuple[tuple, dict]:
        ### BEGIN SOLUTION
        again = list(leaves)
        for place, tensor in zip(places, keeper.grad_fn.saved_tensors, strict=True):
            again[place] = tensor
        return tree_unflatten(again, structure)
        ### END SOLUTION

    return bring_back


# %% id="check-3-4"
# check 3.4 (2 points)
checks.lab03.save_arguments(save_arguments)

# %% [markdown] id="hints-3-4"
# <details><summary>Hint 1: sort the leaves</summary>
#
# Remember which entries of `leaves` are tensors. Pass those to `SaveInputs.apply`,
# after `anchor()`.
# </details>
# <details><summary>Hint 2: release the tensors</summary>
#
# As long as a tensor is in `leaves`, your closure holds it: put None in its place.
# </details>
# <details><summary>Hint 3: restoring the arguments</summary>
#
# Keep the output of `SaveInputs.apply`. Read its `grad_fn.saved_tensors` once per call.
# Put these tensors into a *copy* of the list, then `tree_unflatten(copy, structure)`.
# </details>

# %% [markdown] id="text-3-5"
# ## 3.5 A region of the graph
#
# Difficulty 4/5 · importance 4/5 · 15 minutes
#
# `torch.autograd.grad` computes only some gradients, and `retain_graph=True` allows
# another backward. Does `hooked` handle both?

# %% id="two-backwards"
loss = hooked(blocks[0], x).square().mean()
torch.autograd.grad(loss, blocks[0].mlp.down.weight, retain_graph=True)
try:
    loss.backward()
except Exception as error:
    print(type(error).__name__, error)

# %% [markdown] id="slots-text"
# No. The second backward found tensors left from the first, so it recomputed nothing,
# and the tensor it needed was missing. Instead, write a `Region`, for the part of the
# graph that one call made:
#
# - Instead of a tensor, autograd keeps a placeholder, a `Slot`. The region has only
#   weak references to its slots, so a slot dies when autograd frees the node that holds
#   it.
# - Each backward has a name, `current_backward()`. The region recomputes **once for
#   each name**, and puts each tensor into its slot under that name.
# - Unpacking takes the tensor out of the slot.
# - The recomputation **stops early**, as in 3.2: right after the last slot's tensor,
#   even if that slot is dead.
#
# `pack` and `recompute` are given; write `unpack` and `fill`. The goal: each backward
# recomputes once.


# %% id="given-3-5"
class CheckpointError(RuntimeError):
    """The recomputation differed from the forward."""


ALREADY_UNPACKED = (
    "Unpack is being triggered for a tensor that was already unpacked once in this "
    "backward: read ctx.saved_tensors once and keep the result in a variable."
)


class Slot:
    """A saved tensor's placeholder; holds the tensor from recomputation to use."""

    __slots__ = ("__weakref__", "tensors")

    def __init__(self):
        self.tensors = {}  # name of a backward -> tensor


def current_backward():
    """Return the running backward's name; outside a backward, a new one each time."""
    group, task = torch._C._get_graph_exec_group(), torch._C._current_graph_task_id()
    return group or (task if task != -1 else object())


# %% id="given-recomputing"
class Recomputing:
    """Packs in forward; in backward, runs `run` again on what `bring_back` returns."""

    def __init__(self, run, bring_back, early_stop=True, describe=id, compare=None):
        self.run, self.bring_back, self.early_stop = run, bring_back, early_stop
        self.describe, self.compare = describe, compare  # for 3.6
        self.slots = []  # weak references, in the order of saving
        self.descriptions = []
        self.recomputed_for = set()  # names of backwards
        self.forward_is_done = False  # set by checkpoint

    def pack(self, tensor):
        slot = Slot()
        self.slots.append(weakref.ref(slot))
        self.descriptions.append(self.describe(tensor))
        return slot

    def recompute(self, backward):
        again = []  # descriptions

        def collect(tensor):
            alias = tensor.detach() if tensor.requires_grad else tensor
            again.append(self.describe(tensor))
            self.fill(len(again) - 1, alias, backward)
            return alias

        args, kwargs = self.bring_back()
        hooks = saved_tensors_hooks(collect, lambda alias: alias)
        with contextlib.suppress(StopEarlyError), torch.enable_grad(), hooks:
            self.run(*args, **kwargs)
        if self.compare is not None and self.forward_is_done:
            self.compare(self.descriptions, again)


# %% id="answer-3-5"
# exercise 3.5
class Region(Recomputing):
    """The part of a graph that one call made: packs slots, recomputes on demand."""

    def unpack(self, slot: Slot) -> Tensor:
        """Recompute once per backward; take the tensor out of its slot.

        Raises:
            CheckpointError: With `ALREADY_UNPACKED`, if this backward has taken the
                tensor out before.
        """
        backward = current_backward()
        ### BEGIN SOLUTION
        if backward not in self.recomputed_for:
            self.recompute(backward)
            self.recomputed_for.add(backward)
        if backward not in slot.tensors:
            raise CheckpointError(ALREADY_UNPACKED)
        return slot.tensors.pop(backward)
        ### END SOLUTION

    def fill(self, number: int, alias: Tensor, backward) -> None:
        """In the recomputation: put tensor `number` into its slot, if that is alive.

        There may be more tensors than slots, if the function runs a backward itself.

        Raises:
            StopEarlyError: After the last slot, if `early_stop` is set.
        """
        ### BEGIN SOLUTION
        slot = self.slots[number]() if number < len(self.slots) else None
        if slot is not None:
            slot.tensors[backward] = alias
        if self.early_stop and number + 1 == len(self.slots):
            raise StopEarlyError
        ### END SOLUTION


# %% id="check-3-5"
# check 3.5 (3 points)
checks.lab03.region(Region)

# %% [markdown] id="hints-3-5"
# <details><summary>Hint 1: unpack</summary>
#
# Recompute if the name isn't yet in `recomputed_for`, then add the name. If the slot
# has nothing under the name, raise; otherwise pop.
# </details>
# <details><summary>Hint 2: fill</summary>
#
# Calling a weak reference returns its slot, or None if the slot is dead.
# </details>
# <details><summary>Hint 3: when to stop</summary>
#
# The last slot has the number `len(self.slots) - 1`.
# </details>

# %% [markdown] id="text-3-6"
# ## 3.6 The whole function
#
# Difficulty 3/5 · importance 5/5 · 12 minutes
#
# A function that reads a global or appends to a cache may compute something different
# the second time. A cheap test, `compare`, looks at what the two runs save: the number
# of tensors, and their shapes, dtypes and devices.


# %% id="given-describe"
def describe(tensor):
    """Return the operation that made a tensor, and what the two runs must agree on."""
    node = tensor.grad_fn
    made_by = type(node).__name__.removesuffix("0") if node else "no operation"
    return made_by, tensor.shape, tensor.dtype, tensor.device


# %% id="given-say"
def say(description):
    """Put a description into words."""
    made_by, shape, dtype, where = description
    kind = str(dtype).removeprefix("torch.")
    return f"{kind} {tuple(shape)} on {where}, made by {made_by}"


# %% id="given-compare"
def compare(first, again):
    """Compare the descriptions of what forward and recomputation saved."""
    numbers = f"{len(first)} in forward, {len(again)} in the recomputation"
    if len(again) > len(first):
        raise CheckpointError(
            f"trying to save more tensors during recomputation: {numbers}."
        )
    if len(again) < len(first):
        raise CheckpointError(f"A different number of tensors was saved: {numbers}.")
    for number, (one, other) in enumerate(zip(first, again, strict=True)):
        if one[1:] != other[1:]:  # the operations may differ
            raise CheckpointError(
                "Recomputed values for the following tensors have different metadata: "
                f"number {number} was {say(one)}, and is {say(other)} in the "
                "recomputation."
            )


# %% id="given-debug"
class OpLog(TorchDispatchMode):
    """Logs every operation, for `debug=True`; each entering begins a new list."""

    def __enter__(self):
        self.lines = []
        return super().__enter__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        leaves = tree_flatten(args)[0]
        shapes = [tuple(leaf.shape) for leaf in leaves if isinstance(leaf, Tensor)]
        # a recomputation detaches what it keeps
        if func is not torch.ops.aten.detach.default:
            self.lines.append(f"{func}{shapes}")
        return func(*args, **(kwargs or {}))


# %% id="given-logs"
def compare_logs(logs, first, again):
    """Compare, and add to an error the first operation that differs in the two logs."""
    try:
        compare(first, again)
    except CheckpointError as error:
        pairs = zip_longest(*(log.lines for log in logs), fillvalue="nothing")
        parted = [pair for pair in pairs if pair[0] != pair[1]]
        one, other = parted[0] if parted else ("the same", "the same")
        raise CheckpointError(
            f"{error}\nYou are seeing this error because you passed `debug=True` to "
            f"checkpoint. The first operation that differs was {one} in forward, and "
            f"{other} in the recomputation."
        ) from error


# %% [markdown] id="text-options"
# Write `checkpoint`, which is called like PyTorch's: `read_options` takes PyTorch's
# options out of the keyword arguments. The surroundings (3.3) need
# `options.preserve_rng_state`, and the region (3.5) needs `.early_stop`, `.describe`
# and `.compare`. `options.context_fn` returns two contexts: enter the first around
# forward, the second around the recomputation.
#
# Save the arguments before the function runs, since it may change them, and outside the
# region's hooks. After forward, set the region's `forward_is_done` to True: otherwise
# it compares nothing.
#
# If gradients are off, just call the function. The peak to reach is PyTorch's. Of the
# functions in the next cells, you call only `gpus_of`.


# %% id="given-defaults"
def no_contexts():
    """Return the two contexts that do nothing."""
    return contextlib.nullcontext(), contextlib.nullcontext()


def gpus_of(args, kwargs):
    """Return the devices, other than the CPU, of all tensors in the arguments."""
    leaves, _ = tree_flatten((args, kwargs))
    places = {leaf.device for leaf in leaves if isinstance(leaf, Tensor)}
    return {place for place in places if place.type not in ("cpu", "meta")}


# %% id="given-switch"
def switch(name, value):
    """Follow PyTorch's `set_checkpoint_early_stop` and `..._debug_enabled`."""
    everywhere = getattr(torch.utils.checkpoint, name, None)
    return value if everywhere is None else everywhere


# %% id="given-refuse"
def refuse(function, options):
    """Refuse what cannot be called, and options that are not supported here."""
    if not callable(function):
        kind = type(function).__name__
        raise TypeError(
            f"checkpoint calls its first argument, and got a {kind}: pass a function."
        )
    if options.use_reentrant:
        raise ValueError(
            "use_reentrant (=True) is not supported: pass use_reentrant=False."
        )
    if options.determinism_check not in ("default", "none"):
        raise ValueError(
            f"determinism_check (={options.determinism_check!r}) is 'default' or "
            "'none'."
        )
    if options.debug and options.context_fn is not no_contexts:
        raise ValueError(
            "debug=True is incompatible with non-default context_fn: pass only one."
        )


# %% id="given-options"
def read_options(function, kwargs):
    """Take the options out of a call's keyword arguments."""
    defaults = {
        "use_reentrant": False,
        "preserve_rng_state": True,
        "determinism_check": "default",
        "context_fn": no_contexts,
        "early_stop": True,
        "debug": False,
    }
    read = {name: kwargs.pop(name, value) for name, value in defaults.items()}
    options = SimpleNamespace(**read, describe=describe, compare=compare)
    options.early_stop = switch("_enable_checkpoint_early_stop", options.early_stop)
    options.debug = switch("_checkpoint_debug_enabled", options.debug)
    refuse(function, options)
    if options.determinism_check == "none":
        options.describe = lambda tensor: ()
    if options.debug:
        logs = OpLog(), OpLog()
        options.context_fn = partial(tuple, logs)
        options.compare = partial(compare_logs, logs)
    return options


# %% id="answer-3-6"
# exercise 3.6
def checkpoint(function, *args, **kwargs):
    """Return a function's result and keep only its arguments; backward runs it again.

    Args:
        function: Anything callable, with any arguments and results.
        args: Its positional arguments.
        kwargs: Its keyword arguments, and PyTorch's options.
    """
    options = read_options(function, kwargs)
    ### BEGIN SOLUTION
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    around_forward, around_again = options.context_fn()
    devices = gpus_of(args, kwargs)
    restored = remember_surroundings(function, devices, options.preserve_rng_state)

    def run(*args, **kwargs):
        with restored(), around_again:
            function(*args, **kwargs)

    bring_back = save_arguments(args, kwargs)
    comparison = options.describe, options.compare
    region = Region(run, bring_back, options.early_stop, *comparison)
    with saved_tensors_hooks(region.pack, region.unpack), around_forward:
        output = function(*args, **kwargs)
    region.forward_is_done = True
    return output
    ### END SOLUTION


# %% id="check-3-6"
# check 3.6 (3 points)
checks.lab03.checkpoint(checkpoint)

# %% [markdown] id="hints-3-6"
# <details><summary>Hint 1: in which order</summary>
#
# Before the function runs, read the surroundings, create the two contexts, save the
# arguments, and create the region. Then run the function under the region's hooks,
# inside the first context.
# </details>
# <details><summary>Hint 2: what a region runs</summary>
#
# Give the region a small function that enters the restored surroundings and the second
# context, calls `function`, and returns nothing.
# </details>
# <details><summary>Hint 3: if gradients are off</summary>
#
# Return the function's result.
# </details>

# %% [markdown] id="after-3-6"
# ## Side by side with PyTorch's
#
# Do peaks and gradients agree, with dropout on?

# %% id="side-by-side"
calls = {"plain": plain, "PyTorch's": torch_checkpoint, "mine": checkpoint}
for name, call in calls.items():
    print(f"{name:<12}{peak_bytes(call):>10}", same(gradients(call), wanted))

# %% [markdown] id="gpu"
# ## On a GPU
#
# This part is never graded. On a GPU, attention's backward adds in no fixed order, so
# even two *plain* runs differ.

# %% id="gpu-compare"
# NBVAL_IGNORE_OUTPUT
if torch.cuda.is_available():
    gpu_blocks = GPT(
        GPTConfig(seq_len=256, num_layers=12, d_model=256, dropout=0.1)
    ).blocks.cuda()
    blocks, x = gpu_blocks, torch.randn(16, 256, 256, device="cuda")
    wanted = gradients(plain)
    for name, call in calls.items():
        pairs = zip(gradients(call), wanted, strict=True)
        far = max(float((one - other).norm() / other.norm()) for one, other in pairs)
        print(f"{name:<12}{peak_bytes(call):>10}, gradients off by {far:.0e}")
