# %% [markdown] id="title"
# # Lab 03: my checkpoint
#
# `torch.utils.checkpoint` is one function with a thousand lines behind it. Two hundred are enough.
# In this lab you write it: first as an `autograd.Function`, which many projects still have, then
# with hooks, as PyTorch does today. At the end your function takes the place of PyTorch's: the same
# gradients to the last bit, the same peak to the last byte.
#
# **Budget:** 90 minutes, 1 GiB of memory, no GPU needed.
#
# | exercise | you write | points |
# |---|---|---|
# | 3.1 | discard and recompute, as an `autograd.Function` | 3 |
# | 3.2 | the same with hooks: once, and no further than needed | 3 |
# | 3.3 | random state, autocast, BatchNorm: the same twice | 3 |
# | 3.4 | any arguments, kept by autograd | 2 |
# | 3.5 | several backwards, and tensors that live no longer than needed | 3 |
# | 3.6 | a check of the recomputation, and `checkpoint` itself | 3 |
#
# Each answer goes into a cell that begins with `# exercise`, with its check right below. Helper
# functions, imports and constants may also stand in cells of your own above it. The checks
# look at gradients, at counted bytes and at how often each block ran. They refuse
# `torch.utils.checkpoint`. Chapters 04 and 05 lead up to this lab.

# %% id="imports"
import contextlib
import time
import weakref
from functools import partial
from itertools import zip_longest

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from tutorial_lib import checks, memory
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.unet import UNet, UNetConfig

# %% [markdown] id="the-mark"
# ## The mark to reach
#
# Six transformer blocks, one after the other, and a way to run them: `call(block, x)` is
# `block(x)`, or a checkpoint of it.

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
# **Predict.** All six blocks are checkpointed. How many per cent of the peak are left? (What is
# *not* divided by six?)

# %% id="guess-mark"
guess_mark = None  # per cent


# %% id="measure-mark"
def plain(function, *args):
    return function(*args)


torch_checkpoint = partial(torch.utils.checkpoint.checkpoint, use_reentrant=False)
goal = {
    "plain": peak_bytes(plain),
    "PyTorch's checkpoint": peak_bytes(torch_checkpoint),
}
left = 100 * goal["PyTorch's checkpoint"] / goal["plain"]
print(f"{left:.0f} %{beside(guess_mark, left)}")
goal

# %% [markdown] id="read-mark"
# A good third, and not a sixth. The gradients of the weights are there either way, and while a
# block goes backward, all of *its* tensors are there again. The second number is yours by the end
# of 3.2, to the byte.

# %% [markdown] id="text-3-1"
# ## 3.1 Discard and recompute
#
# Difficulty 2/5 · importance 4/5 · 12 minutes
#
# An `autograd.Function` has a forward, in which autograd records nothing, and a backward, which
# gets the gradient of the output. In between it keeps what `ctx.save_for_backward` was given. Run
# the function and keep only its inputs. When the gradient comes, run it again with gradients on,
# and go backward through that.
#
# The numbers to reach: autograd saves one unit for a block, its input and nothing else, and each
# block runs exactly twice.


# %% id="answer-3-1"
# exercise 3.1
class Discard(torch.autograd.Function):
    """Run a function, keep only its inputs, and run it again when backward comes."""

    @staticmethod
    def forward(ctx, function, *tensors: Tensor) -> Tensor:
        """Run the function; autograd records nothing in here.

        Args:
            ctx: Carries what backward will need: attributes of your choice, and the
                tensors that `ctx.save_for_backward` is given.
            function: Maps the tensors to one tensor.
            tensors: Its inputs; some may need no gradient.
        """
        ### BEGIN SOLUTION
        ctx.function = function
        ctx.save_for_backward(*tensors)
        return function(*tensors)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, grad_output: Tensor) -> tuple:
        """Recompute, and go backward through the recomputation.

        Gradients of the function's parameters are accumulated on the way, as in any
        backward.

        Args:
            ctx: The same object; `ctx.saved_tensors` gives the tensors back.
            grad_output: Gradient of the loss with respect to the output.

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
# Three lines: put the function on `ctx`, save the tensors, return what the function gives. Autograd
# is off in here without your doing.
# </details>
# <details><summary>Hint 2: why detach?</summary>
#
# The saved inputs still belong to the graph of the blocks before. Give the recomputation detached
# inputs, and let them need a gradient where the originals did.
# </details>
# <details><summary>Hint 3: two ways backward</summary>
#
# Backward runs with gradients off: `torch.enable_grad()` turns them on for the recomputation. Then
# `torch.autograd.backward`, given the output and the gradient that arrived, fills the `.grad` of
# your detached inputs and of the parameters. The function itself has no gradient: its place in the
# answer is None.
# </details>

# %% [markdown] id="after-3-1"
# Now the flaw. The input of the first block is data, and data need no gradient.
#
# **Predict.** The loss is of the last block's output. How many parameters of the six blocks receive
# a gradient?

# %% id="guess-cut"
guess_cut = None  # parameters

# %% id="cut-graph"
out = Discard.apply(blocks[0], x)
try:
    gradients(Discard.apply)
except RuntimeError as error:
    print(error)
reached = sum(parameter.grad is not None for parameter in blocks.parameters())
print(
    f"{reached} parameters{beside(guess_cut, reached)}; the output needs one: "
    f"{out.requires_grad}"
)

# %% [markdown] id="read-cut-graph"
# Autograd sees the output of the first block as a result of its tensor arguments alone. None of
# them needs a gradient, so the output needs none. Here the error is loud. Put one trainable layer
# behind the blocks, and it is silent: that layer learns, and the blocks do not. PyTorch keeps this
# form as `use_reentrant=True`, with a warning.

# %% [markdown] id="text-3-2"
# ## 3.2 With hooks
#
# Difficulty 3/5 · importance 5/5 · 15 minutes
#
# The other form leaves the graph as it is. Forward runs with gradients on, and only *keeping
# tensors* is changed: inside `saved_tensors_hooks(pack, unpack)` autograd calls `pack(tensor)` for
# each tensor that it wants to keep, and keeps what `pack` returns. When backward needs the tensor,
# it calls `unpack` with that. So `pack` gives a number. The first `unpack` runs the function again,
# under a `pack` that collects. It saves the same tensors in the same order, so the number finds the
# tensor.
#
# Chapter 05 ran the function to its end. PyTorch's stops as soon as the last saved tensor is there.
# Yours shall do so too: an exception is the only way out of somebody else's function. Here is one.
# How often is `pack` called in an MLP (Linear, GELU, Linear) on data that need no gradient, and
# with what?


# %% id="watch-pack"
class StopEarlyError(Exception):
    """Raised in a recomputation when all tensors are there, to leave the function."""


mlp, seen = blocks[0].mlp, []
weights = {parameter.data_ptr() for parameter in mlp.parameters()}


def show(tensor):
    seen.append(
        (
            tuple(tensor.shape),
            "weight" if tensor.data_ptr() in weights else "activation",
        )
    )
    return tensor


with saved_tensors_hooks(show, lambda tensor: tensor):
    mlp(x)
seen

# %% [markdown] id="goal-3-2"
# `pack` sees the input of each of the three, and one weight, transposed. The second Linear needs it
# for the gradient of its input; the first one's input needs no gradient. Weights pass through
# `pack` like everything else, and cost nothing, since they are there anyway.
#
# The numbers to reach: each block begins twice and ends once, and the peak is the second one above.
# To stay that low, a recomputed tensor must be let go as soon as it has been used.


# %% id="answer-3-2"
# exercise 3.2
def hooked(function, *args):
    """Run a function so that autograd keeps nothing; recompute on demand, stop early.

    Args:
        function: Any function of tensors; it computes the same every time.
        args: Its arguments. None of them has to need a gradient.

    Returns:
        What the function returns, with its graph.
    """
    num_saved = 0
    recomputed: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> int:
        """In forward: give a number for the tensor, and keep no tensor."""
        ### BEGIN SOLUTION
        nonlocal num_saved
        num_saved += 1
        return num_saved - 1
        ### END SOLUTION

    def collect(tensor: Tensor) -> Tensor:
        """In the recomputation: store the tensor; return what its graph keeps.

        Raises:
            StopEarlyError: When this was the last one.
        """
        ### BEGIN SOLUTION
        kept = tensor.detach()
        recomputed[len(recomputed)] = kept
        if len(recomputed) == num_saved:
            raise StopEarlyError
        return kept
        ### END SOLUTION

    def run_again() -> None:
        function(*args)

    def unpack(number: int) -> Tensor:
        """In backward: recompute if nothing is there; hand the tensor out, once."""
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
# <details><summary>Hint 1: counting</summary>
#
# `pack` returns how many tensors came before, and counts on: the counter is `nonlocal`. `collect`
# can use `len(recomputed)`, since nothing is taken out while the recomputation runs.
# </details>
# <details><summary>Hint 2: the recomputation</summary>
#
# Backward runs with gradients off, and autograd saves nothing then. Recompute under
# `torch.enable_grad()` and `saved_tensors_hooks(collect, ...)`. `contextlib.suppress` catches the
# exception that says "enough".
# </details>
# <details><summary>Hint 3: right gradients, and too much memory?</summary>
#
# Then look at what `collect` stores. A tensor that was computed holds the graph that computed it,
# and that graph holds what `collect` returned. `tensor.detach()` is the same memory without the
# graph.
# </details>

# %% [markdown] id="text-3-3"
# ## 3.3 The same twice
#
# Difficulty 3/5 · importance 5/5 · 15 minutes
#
# "It computes the same every time" is not true of a model in training. With dropout, `hooked` draws
# other masks in the recomputation. Is there an error?

# %% id="dropout-off"
blocks.train()
wanted = gradients(plain)


def error_of(call):
    got = gradients(call)
    off = max((a - b).norm() / b.norm() for a, b in zip(got, wanted, strict=True))
    return "equal to the last bit" if same(got, wanted) else f"off by up to {off:.0%}"


error_of(hooked)

# %% [markdown] id="read-dropout-off"
# No error, and wrong gradients. Three things must be as they were in the forward:
#
# - the **random state**, of the CPU and of each device that the function uses. And afterwards the
#   state must be what it was *before* the recomputation, else the next layer draws twice the same;
# - **autocast**: forward ran inside `with torch.autocast(...)`, and backward runs outside;
# - **BatchNorm's statistics**, which count the batch once more with every forward. PyTorch's own
#   checkpoint counts it twice; yours shall not. With `momentum` 0 and no `num_batches_tracked`, a
#   BatchNorm normalises as ever and its statistics stay as they are.
#
# You have these to read and to set them:


# %% id="given-3-3"
def read_rng(devices):
    """Read the random state of the CPU and of these devices."""
    states = {gpu: torch.get_device_module(gpu).get_rng_state(gpu) for gpu in devices}
    return {torch.device("cpu"): torch.get_rng_state(), **states}


def write_rng(states):
    """Set the random states that `read_rng` read."""
    for place, state in states.items():
        module = torch if place.type == "cpu" else torch.get_device_module(place)
        module.set_rng_state(state, *([] if place.type == "cpu" else [place]))


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


def batch_norms(function):
    """List BatchNorms that would count a batch, in a module or a method's owner."""
    owner = getattr(function, "__self__", function)
    modules = owner.modules() if isinstance(owner, nn.Module) else ()
    norms = (m for m in modules if isinstance(m, nn.modules.batchnorm._BatchNorm))
    return [norm for norm in norms if norm.training and norm.track_running_stats]


@contextlib.contextmanager
def uncounted(norms):
    """Let these BatchNorms normalise and not count."""
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
    """Remember what a function's result depends on beside its arguments, as it is now.

    Args:
        function: What will be run again; its BatchNorms must not count a batch twice.
        devices: GPUs whose random state is to be remembered beside the CPU's.
        preserve_rng_state: Leave the random state alone when False.

    Returns:
        A function without arguments that gives a context manager. Inside it, random
        state and autocast are as they were when `remember_surroundings` was called, and
        BatchNorms do not count. When the context ends, even by an exception, all is
        what it was on entry.
    """
    default_device = torch.get_default_device()
    ### BEGIN SOLUTION
    rng = read_rng(devices) if preserve_rng_state else {}
    autocast, norms = read_autocast(), batch_norms(function)
    ### END SOLUTION

    @contextlib.contextmanager
    def restored():
        with contextlib.ExitStack() as stack:
            if torch.get_default_device() != default_device:
                stack.enter_context(default_device)
            ### BEGIN SOLUTION
            if rng:
                stack.callback(write_rng, read_rng(devices))
                write_rng(rng)
            now = read_autocast()
            for kind, settings in autocast.items():
                # entering what is there already would cost time
                if settings != now[kind]:
                    stack.enter_context(torch.autocast(kind, **settings))
            if norms:
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
# The upper part runs during forward: read there. The lower part runs during backward: set there
# what was read above.
# </details>
# <details><summary>Hint 2: and back again</summary>
#
# `stack.callback(f, a)` calls `f(a)` when the stack is left, whatever happened: which function, and
# with what that is read now? `stack.enter_context(c)` enters `c`, and leaves it with the stack.
# </details>
# <details><summary>Hint 3: autocast</summary>
#
# `torch.autocast(kind, **settings)` takes the settings as `read_autocast` gives them. Enter one for
# each kind. If autocast was off in forward and is on in backward, it must be turned off.
# </details>


# %% [markdown] id="after-3-3"
# With the two together:


# %% id="dropout-on"
def faithful(function, *args):
    restored, runs = remember_surroundings(function), []

    def run(*args):
        runs.append(1)
        with restored() if len(runs) > 1 else contextlib.nullcontext():
            return function(*args)

    return hooked(run, *args)


error_of(faithful)

# %% [markdown] id="text-3-4"
# ## 3.4 Any arguments
#
# Difficulty 2/5 · importance 4/5 · 12 minutes
#
# `hooked` keeps its arguments in a closure, and that has a price. A closure is invisible to
# autograd:
#
# - nobody notices when an argument is changed in place between forward and backward;
# - a checkpoint *around* this one cannot discard this one's inputs, so nesting saves nothing;
# - `torch.autograd.graph.save_on_cpu` around it does not move them;
# - a list that the function pops from is empty when the function runs again.
#
# The cure for all four: flatten the arguments, keep tensors *as saved tensors*, put all together
# again later. The Function below saves tensors and computes nothing. `tree_flatten` gives the
# leaves of nested arguments, and their structure.


# %% id="given-3-4"
class SaveInputs(torch.autograd.Function):
    """Has autograd keep some tensors, for as long as the output of `apply` lives.

    `output.grad_fn.saved_tensors` gives them back.
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


def anchor():
    """Make the empty tensor that needs a gradient (chapter 04's *dummy tensor*)."""
    return torch.empty(0, requires_grad=True)


leaves, structure = tree_flatten(
    (([torch.zeros(2), "name"], 3), {"mask": torch.ones(2)})
)
leaves


# %% id="answer-3-4"
# exercise 3.4
def save_arguments(args: tuple, kwargs: dict):
    """Have autograd keep the arguments of a call.

    Args:
        args: Positional arguments: tensors, anything else, and lists, tuples and dicts
            of those.
        kwargs: Keyword arguments, of the same kinds.

    Returns:
        A function without arguments that gives `(args, kwargs)` back as they were.
        Tensors are the very tensors, and no tensor is held but by `SaveInputs`;
        containers are new.
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
# Remember at which places of `leaves` tensors stand. Those go to `SaveInputs.apply`, after the
# anchor; the rest may stay in the list.
# </details>
# <details><summary>Hint 2: let go</summary>
#
# As long as `leaves` holds a tensor, your closure holds it. Put None in its place. Names count too:
# what a nested function mentions is kept alive with it.
# </details>
# <details><summary>Hint 3: bringing back</summary>
#
# Keep the output of `SaveInputs.apply`: its `grad_fn.saved_tensors` gives the tensors in the order
# of saving, and asks the hooks each time: read it once a call. Fill a *copy* of the list, then
# `tree_unflatten(copy, structure)`.
# </details>

# %% [markdown] id="text-3-5"
# ## 3.5 A region of the graph
#
# Difficulty 4/5 · importance 4/5 · 20 minutes
#
# Backward is not always one pass from the loss to the weights. `torch.autograd.grad` asks for some
# gradients only, and `retain_graph=True` comes back for more. What does `hooked` make of that?

# %% id="two-backwards"
loss = hooked(blocks[0], x).square().mean()
torch.autograd.grad(loss, blocks[0].mlp.down.weight, retain_graph=True)
try:
    loss.backward()
except KeyError as error:
    print("KeyError:", error)

# %% [markdown] id="slots-text"
# The first backward took only some of the tensors out of the dictionary. The second one found it
# not empty, recomputed nothing, and missed what the first one had taken. A dictionary by number
# cannot tell two backwards apart. So:
#
# - Instead of the tensor, autograd keeps a small placeholder object, a `Slot`. Autograd alone holds
#   it. When a node of the graph is freed, its slots die, and the region's weak references tell.
# - Each backward has a name, `current_backward()`. A region recomputes **once for each name**, and
#   puts each tensor into its slot under that name.
# - Unpacking takes the tensor out of the slot. Even with `retain_graph=True` nothing stays.
# - When the last slot is filled, **stop early**, as in 3.2.
#
# The numbers to reach: one recomputation for each backward, and an operation after the last saved
# tensor runs once, not twice.


# %% id="given-3-5"
class CheckpointError(RuntimeError):
    """The recomputation was not what the forward was."""


class Slot:
    """Stands for a saved tensor; holds it from its recomputation to its use."""

    __slots__ = ("__weakref__", "tensors")

    def __init__(self):
        self.tensors = {}  # name of a backward -> tensor


def current_backward():
    """Name the backward that is running; outside of any, give a new name each time."""
    group, task = torch._C._get_graph_exec_group(), torch._C._current_graph_task_id()
    return group or (task if task != -1 else object())


# %% id="answer-3-5"
# exercise 3.5
class Region:
    """The part of a graph that one call made: gives slots, recomputes on demand.

    Args:
        run: Runs the function; its result is dropped.
        bring_back: Gives `(args, kwargs)` for `run`.
        early_stop: Leave `run` when the last slot is filled.
        describe: Gives what to compare of a saved tensor.
        compare: Called with the descriptions of forward and of a recomputation that has
            ended.
    """

    def __init__(self, run, bring_back, early_stop=True, describe=id, compare=None):
        self.run, self.bring_back, self.early_stop = run, bring_back, early_stop
        self.describe, self.compare = describe, compare
        self.slots = []  # weak references, in the order of saving
        self.descriptions = []
        self.recomputed_for = set()  # names of backwards
        self.forward_is_done = False  # set by checkpoint

    def pack(self, tensor: Tensor) -> Slot:
        """In forward: stand a slot in the tensor's place."""
        slot = Slot()
        self.slots.append(weakref.ref(slot))
        self.descriptions.append(self.describe(tensor))
        return slot

    def unpack(self, slot: Slot) -> Tensor:
        """In backward: recompute once for it, and take the tensor out of its slot.

        Raises:
            CheckpointError: When this backward has taken it out before.
        """
        backward = current_backward()
        ### BEGIN SOLUTION
        if backward not in self.recomputed_for:
            self.recompute(backward)
            self.recomputed_for.add(backward)
        if backward not in slot.tensors:
            raise CheckpointError(
                "Unpack is being triggered for a tensor that was already unpacked once "
                "in this backward: read ctx.saved_tensors once and keep the result in "
                "a variable."
            )
        return slot.tensors.pop(backward)
        ### END SOLUTION

    def recompute(self, backward) -> None:
        """Run the function again, and fill the slots that are still alive.

        A function may go backward inside itself, before it has saved its last tensor:
            then there
        are fewer slots than tensors. What has no slot is kept by the recomputation's
        own graph.
        """
        again = []  # descriptions

        def collect(tensor: Tensor) -> Tensor:
            alias = tensor.detach() if tensor.requires_grad else tensor
            ### BEGIN SOLUTION
            slot = self.slots[len(again)]() if len(again) < len(self.slots) else None
            if slot is not None:
                slot.tensors[backward] = alias
            again.append(self.describe(tensor))
            if self.early_stop and len(again) == len(self.slots):
                raise StopEarlyError
            return alias
            ### END SOLUTION

        args, kwargs = self.bring_back()
        hooks = saved_tensors_hooks(collect, lambda alias: alias)
        with contextlib.suppress(StopEarlyError), torch.enable_grad(), hooks:
            self.run(*args, **kwargs)
        if self.compare is not None and self.forward_is_done:
            self.compare(self.descriptions, again)


# %% id="check-3-5"
# check 3.5 (3 points)
checks.lab03.region(Region)

# %% [markdown] id="hints-3-5"
# <details><summary>Hint 1: unpack</summary>
#
# Three steps: recompute if the name is not yet in `recomputed_for`, and note it; raise if the slot
# has nothing under the name; pop.
# </details>
# <details><summary>Hint 2: collect</summary>
#
# `len(again)` is the number of this tensor. If there is a reference with that number, call it: it
# gives the slot, or None when the slot is dead. Append to `again` in every case, else the numbers
# slip.
# </details>
# <details><summary>Hint 3: when to stop</summary>
#
# After the tensor with the last number was stored, and only if `early_stop` says so. An exception
# is the only way out of somebody else's function.
# </details>

# %% [markdown] id="text-3-6"
# ## 3.6 A check, and the whole
#
# Difficulty 3/5 · importance 5/5 · 15 minutes
#
# A function that reads a global or appends to a cache is not the same the second time. What it
# saves can be compared cheaply: how many tensors, and of each the shape, dtype and device. Values
# are not compared, and neither is what comes after an early stop.
#
# `compare` says the difference in words that lead to the line at fault. `checkpoint` puts all six
# exercises together. It can be called as PyTorch's, and `settings` reads its options for you.


# %% id="given-3-6"
def describe(tensor):
    """Give the operation that made a tensor, and what must come out again."""
    made_by = (
        type(tensor.grad_fn).__name__.removesuffix("0")
        if tensor.grad_fn
        else "no operation"
    )
    return made_by, tensor.shape, tensor.dtype, tensor.device


def say(description):
    """Put a description into words."""
    made_by, shape, dtype, where = description
    kind = str(dtype).removeprefix("torch.")
    return f"{kind} {tuple(shape)} on {where}, made by {made_by}"


def no_contexts():
    """Give the two contexts that do nothing."""
    return contextlib.nullcontext(), contextlib.nullcontext()


def gpus_of(args, kwargs):
    """Give the devices, other than the CPU, of all tensors in the arguments."""
    leaves, _ = tree_flatten((args, kwargs))
    places = {leaf.device for leaf in leaves if isinstance(leaf, Tensor)}
    return {place for place in places if place.type not in ("cpu", "meta")}


def switch(name, value):
    """Follow PyTorch's `set_checkpoint_early_stop` and `..._debug_enabled`."""
    everywhere = getattr(torch.utils.checkpoint, name, None)
    return value if everywhere is None else everywhere


class OpLog(TorchDispatchMode):
    """Write down every operation, for `debug=True`."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def __enter__(self):
        """Begin a new list: each recomputation is compared by itself."""
        self.lines = []
        return super().__enter__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run the operation and note its name and the shapes of its arguments."""
        shapes = [
            tuple(leaf.shape)
            for leaf in tree_flatten(args)[0]
            if isinstance(leaf, Tensor)
        ]
        # a recomputation detaches what it keeps
        if func is not torch.ops.aten.detach.default:
            self.lines.append(f"{func}{shapes}")
        return func(*args, **(kwargs or {}))


def compare_logs(logs, first, again):
    """Compare, and add to an error where the logs of forward and recomputation part."""
    try:
        compare(first, again)
    except CheckpointError as error:
        pairs = zip_longest(*(log.lines for log in logs), fillvalue="nothing")
        told = next(
            (pair for pair in pairs if pair[0] != pair[1]), ("the same", "the same")
        )
        raise CheckpointError(
            f"{error}\nYou are seeing this error because you passed `debug=True` to "
            "checkpoint. The first operation that differs was {} in forward, and {} in "
            "the recomputation.".format(*told)
        ) from error


# %% id="given-settings"
def settings(function, use_reentrant, determinism_check, context_fn, early_stop, debug):
    """Refuse what is not done; give context_fn, describes, compares and early_stop."""
    if not callable(function):
        kind = type(function).__name__
        raise TypeError(
            f"checkpoint calls its first argument, and got a {kind}: pass a function."
        )
    if use_reentrant:
        raise ValueError(
            "use_reentrant (=True) is not written here: pass use_reentrant=False."
        )
    if determinism_check not in ("default", "none"):
        raise ValueError(
            f"determinism_check (={determinism_check!r}) is 'default' or 'none'."
        )
    describes = describe if determinism_check == "default" else (lambda tensor: ())
    compares, early_stop = compare, switch("_enable_checkpoint_early_stop", early_stop)
    if switch("_checkpoint_debug_enabled", debug):
        if context_fn is not no_contexts:
            raise ValueError(
                "debug=True is incompatible with non-default context_fn: pass one."
            )
        logs = OpLog(), OpLog()
        context_fn, compares = partial(tuple, logs), partial(compare_logs, logs)
    return context_fn, describes, compares, early_stop


# %% id="answer-3-6"
# exercise 3.6
def compare(first: list, again: list) -> None:
    """Compare the descriptions of what forward and recomputation saved.

    Args:
        first: Of the forward: (operation, shape, dtype, device) each.
        again: Of the recomputation, which may have stopped early.

    Raises:
        CheckpointError: "trying to save more tensors during recomputation ..." or "A
            different number of tensors was saved ...", with both numbers; or "...
            tensors have different metadata ...", with the number of the first such
            tensor and both its descriptions, as `say` words them. The operations may
            differ, the rest may not.
    """
    ### BEGIN SOLUTION
    numbers = f"{len(first)} in forward, {len(again)} in the recomputation"
    if len(again) > len(first):
        raise CheckpointError(
            f"trying to save more tensors during recomputation: {numbers}."
        )
    if len(again) < len(first):
        raise CheckpointError(f"A different number of tensors was saved: {numbers}.")
    for number, (one, other) in enumerate(zip(first, again, strict=True)):
        if one[1:] != other[1:]:
            raise CheckpointError(
                "Recomputed values for the following tensors have different metadata: "
                f"number {number} was {say(one)}, and is {say(other)} in the "
                "recomputation."
            )
    ### END SOLUTION


def checkpoint(
    function,
    *args,
    use_reentrant=False,
    preserve_rng_state=True,
    determinism_check="default",
    context_fn=no_contexts,
    early_stop=True,
    debug=False,
    **kwargs,
):
    """Run a function, keep only its arguments, and run it again in backward.

    Args:
        function: Anything callable, with any arguments and results.
        args: Its positional arguments.
        use_reentrant: False, the only form that is written here.
        preserve_rng_state: Recompute with the random state of the forward.
        determinism_check: "none" compares only how many tensors were saved.
        context_fn: Gives two context managers: around the forward, around the
            recomputation.
        early_stop: Recompute no further than the last tensor that backward needs.
        debug: Let a CheckpointError name the first operation that differs.
        kwargs: The function's keyword arguments.

    Returns:
        What the function returns.
    """
    options = use_reentrant, determinism_check, context_fn, early_stop, debug
    context_fn, describes, compares, early_stop = settings(function, *options)
    ### BEGIN SOLUTION
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    around_forward, around_again = context_fn()
    restored = remember_surroundings(
        function, gpus_of(args, kwargs), preserve_rng_state
    )

    def run(*args, **kwargs):
        with restored(), around_again:
            function(*args, **kwargs)

    bring_back = save_arguments(args, kwargs)
    region = Region(run, bring_back, early_stop, describes, compares)
    with saved_tensors_hooks(region.pack, region.unpack), around_forward:
        output = function(*args, **kwargs)
    region.forward_is_done = True
    return output
    ### END SOLUTION


# %% id="check-3-6"
# check 3.6 (3 points)
checks.lab03.checkpoint(checkpoint)

# %% [markdown] id="hints-3-6"
# <details><summary>Hint 1: compare</summary>
#
# First the numbers of tensors, then pairs. A slice `one[1:]` leaves the operation out.
# </details>
# <details><summary>Hint 2: in which order</summary>
#
# Before the function runs: the surroundings, the two contexts, the arguments, the region. Then the
# function, under the region's hooks and inside the first context. Then `forward_is_done`.
# </details>
# <details><summary>Hint 3: what a region runs</summary>
#
# A small function that enters the restored surroundings and the second context, and calls the
# function there. It returns nothing, so that the recomputed output is gone at once. And where
# gradients are off, nothing is saved: call the function and be done.
# </details>

# %% [markdown] id="after-3-6"
# ## Side by side with PyTorch's
#
# The mark from the beginning, with dropout on: peak, and gradients equal to the bit.

# %% id="side-by-side"
calls = {"plain": plain, "PyTorch's": torch_checkpoint, "mine": checkpoint}
for name, call in calls.items():
    print(f"{name:<12}{peak_bytes(call):>10}", same(gradients(call), wanted))

# %% [markdown] id="unet"
# A U-Net's block takes two arguments and hands a tensor to a block much later. Under autocast, with
# dropout:


# %% id="unet-gradients"
unet = UNet(UNetConfig(base_channels=16, dropout=0.1))
images, times = torch.randn(4, 1, 16, 16), torch.arange(4)
noise = torch.randn_like(images)


def unet_gradients(call):
    for block in unet.blocks:
        block.forward = partial(call, partial(type(block).forward, block))
    unet.zero_grad()
    torch.manual_seed(2)
    with torch.autocast("cpu", torch.bfloat16):
        loss = unet.loss(images, times, noise)
    loss.backward()
    return [parameter.grad for parameter in unet.parameters()]


len(unet.blocks), same(unet_gradients(checkpoint), unet_gradients(plain))

# %% [markdown] id="read-unet"
# `True` is bit for bit, not nearly.
#
# And the time? It depends on the machine. Both run in turn, and the ratio is taken pair by pair.


# %% id="time-ratio"
# NBVAL_IGNORE_OUTPUT
def seconds(call):
    start = time.process_time()
    step(call)
    return time.process_time() - start


pairs = [(seconds(checkpoint), seconds(torch_checkpoint)) for _ in range(21)]
ratios = sorted(mine / theirs for mine, theirs in pairs)
half = f"half of them between {ratios[5]:.3f} and {ratios[15]:.3f}"
f"mine / PyTorch's: {ratios[10]:.3f}, {half}"

# %% [markdown] id="gpu"
# ## On a GPU
#
# Never graded. The random state of the GPU is restored, and the allocator counts the peak.

# %% id="gpu-compare"
# NBVAL_IGNORE_OUTPUT
if torch.cuda.is_available():
    gpu_blocks = GPT(
        GPTConfig(seq_len=256, num_layers=12, d_model=256, dropout=0.1)
    ).blocks.cuda()
    blocks, x = gpu_blocks, torch.randn(16, 256, 256, device="cuda")
    wanted = gradients(plain)
    for name, call in calls.items():
        print(f"{name:<12}{peak_bytes(call):>10}", same(gradients(call), wanted))

# %% [markdown] id="end"
# PyTorch's also has `torch.compile` and the reentrant form. Yours also saves the tensors in lists
# and keyword arguments, and lets BatchNorm count a batch once. From here on the course uses
# PyTorch's. Chapter 06 asks *where* to put the checkpoints.
