"""Lab 09: broken scripts show the readings that the solution gives, and the judge finds them."""

import functools

import pytest
import torch

from solutions.answers import solved
from tutorial_lib import memory
from tutorial_lib.checks.lab09 import CAUSES

NAMES = (
    *("changed_in_between", "repeated_work", "untrained_parts"),
    *("memory_and_windows", "died_in_backward", "died_in_update"),
)
CASES = "ABCDEFGHIJ"
pytestmark = pytest.mark.filterwarnings("ignore")


class Solution:
    """Lab 09's, run when a test first asks for a name: it imports transformers."""

    def __getattr__(self, name):
        if name.startswith("_"):  # pytest looks whether it is a fixture
            raise AttributeError(name)
        return getattr(solved("lab09"), name)


LAB = Solution()


@functools.cache
def findings():
    return {case: found for name in NAMES for case, found in getattr(LAB, name)().items()}


def runs(step, make, modules, *batch):
    model, optimizer = make()
    with LAB.forwards(modules(model)) as counts:
        step(model, optimizer, *batch)
    return counts


def reading_a():
    return runs(LAB.broken_a, LAB.make_a, lambda gpt: list(gpt.blocks), LAB.text(4, 32))[-1]


def reading_b():
    class Noted(dict):
        def __getitem__(self, key):
            self.last = super().__getitem__(key)
            return self.last

    settings = Noted(scale=1.0)
    LAB.broken_b(*LAB.make_b(), LAB.text(4, 33), settings)
    return settings.last


def reading_c():
    states = set()
    model, optimizer = LAB.make_c()
    for block in model.blocks:
        block.res.register_forward_pre_hook(lambda *_: states.add(bytes(torch.get_rng_state())))
    LAB.broken_c(model, optimizer, *LAB.batch_c())
    return len(states)


def reading_d():
    model, optimizer = LAB.make_d()
    LAB.broken_d(model, optimizer, *LAB.batch_d())
    return model.blocks[0].norm_1.num_batches_tracked.item()


def reading_e():
    model, optimizer = LAB.make_e()
    LAB.broken_e(model, optimizer, LAB.text(4, 32))
    return sum(p.requires_grad and p.grad is None for p in model.parameters())


def first_norms(vit):
    return [m for name, m in vit.named_modules() if name.endswith("layernorm_before")]


def reading_f():
    images, labels = LAB.data.digits()
    return runs(LAB.broken_f, LAB.make_f, first_norms, images[:4].double(), labels[:4])[0]


def reading_g():
    model = LAB.make_g()
    left = LAB.bytes_left(lambda: LAB.broken_g(model, [LAB.text(4, 33)] * 6), model)
    one = memory.saved(lambda: model.loss(LAB.text(4, 33)), params_of=model).num_bytes
    return round(left / one)


def reading_h():
    counts = [labels[:, 1:].numel() for _, labels in LAB.window_h()]
    return max(counts) / min(counts)


def reading_i():
    model, optimizer = LAB.make_i()
    step = functools.partial(LAB.broken_i, model, optimizer, *LAB.batch_i())
    return LAB.snapshot(step, model, LAB.CAP_I).tensors["gelu"]


def reading_j():
    model = LAB.make_j()
    step = functools.partial(LAB.broken_j, model, LAB.batches_j())
    held = LAB.snapshot(step, model, 10**9, by="category").bytes
    return round(held["optimizer_state"] / sum(2 * p.nbytes for p in model.head.parameters()))


@pytest.mark.parametrize("case", CASES)
def test_the_broken_script_shows_the_reading(case):
    assert set(findings()) == set(CASES)
    cause, reading, _ = findings()[case]
    assert cause in CAUSES
    assert globals()[f"reading_{case.lower()}"]() == reading
