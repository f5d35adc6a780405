# %% [markdown] id="title"
# # Lab 02: the measurement clinic
#
# Before you make a training step smaller, you must be able to say how large it is, and many of the
# numbers that people post are wrong: read too early, taken on a cold machine, or left over from the
# run before. In this lab broken benchmarks come in as patients. You mend three of them, then you
# build two instruments that PyTorch does not come with, and at the end you profile a transformer of
# twelve layers, with and without checkpointing.
#
# **Budget:** 80 minutes, 1 GiB of memory, no GPU needed.
#
# | exercise | you write | points |
# |---|---|---|
# | 2.1 | the seconds of a step | 2 |
# | 2.2 | how much slower one step is than another | 2 |
# | 2.3 | the peak of a steady step | 2 |
# | 2.4 | the bytes that autograd saves, by hooks of your own | 3 |
# | 2.5 | a leak detector | 3 |
# | 2.6 | forward peak, backward peak, samples per second | 3 |
#
# Each answer goes into a cell that begins with `# exercise`, and the check stands right below it.
# Only those cells travel to grading: keep your helper functions, imports and constants inside them.
# The course's own meters are the oracle here, and the checks refuse answers that call them.

# %% id="imports"
import gc
import itertools
import statistics
import time
import weakref
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tutorial_lib import checks, memory, strategies
from tutorial_lib.checks.lab02 import PretendGPU
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.units import Bytes

torch.set_num_threads(1)  # the models are small: more threads only disturb each other

# %% [markdown] id="the-machine"
# ## The machine
#
# A benchmark that nobody can check is worth little, and real seconds differ from machine to machine
# and from minute to minute. So the patients are seen on a `PretendGPU`. It is read like
# `torch.cuda`: `synchronize`, `memory_allocated`, `max_memory_allocated` and
# `reset_peak_memory_stats`. Its bytes are real, those of tensors on your CPU. Its seconds are
# pretended: they pass as a script says, which is why everybody must get the same number here.
#
# Like a GPU it has a queue. `launch` puts work into it and returns after 20 µs; the work goes on
# while Python runs ahead. Here is a step that takes a quarter of a second on an idle, warm machine.
# This one is neither: `slowness` says by which factor each launch takes longer.

# %% id="a-busy-machine"
SLOWNESS = [30, 4, 1.0, 1.04, 1.02, 8, 1.06]  # cold, cold, fine, fine, fine, a neighbour, fine


def quarter_second_step(gpu):
    return lambda: gpu.launch(0.25)


# %% [markdown] id="text-2-1"
# ## 2.1 The seconds of a step
#
# Difficulty 1/5 · importance 5/5 · 10 minutes
#
# The first patient is the benchmark that everybody has written once.


# %% id="patient-2-1"
def seconds_per_step(step, gpu, clock, repeats=5):
    start = clock()
    for _ in range(repeats):
        step()
    return (clock() - start) / repeats


# %% [markdown] id="predict-2-1"
# **Predict.** Four of the seven launches take about a quarter of a second, the others much longer.
# Will the patient say more than 0.25 s or less?

# %% id="measure-2-1"
gpu = PretendGPU(slowness=SLOWNESS)
seconds_per_step(quarter_second_step(gpu), gpu, gpu.now)


# %% [markdown] id="read-2-1"
# Twenty microseconds: the patient has timed the *launch*. The first cure that comes to mind is to
# wait for the queue before the clock is read again. **Predict** once more, then run it.


# %% id="half-mended-2-1"
def seconds_per_step_and_wait(step, gpu, clock, repeats=5):
    start = clock()
    for _ in range(repeats):
        step()
    gpu.synchronize()
    return (clock() - start) / repeats


gpu = PretendGPU(slowness=SLOWNESS)
round(seconds_per_step_and_wait(quarter_second_step(gpu), gpu, gpu.now), 3)

# %% [markdown] id="goal-2-1"
# Now it is about seven times too much. The cold steps are in it, and a mean believes every one of
# them. Three faults, then: no waiting, no warm-up, a mean. Mended, with two steps of warm-up and
# five timed ones, the answer for this machine is **0.26 s**, the median.


# %% id="answer-2-1"
# exercise 2.1
def step_seconds(
    step: Callable[[], object], gpu, clock: Callable[[], float], *, warmup: int, repeats: int
) -> float:
    """Time a step.

    Args:
        step: Launches one step's work.
        gpu: Its `synchronize()` waits until all that was launched is done, as torch.cuda's does.
        clock: Gives the time in seconds.
        warmup: How many steps to run, to their end, before the first one is timed.
        repeats: How many steps to time, one by one.

    Returns:
        The median of the timed steps, in seconds.
    """
    ### BEGIN SOLUTION
    for _ in range(warmup):
        step()
    seconds = []
    for _ in range(repeats):
        gpu.synchronize()
        start = clock()
        step()
        gpu.synchronize()
        seconds.append(clock() - start)
    return statistics.median(seconds)
    ### END SOLUTION


# %% id="check-2-1"
# check 2.1 (2 points)
checks.lab02.step_seconds(step_seconds)

# %% [markdown] id="hints-2-1"
# <details><summary>Hint 1: where to wait</summary>
#
# At two places. The clock may be started only when nothing of an earlier step is left in the queue,
# and read again only when this step has left it.
# </details>
# <details><summary>Hint 2: what to keep</summary>
#
# Not one long time for all steps: a list with the time of each. Warm-up steps do not enter it.
# </details>
# <details><summary>Hint 3: why not the mean, why not the fastest</summary>
#
# One step in five met a neighbour. The mean is then off by a factor of more than two, the median by
# nothing. The fastest step is sturdy too, but it describes a moment that you will seldom see.
# `statistics` has the function.
# </details>

# %% [markdown] id="text-2-2"
# ## 2.2 How much slower?
#
# Difficulty 2/5 · importance 5/5 · 10 minutes
#
# "Checkpointing costs a third of the time" is a ratio, and ratios have a trap of their own. A
# laptop or a card without much air runs fast until it is hot, then slow. Here the machine grows hot
# after some launches, and from then on everything takes 2.2 times as long. The *other* step
# really takes 1.25 times as long as the plain one.


# %% id="patient-2-2"
def ratio_of_averages(plain, other, gpu, clock, repeats=7):
    averages = []
    for step in (plain, other):
        start = clock()
        for _ in range(repeats):
            step()
        gpu.synchronize()
        averages.append((clock() - start) / repeats)
    return averages[1] / averages[0]


# %% [markdown] id="predict-2-2"
# **Predict.** Seven plain steps, then seven others; after the seventh launch the machine is hot.
# What does the patient say?

# %% id="measure-2-2"
hot_after_seven = PretendGPU(slowness=[1.0] * 7 + [2.2])
ratio = ratio_of_averages(
    lambda: hot_after_seven.launch(0.24),
    lambda: hot_after_seven.launch(0.30),
    hot_after_seven,
    hot_after_seven.now,
)
round(ratio, 2)

# %% [markdown] id="read-2-2"
# 1.25 times 2.2: the heat is all in the second number. Medians instead of averages would change
# nothing. What helps is to run the two *in turn*, so that the two steps of a pair meet the same
# machine, and to compare within each pair. The number to reach is 1.25.


# %% id="answer-2-2"
# exercise 2.2
def slowdown(
    plain: Callable[[], object],
    other: Callable[[], object],
    gpu,
    clock: Callable[[], float],
    *,
    repeats: int,
) -> float:
    """Tell how many times as long `other` takes as `plain`.

    Args:
        plain: Launches one step's work.
        other: Launches the work of the step to compare with it.
        gpu: Has `synchronize()`.
        clock: Gives the time in seconds.
        repeats: How many pairs to time, in turn, after one untimed run of each.

    Returns:
        The median over the pairs of the ratio within a pair.
    """
    ### BEGIN SOLUTION
    plain()
    other()
    ratios = []
    for _ in range(repeats):
        first = step_seconds(plain, gpu, clock, warmup=0, repeats=1)
        second = step_seconds(other, gpu, clock, warmup=0, repeats=1)
        ratios.append(second / first)
    return statistics.median(ratios)
    ### END SOLUTION


# %% id="check-2-2"
# check 2.2 (2 points)
checks.lab02.slowdown(slowdown)

# %% [markdown] id="hints-2-2"
# <details><summary>Hint 1: the order</summary>
#
# Plain, other, plain, other, and so on. The change from cold to hot then falls into one pair at
# most, and spoils that one.
# </details>
# <details><summary>Hint 2: one step, timed</summary>
#
# You have a function that times steps. With which `warmup` and `repeats` does it time one?
# </details>
# <details><summary>Hint 3: divide first</summary>
#
# The median of the plain times and the median of the other times may come from different pairs, one
# before and one after the machine grew hot. Take a ratio for each pair, and the median last.
# </details>

# %% [markdown] id="text-2-3"
# ## 2.3 The peak of a steady step
#
# Difficulty 2/5 · importance 5/5 · 10 minutes
#
# Now memory. There is no queue to wait for: the allocator keeps its books on the host, when work is
# launched. Other things go wrong. Here is the transformer of this lab, twelve layers, and a patient
# of three lines.

# %% id="the-model"
torch.manual_seed(0)
config = GPTConfig(vocab_size=512, seq_len=64, num_layers=12, num_heads=4, d_model=96)
gpt = GPT(config)
adamw = torch.optim.AdamW(gpt.parameters(), foreach=False)
tokens = torch.randint(0, config.vocab_size, (8, config.seq_len))  # (batch, sequence)


def train_on(batch):
    adamw.zero_grad()
    gpt.loss(batch).backward()
    adamw.step()


# %% id="patient-2-3"
def profile_memory(step, gpu):
    step()
    return gpu.max_memory_allocated()


# %% [markdown] id="predict-2-3"
# **Predict.** The patient measures a step on four sequences, then one on all eight, then again the
# same four. Which of the three numbers will be equal, and which of them is right for four?

# %% id="measure-2-3"
counted = PretendGPU(gpt)
with counted:
    four = profile_memory(lambda: train_on(tokens[:4]), counted)
    eight = profile_memory(lambda: train_on(tokens), counted)
    four_again = profile_memory(lambda: train_on(tokens[:4]), counted)
[Bytes(size) for size in (four, eight, four_again)]

# %% [markdown] id="read-2-3"
# The last two are equal, to the byte, for steps of different sizes: the peak is a high-water mark,
# and nobody reset it. The first number is no better. It is the first step of all, and AdamW had no
# state yet while its backward ran. And all three contain what lies there between two steps, the
# parameters above all, which says something of the model and nothing of the step.
#
# So the number wanted is the *increase* over what lies there before a steady step. It depends on
# where `zero_grad` stands: `train_on` calls it first, so the old gradients lie there before the
# step and are freed in it. At the end of the step it would leave less there before, and the
# increase would be larger by the gradients, at the same peak. For four sequences, by the course's
# meter:

# %% id="goal-2-3"
report = memory.measure(lambda: train_on(tokens[:4]), model=gpt, optimizer=adamw)
report.peak_bytes - report.baseline_bytes


# %% id="answer-2-3"
# exercise 2.3
def steady_peak(step: Callable[[], object], gpu, *, warmup: int) -> int:
    """Measure what a steady training step takes on top of what lies there before it.

    Args:
        step: Does one full training step.
        gpu: Has `memory_allocated()`, bytes there now, `max_memory_allocated()`, the most since the
            last reset, and `reset_peak_memory_stats()`, as torch.cuda has them.
        warmup: How many steps to run before the measured one.

    Returns:
        Bytes.
    """
    ### BEGIN SOLUTION
    for _ in range(warmup):
        step()
    there_before = gpu.memory_allocated()
    gpu.reset_peak_memory_stats()
    step()
    return gpu.max_memory_allocated() - there_before
    ### END SOLUTION


# %% id="check-2-3"
# check 2.3 (2 points)
checks.lab02.steady_peak(steady_peak)

# %% [markdown] id="hints-2-3"
# <details><summary>Hint 1: three readings of a tide gauge</summary>
#
# How high is the water now? Wipe off the old mark. How high has it been since?
# </details>
# <details><summary>Hint 2: when to wipe</summary>
#
# A first step tries out kernels, and some need much workspace. If the mark is wiped before the
# warm-up, theirs is the mark you read.
# </details>
# <details><summary>Hint 3: when to read what was there before</summary>
#
# The warm-up leaves gradients and optimizer state. They lie there before the measured step.
# </details>
# %% [markdown] id="use-2-3"
# The patient once more, with your function in its place: four sequences, eight, and the same four.

# %% id="mended-2-3"
with counted:
    peaks = [steady_peak(lambda n=n: train_on(tokens[:n]), counted, warmup=1) for n in (4, 8, 4)]
[Bytes(size) for size in peaks]

# %% [markdown] id="read-mended-2-3"
# Equal where the step is the same, and otherwise not. Twice the sequences take clearly more than
# twice as much. The reason: each step finds the last gradients lying there and drops them at its
# beginning, so a constant is subtracted from both numbers.

# %% [markdown] id="text-2-4"
# ## 2.4 What autograd saves
#
# Difficulty 3/5 · importance 5/5 · 15 minutes
#
# A peak says how much. To know *what*, ask autograd: it calls a pair of hooks, `pack` for each
# tensor that it saves in forward and `unpack` when backward needs it. Whatever `pack` returns is
# kept in the tensor's place. Three operations, and the shapes of what they save:


# %% [markdown] id="predict-2-4"
# **Predict.** Linear, softmax, and a product of the two halves of its result. How many tensors will
# be packed, and how many *storages*, pieces of memory, are behind them?

# %% id="measure-2-4"
linear, rows = nn.Linear(64, 128), torch.randn(32, 64)
packed = []


def show(tensor):
    packed.append(tensor.detach())
    print(tuple(tensor.shape), "shows", tensor.nbytes, "of", tensor.untyped_storage().nbytes())
    return tensor


with torch.autograd.graph.saved_tensors_hooks(show, lambda tensor: tensor):
    left, right = linear(rows).softmax(dim=-1).chunk(2, dim=-1)
    product = left * right
len(packed), len({tensor.untyped_storage() for tensor in packed})

# %% [markdown] id="read-2-4"
# Adding up all these sizes would count the softmax's result twice: whole, and as two halves. A
# tensor is a window; the memory is its storage, and `tensor.untyped_storage()` is the same object
# for all windows on it. Some windows show half of a storage and keep all of it alive. (`show` has a
# fault that none of its numbers shows. If yours has it too, the check will say so.)
#
# Write `activation_bytes`. Weights and buffers lie there anyhow and do not count, in whatever
# disguise autograd saves them. For the transformer on eight sequences the number to reach is

# %% id="goal-2-4"
int(memory.saved(lambda: gpt.loss(tokens), params_of=gpt).num_bytes)


# %% id="answer-2-4"
# exercise 2.4
def activation_bytes(forward: Callable[[], object], model: nn.Module) -> int:
    """Count the bytes that autograd keeps between forward and backward.

    Args:
        forward: Runs the model on one batch. Call it once, and run no backward.
        model: Its parameters and buffers do not count.

    Returns:
        Bytes of all storages of saved tensors, each once. All of it can be freed afterwards.
    """
    ### BEGIN SOLUTION
    resident = {t.untyped_storage() for t in [*model.parameters(), *model.buffers()]}
    saved = set()

    def pack(tensor: Tensor) -> Tensor:
        saved.add(tensor.untyped_storage())
        return tensor.detach()  # the tensor itself would hold the graph that holds it

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(storage.nbytes() for storage in saved - resident)
    ### END SOLUTION


# %% id="check-2-4"
# check 2.4 (3 points)
checks.lab02.activation_bytes(activation_bytes)

# %% [markdown] id="hints-2-4"
# <details><summary>Hint 1: each storage once</summary>
#
# Storages can be members of a set, or keys of a dictionary. Which bytes does a storage have?
# </details>
# <details><summary>Hint 2: weights in disguise</summary>
#
# A Linear saves the transpose of its weight: another tensor, another shape, the same storage. So
# compare storages here too, not tensors and not names.
# </details>
# <details><summary>Hint 3: what pack may return</summary>
#
# A softmax saves its own result, and that tensor's `grad_fn` is the node that saves it. Return the
# tensor itself and each holds the other for ever, with right numbers all the while. An alias
# without a graph breaks the ring.
# </details>

# %% [markdown] id="text-2-5"
# ## 2.5 A leak detector
#
# Difficulty 4/5 · importance 4/5 · 20 minutes
#
# "It ran for three hours, then it ran out of memory." Something that a step made was still there
# when the next one began. Here is such a step: it trains, then it notes a validation loss, one
# number of four bytes.

# %% id="patient-2-5"
validation_losses = []


def train_and_validate():
    train_on(tokens[:4])
    validation_losses.append(gpt.loss(tokens[4:]))


# %% [markdown] id="predict-2-5"
# **Predict.** By how many bytes does each step fill the machine?

# %% id="measure-2-5"
with counted:
    train_and_validate()  # the first one is a warm-up, as always
    held = [counted.memory_allocated()]
    for _ in range(4):
        train_and_validate()
        held.append(counted.memory_allocated())
[Bytes(after - before) for before, after in itertools.pairwise(held)]

# %% [markdown] id="read-2-5"
# The number brings its graph along, and the graph all that it saved for a backward that will never
# come. A common way to look for leaks goes through `gc.get_objects()`, all objects that Python
# knows. It misses what was never one of them, such as the log-probabilities that `cross_entropy`
# makes for itself, the largest tensor here. So a tensor must be caught at birth, and then followed
# without being held. There is a tool for each:


# %% id="tool-dispatch"
class Spy(TorchDispatchMode):
    """Is asked to run every operation, and says which it was."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        print(func.overloadpacket.__name__, tuple(out.shape))
        return out


with Spy():
    grid = torch.ones(4, 3)
    doubled = (2 * grid[1:]).relu_()

# %% id="tool-weak"
followed = weakref.WeakKeyDictionary({doubled.untyped_storage(): "mul"})
while_it_lives = list(followed.values())
del doubled
while_it_lives, list(followed.values())

# %% [markdown] id="goal-2-5"
# A `WeakKeyDictionary` forgets what dies. With these two, write `find_leaks`: list every storage
# that the step made and that is still alive after it. Leave out gradients and optimizer state, even
# if this step created them: a step is meant to leave those. No false alarms either. Of the spy's
# four operations only two made memory: can you tell from arguments and result which? And some
# objects refer to themselves, so that they die only when Python's collector comes by.
#
# The number to reach: the sizes that you list for the patient add up to what was counted above.


# %% id="answer-2-5"
# exercise 2.5
class Births(TorchDispatchMode):
    """Follows every storage that an operation makes, and does not hold it."""

    def __init__(self):
        super().__init__()
        self.made_by = weakref.WeakKeyDictionary()  # from storage to operation

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run an operation; its results may be a tensor, or several in a list or tuple."""
        out = func(*args, **(kwargs or {}))
        ### BEGIN SOLUTION
        known = {t.untyped_storage() for t in tensors_in((args, kwargs))}
        for tensor in tensors_in(out):
            if tensor.untyped_storage() not in known:
                self.made_by.setdefault(tensor.untyped_storage(), func.overloadpacket.__name__)
        ### END SOLUTION
        return out


def tensors_in(tree) -> list[Tensor]:
    """List the tensors in nested lists, tuples and dicts."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def find_leaks(
    step: Callable[[], object], model: nn.Module, optimizer: torch.optim.Optimizer
) -> list[tuple[str, int]]:
    """List what a step has made and left behind.

    Args:
        step: Does one training step, and may return its loss. Call it once.
        model: Its gradients are no leak.
        optimizer: Its state, `optimizer.state`, is no leak.

    Returns:
        For each storage the operation that made it, as in "addmm", and its bytes, in any order.
    """
    ### BEGIN SOLUTION
    with Births() as births:
        step()
    gc.collect()
    gradients = [parameter.grad for parameter in model.parameters()]
    meant = {t.untyped_storage() for t in tensors_in([gradients, list(optimizer.state.values())])}
    return [
        (op, storage.nbytes()) for storage, op in births.made_by.items() if storage not in meant
    ]
    ### END SOLUTION


# %% id="check-2-5"
# check 2.5 (3 points)
checks.lab02.find_leaks(find_leaks)

# %% [markdown] id="hints-2-5"
# <details><summary>Hint 1: born here, or only passed on?</summary>
#
# A result whose storage is among the storages of the arguments is a view, or was changed in place.
# Its storage was made before, by another operation or before the step. Ask `tensors_in` for the
# tensors on both sides, since some operations take and give lists.
# </details>
# <details><summary>Hint 2: what is still there</summary>
#
# After the step, the weak dictionary holds what lives. Let Python's collector come by first.
# </details>
# <details><summary>Hint 3: what is meant to stay</summary>
#
# `parameter.grad`, where it is not None, and for each parameter a dict of tensors in
# `optimizer.state`. Compare storages once more.
# </details>

# %% [markdown] id="use-2-5"
# The patient, examined. `validation_losses` still holds the graphs of the steps before; only what
# this one step adds is listed.

# %% id="examine-patient"
leaks = sorted(find_leaks(train_and_validate, gpt, adamw), key=lambda leak: leak[1])
listed = [(op, Bytes(size)) for op, size in leaks[-3:]]
Bytes(sum(size for _, size in leaks)), listed

# %% [markdown] id="read-patient"
# The scores for every word, and more: a forward pass, complete. The cure is one of `loss.item()`,
# `loss.detach()`, or `torch.no_grad()` around the validation. Only the last also saves memory
# *while* the validation runs:

# %% id="cured"
validation_losses.clear()


def train_and_validate_cured():
    train_on(tokens[:4])
    with torch.no_grad():
        validation_losses.append(gpt.loss(tokens[4:]))


find_leaks(train_and_validate_cured, gpt, adamw)

# %% [markdown] id="read-cured"
# Four bytes, made on purpose. A detector lists suspects; the verdict is yours.

# %% [markdown] id="text-2-6"
# ## 2.6 The profile
#
# Difficulty 3/5 · importance 5/5 · 15 minutes
#
# The last patient is a table: forward peak, backward peak, samples per second, with and without
# checkpointing. It needs everything so far. For the first two lines run a steady step and report
# *total* bytes, parameters and state included (not the increase, as in 2.3): the peak during
# forward, then the peak during backward. The third line is the median of whole steps, waited for.
#
# `strategies.applied(gpt, "per-block")` checkpoints each of the twelve blocks for a while: a block
# keeps its input alone and runs again in backward.
#
# **Predict.** Without checkpointing, is the forward peak far below the backward peak, just below
# it, or above? The meter gives the numbers to reach:

# %% id="goal-2-6"
report = memory.measure(lambda: train_on(tokens), model=gpt, optimizer=adamw)
{phase: int(size) for phase, size in report.phases.items()}

# %% [markdown] id="predict-checkpointed"
# **Predict** the same for the checkpointed step, and keep your guess until you have your own table.


# %% id="answer-2-6"
# exercise 2.6
def profile_step(
    loss_fn: Callable[[], Tensor],
    optimizer: torch.optim.Optimizer,
    gpu,
    clock: Callable[[], float],
    *,
    num_samples: int,
    repeats: int,
) -> dict[str, float]:
    """Profile a training step: zero_grad, forward, backward, update.

    Args:
        loss_fn: Runs forward on one batch and gives the loss.
        optimizer: Updates the model.
        gpu: Has the four methods of torch.cuda that this lab uses.
        clock: Gives the time in seconds.
        num_samples: Samples in a batch.
        repeats: How many steps to time, after one of warm-up.

    Returns:
        "forward_bytes" and "backward_bytes", the most that was allocated during these phases of a
        steady step, as ints, and "samples_per_second".
    """
    ### BEGIN SOLUTION
    peaks = {}

    def one_step() -> None:
        optimizer.zero_grad()
        gpu.reset_peak_memory_stats()
        loss = loss_fn()
        peaks["forward_bytes"] = gpu.max_memory_allocated()
        gpu.reset_peak_memory_stats()
        loss.backward()
        peaks["backward_bytes"] = gpu.max_memory_allocated()
        optimizer.step()

    seconds = step_seconds(one_step, gpu, clock, warmup=1, repeats=repeats)
    return {**peaks, "samples_per_second": num_samples / seconds}
    ### END SOLUTION


# %% id="check-2-6"
# check 2.6 (3 points)
checks.lab02.profile_step(profile_step)

# %% [markdown] id="hints-2-6"
# <details><summary>Hint 1: a step with readings in it</summary>
#
# Write the four parts of a step as an inner function. The mark is wiped and read around forward,
# then wiped and read around backward. Reading it takes no time worth mentioning.
# </details>
# <details><summary>Hint 2: from the inner function to the result</summary>
#
# Let the inner function write its readings into a dictionary outside. The last step overwrites
# those of the first, and that is what you want.
# </details>
# <details><summary>Hint 3: samples per second</summary>
#
# Time the inner function with your own `step_seconds`. A step sees `num_samples` samples.
# </details>

# %% [markdown] id="profile-text"
# The twelve layers, plain and checkpointed. Bytes first: they are counted, and counting takes time,
# so the samples per second of this run would be unfair.

# %% id="profile-table"
table = {}
for strategy in ("none", "per-block"):
    with strategies.applied(gpt, strategy), counted:
        how = {"gpu": counted, "clock": time.perf_counter, "num_samples": 8, "repeats": 1}
        result = profile_step(lambda: gpt.loss(tokens), adamw, **how)
    table[strategy] = {phase: result[phase] for phase in ("forward_bytes", "backward_bytes")}
table

# %% [markdown] id="read-profile"
# Plain, it is what the meter gave, to the byte. The two peaks are nearly one: when forward ends,
# everything is saved, and backward begins by adding two flowing gradients to it. Checkpointed, they
# part. Forward ends with twelve inputs of blocks and little else. Backward then rebuilds one block
# at a time, while the gradients of all parameters pile up beside it. The meter's picture of that
# step:

# %% id="draw-checkpointed"
with strategies.applied(gpt, "per-block"):
    checkpointed = memory.measure(
        lambda: train_on(tokens), model=gpt, optimizer=adamw, label="per block"
    )
checkpointed.figure()

# %% [markdown] id="price"
# Nothing is free. `torch.cpu` has a `synchronize` too, so your functions run on this machine as
# they are.
#
# **Predict.** Each block runs forward twice. Backward is about twice the work of forward. How much
# longer will a step take? (This output is your machine's own, and the notebook does not compare
# it.)

# %% id="real-seconds"
# NBVAL_IGNORE_OUTPUT


def checkpointed_step():
    with strategies.applied(gpt, "per-block"):
        train_on(tokens)


options = {"gpu": torch.cpu, "clock": time.perf_counter, "repeats": 7}
seconds = step_seconds(lambda: train_on(tokens), warmup=1, **options)
ratio = slowdown(lambda: train_on(tokens), checkpointed_step, **options)
rates = len(tokens) / seconds, len(tokens) / (ratio * seconds)
print(f"samples per second: {rates[0]:.1f} plain, {rates[1]:.1f} checkpointed")
print(f"a checkpointed step takes {ratio:.2f} times as long")

# %% [markdown] id="read-price"
# Counting work, one forward more on top of forward and backward is a third. PyTorch stops a
# recomputation as soon as the last tensor is there that backward needs, which spares the last
# matrix product of every block; on the other hand twelve checkpoints have work of their own, which
# shows in a model as small as this.

# %% [markdown] id="gpu"
# ## On a GPU
#
# Never graded. `torch.cuda` has all four methods, so it takes the place of the `PretendGPU`, and
# the clock is a real one. One reading is new: what the allocator has *reserved* of the driver is
# more than what is allocated, and is not what your step needs. The result depends on the card; the
# notebook does not compare it.

# %% id="gpu-profile"
# NBVAL_IGNORE_OUTPUT
if torch.cuda.is_available():
    large = GPTConfig(vocab_size=8192, seq_len=512, num_layers=12, num_heads=8, d_model=512)
    model = GPT(large).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    words = torch.randint(0, large.vocab_size, (8, large.seq_len), device="cuda")
    for strategy in ("none", "per-block"):
        with strategies.applied(model, strategy):
            how = {"gpu": torch.cuda, "clock": time.perf_counter, "num_samples": 8, "repeats": 5}
            result = profile_step(lambda: model.loss(words), optimizer, **how)
        print(strategy, *(Bytes(result[phase]) for phase in list(result)[:2]))
        print(f"  {result['samples_per_second']:.1f} samples/s")
    print(f"reserved by now: {Bytes(torch.cuda.memory_reserved())}")

# %% [markdown] id="end"
# You have a clock that waits, a ratio that survives heat, a peak that is this step's own, and two
# instruments that look inside. Lab 03 leans on all of them: there you write the checkpoint itself,
# and the first thing to show is that the peak really falls.
