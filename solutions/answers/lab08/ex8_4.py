"""What each block costs as a segment."""

import contextlib
import copy
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

from solutions.answers import right, wrong
from tutorial_lib import memory
from tutorial_lib.instruments.segments import called_through

keeps_the_plain_step = wrong("a whole step with the segment", " - plain", "")
of_all_images = wrong("for all images together", " // len(drawn[0])", "")
gives_floats = wrong("whole numbers come from // and int", " // len(", " / len(")
leaves_gradients_after_an_error = wrong(
    "after an error in a step .grad has changed",
    "    unet, blocks = copy.deepcopy((unet, blocks))  # together: still its own blocks\n",
    "    trained, buffers = [*unet.parameters()], [b.clone() for b in unet.buffers()]\n"
    "    before = [p.grad.clone() for p in trained]\n",
    "        return {name: flops_with([block]) - plain for name, block in blocks.items()}",
    "        prices = {n: flops_with([block]) - plain for n, block in blocks.items()}\n"
    "    for p, gradient in zip(trained, before):\n"
    "        p.grad = gradient\n"
    "    for buffer, kept in zip(unet.buffers(), buffers):\n"
    "        buffer.copy_(kept)\n"
    "    return prices",
)
counts_forward_alone = wrong(
    "nothing ran again in your count",
    "            loss_of(unet, *drawn).backward()\n        return counter",
    "            loss = loss_of(unet, *drawn)\n        loss.backward()\n        return counter",
)
a_share_of_all = wrong(
    "an equal share of what all blocks cost",
    "flops_with([block]) - plain",
    "(flops_with([*blocks.values()]) - plain) // len(blocks)",
)
steps_on_the_caller_s = wrong(
    "after your call .grad has changed", "copy.deepcopy((unet, blocks))", "unet, blocks"
)
moves_the_averages = wrong(
    "after your call a buffer has changed",
    "copy.deepcopy((unet, blocks))",
    "unet, blocks",
    "loss_of(unet, *drawn).backward()",
    "trained = [p for p in unet.parameters() if p.requires_grad]\n"
    "            torch.autograd.grad(loss_of(unet, *drawn), trained)",
)
moves_the_random_state = wrong(
    "after your call the random state has moved",
    "torch.random.fork_rng(devices=[])",
    "contextlib.nullcontext()",
)
leaves_eval_mode = wrong(
    "your call left a module in a different mode",
    "    unet, blocks =",
    "    unet.eval()\n    unet, blocks =",
)
swallows_errors = wrong(
    "did not come out of your function",
    "        return {name: flops_with([block]) - plain for name, block in blocks.items()}",
    "        try:\n"
    "            return {n: flops_with([block]) - plain for n, block in blocks.items()}\n"
    "        except Exception:\n"
    "            return {}",
)
gives_a_list = wrong(
    "a dict with the keys",
    "{name: flops_with([block]) - plain for name, block in blocks.items()}",
    "[flops_with([block]) - plain for block in blocks.values()]",
)


def mse(unet, noisy, times, noise):
    return torch.nn.functional.mse_loss(unet(noisy, times).sample, noise)


def recomputing(modules):
    return called_through(partial(checkpoint, use_reentrant=False), modules)


def flops_of_step(unet, drawn):
    with memory.flop_counter() as counted:
        mse(unet, *drawn).backward()
    return counted.get_total_flops()


@wrong("one more forward of the block costs more")
def counts_the_forward(unet, drawn, blocks):
    """Read what a forward of each block takes, by the names that the counter gives it."""
    twin = copy.deepcopy(unet)
    paths = {module: path for path, module in unet.named_modules()}
    with torch.random.fork_rng(devices=[]), torch.no_grad(), memory.flop_counter() as counter:
        twin(*drawn[:2])
    counts = counter.get_flop_counts()
    by_name = {n: counts[f"{type(unet).__name__}.{paths[b]}"] for n, b in blocks.items()}
    return {name: sum(count.values()) // len(drawn[0]) for name, count in by_name.items()}


@wrong("the blocks before it were segments as well")
def undoes_them_at_the_end(unet, drawn, blocks):
    unet, blocks = copy.deepcopy((unet, blocks))
    prices = {}
    with torch.random.fork_rng(devices=[]), contextlib.ExitStack() as undo:
        plain = flops_of_step(unet, drawn)
        for name, block in blocks.items():
            undo.enter_context(recomputing([block]))
            prices[name] = (flops_of_step(unet, drawn) - plain) // len(drawn[0])
    return prices


@contextlib.contextmanager
def put_back(unet):
    """Step on the U-Net itself: whatever a step changes is put back."""
    gradients = [p.grad for p in unet.parameters()]
    buffers = [buffer.clone() for buffer in unet.buffers()]
    try:
        with torch.random.fork_rng(devices=[]):
            for p in unet.parameters():
                p.grad = None
            yield
    finally:
        for p, gradient in zip(unet.parameters(), gradients, strict=True):
            p.grad = gradient
        for buffer, before in zip(unet.buffers(), buffers, strict=True):
            buffer.copy_(before)


@wrong("after an error in a step a plain step no longer has the same FLOPs")
def undoes_no_error(unet, drawn, blocks):
    prices = {}
    with put_back(unet):
        for name, block in blocks.items():
            plain, before = block.forward, flops_of_step(unet, drawn)
            block.forward = partial(checkpoint, plain, use_reentrant=False)
            prices[name] = (flops_of_step(unet, drawn) - before) // len(drawn[0])
            del block.forward
    return prices


def noted(unet, drawn, blocks):
    """List the arguments of each run of each block."""
    runs, handles = {name: [] for name in blocks}, []
    for name, block in blocks.items():

        def note(_, args, kwargs, runs=runs[name]):
            runs.append((args, kwargs))

        handles.append(block.register_forward_pre_hook(note, with_kwargs=True))
    mse(unet, *drawn)
    for handle in handles:
        handle.remove()
    return runs


def tensors_in(value):
    if torch.is_tensor(value):
        return [value]
    return [t for part in value for t in tensors_in(part)] if isinstance(value, tuple) else []


def alone(block, runs):
    """Count forward and backward of a block by itself, on inputs that need gradients."""

    def leaf(value):
        if isinstance(value, tuple):
            return tuple(map(leaf, value))
        is_float = torch.is_tensor(value) and value.is_floating_point()
        return value.detach().requires_grad_() if is_float else value

    with memory.flop_counter() as counter:
        for args, kwargs in runs:
            out = block(*leaf(args), **{name: leaf(value) for name, value in kwargs.items()})
            sum(t.sum() for t in tensors_in(out)).backward()
    return counter.get_total_flops()


def by_itself(unet, drawn, blocks, of_runs):
    unet, blocks = copy.deepcopy((unet, blocks))
    prices = {}
    with torch.random.fork_rng(devices=[]):
        for name, runs in noted(unet, drawn, blocks).items():
            plain = alone(blocks[name], of_runs(runs))
            with recomputing([blocks[name]]):
                more = alone(blocks[name], of_runs(runs)) - plain
            prices[name] = more // len(drawn[0])
    return prices


@wrong("yours is the price of one run")
def of_the_last_run(unet, drawn, blocks):
    return by_itself(unet, drawn, blocks, lambda runs: runs[-1:])


@wrong("and it doesn't run again")
def each_block_by_itself(unet, drawn, blocks):
    return by_itself(unet, drawn, blocks, lambda runs: runs)


@right
def on_the_caller_s_with_all_put_back(unet, drawn, blocks):
    prices = {}
    with put_back(unet):
        plain = flops_of_step(unet, drawn)
        for name, block in blocks.items():
            with recomputing([block]):
                prices[name] = (flops_of_step(unet, drawn) - plain) // len(drawn[0])
    return prices


@right
def by_measure_of_a_copy_each(unet, drawn, blocks):
    def flops(name):
        twin, twins = copy.deepcopy((unet, blocks))
        with torch.random.fork_rng(devices=[]), recomputing([twins[name]] if name else []):
            report = memory.measure(lambda: mse(twin, *drawn).backward(), model=twin, flops=True)
        return report.flops

    plain = flops(None)
    return {name: (flops(name) - plain) // len(drawn[0]) for name in blocks}


in_eval_mode_of_the_copy = right("    def flops_with", "    unet.eval()\n\n    def flops_with")
