"""Moments."""

import contextlib
import copy

import torch

from solutions.answers import right, solved, wrong

forgets_the_random_state = wrong(
    "set the random state that you read when remember", "        write_rng(random_states)\n", ""
)
reads_it_too_late = wrong("you read the random state when", "*then", "before[0], then[1]")
never_puts_it_back = wrong(
    "would draw the same masks again", "*before", "read_rng(tower), before[1]"
)
forgets_the_buffers = wrong(
    "they belong to the moment too",
    "then = read()",
    "then = read_rng(tower), {}",
    "buffer.copy_(buffers[name])",
    "buffer.copy_(buffers.get(name, buffer))",
)
takes_the_state_dict = wrong(
    "named_buffers has them all",
    "then = read()",
    "then = read_rng(tower), {n: t.clone() for n, t in tower.state_dict().items()}",
    "buffer.copy_(buffers[name])",
    "buffer.copy_(buffers.get(name, buffer))",
)
forgets_modules_inside = wrong(
    "those of a module inside the tower were not",
    "then = read()",
    "then = read_rng(tower), {n: b.clone() for n, b in tower.named_buffers(recurse=False)}",
    "buffer.copy_(buffers[name])",
    "buffer.copy_(buffers.get(name, buffer))",
)
takes_floats_alone = wrong(
    "BatchNorm counts its batches in one",
    "tower.named_buffers()}",
    "tower.named_buffers() if b.is_floating_point()}",
    "buffer.copy_(buffers[name])",
    "buffer.copy_(buffers.get(name, buffer))",
)
keeps_references = wrong(
    "so keep a clone", "then = read()", "then = read_rng(tower), dict(tower.named_buffers())"
)
never_puts_buffers_back = wrong(
    "each micro-batch has moved them once", "write(*before)", "write_rng(before[0])"
)
keeps_the_weights = wrong(
    "buffers change, parameters don't",
    "b.clone() for",
    "b.detach().clone() for",
    "tower.named_buffers()}",
    "[*tower.named_buffers(), *tower.named_parameters()]}",
)
seeds = wrong("a plain run: only read", "    then =", "    torch.manual_seed(0)\n    then =")
replays_the_seed = wrong(
    "A seed only restores its beginning",
    "    then =",
    "    seed = torch.initial_seed()\n    then =",
    "*then)",
    "*then)\n        torch.manual_seed(seed)",
)
swallows_errors = wrong(
    "the moment was swallowed", "finally:", "except Exception:\n            pass\n        finally:"
)
looks_buffers_up_too_early = wrong(
    "look up buffers by name when you write",
    "    def read",
    "    known = dict(tower.named_buffers())\n\n    def read",
    "in tower.named_buffers():",
    "in known.items():",
)
forgets_about_errors = wrong(
    "after an error inside the moment",
    "finally:",
    "except Exception:\n            raise\n        else:",
)
uses_it_up = wrong(
    "entered a second time, the moment was different",
    "then = read()",
    "unused = [read()]",
    "        write(*then)",
    "        if unused:\n            write(*unused.pop())",
)
of_the_cpu_alone = wrong(
    "for that GPU's random state too",
    "read_rng(tower)",
    "torch.get_rng_state()",
    "write_rng(random_states)",
    "torch.set_rng_state(random_states)",
)
leaves_the_gpu = wrong(
    "the random state of a GPU stayed",
    "write(*before)",
    "write({place: s for place, s in before[0].items() if place.type == 'cpu'}, before[1])",
)
from_its_parts = right(
    "write(*before)",
    "write_rng(before[0])\n"
    "            for name, buffer in tower.named_buffers():\n"
    "                buffer.copy_(before[1][name])",
)
writes_parameters_too = wrong(
    "not parameters",
    "buffer.copy_(buffers[name])",
    "buffer.copy_(buffers[name])\n"
    "        state = tower.state_dict()\n"
    "        tower.load_state_dict(state | {n: b for n, b in buffers.items() if n in state})",
)
returns_nothing = wrong("should return a function, but NoneType came", "return moment", "moment")


LAB = solved("lab07")


def clones(tower):
    return {name: buffer.clone() for name, buffer in tower.named_buffers()}


def write(tower, buffers):
    with torch.no_grad():
        for name, buffer in tower.named_buffers():
            if name in buffers:
                buffer.copy_(buffers[name])


@right
def as_a_class_with_fork_rng(tower):
    states, buffers = LAB.read_rng(tower), copy.deepcopy(dict(tower.named_buffers()))
    gpus = [place for place in states if place.type != "cpu"]

    class Moment(contextlib.ExitStack):
        def __enter__(self):
            self.enter_context(torch.random.fork_rng(gpus, device_type="cuda"))
            self.callback(write, tower, clones(tower))
            LAB.write_rng(states)
            write(tower, buffers)
            return super().__enter__()

    return Moment
