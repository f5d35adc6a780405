"""Chosen modules as segments, for a while."""

import contextlib
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

from wrong_answers import right, wrong


@wrong("nothing was recomputed")
@contextlib.contextmanager
def does_nothing(modules):
    yield


@wrong("another module ran in its place")
@contextlib.contextmanager
def binds_late(modules):
    before = [vars(m).get("forward") for m in modules]
    originals = [m.forward for m in modules]
    for module, original in zip(modules, originals, strict=True):

        def forward(*args, **kwargs):
            return checkpoint(original, *args, use_reentrant=False, **kwargs)  # noqa: B023

        module.forward = forward
    try:
        yield
    finally:
        put_back(modules, before)


def put_back(modules, before):
    for module, forward in zip(modules, before, strict=True):
        del module.forward
        if forward is not None:
            module.forward = forward


@wrong("still recomputed: undo it in a finally")
@contextlib.contextmanager
def undone_without_finally(modules):
    before = [vars(m).get("forward") for m in modules]
    for module in modules:
        module.forward = partial(checkpoint, module.forward, use_reentrant=False)
    yield
    put_back(modules, before)


@wrong("had a forward of its own before, and it is gone")
@contextlib.contextmanager
def forgets_what_was_there(modules):
    for module in modules:
        module.forward = partial(checkpoint, module.forward, use_reentrant=False)
    try:
        yield
    finally:
        for module in modules:
            del module.forward


@wrong("still has a forward of its own")
@contextlib.contextmanager
def leaves_a_forward(modules):
    before = [m.forward for m in modules]
    for module in modules:
        module.forward = partial(checkpoint, module.forward, use_reentrant=False)
    try:
        yield
    finally:
        for module, forward in zip(modules, before, strict=True):
            module.forward = forward


@wrong("does the recomputation draw what forward drew?")
@contextlib.contextmanager
def without_the_random_state(modules):
    before = [vars(m).get("forward") for m in modules]
    for module in modules:
        module.forward = partial(
            checkpoint, module.forward, use_reentrant=False, preserve_rng_state=False
        )
    try:
        yield
    finally:
        put_back(modules, before)


@wrong("not all were recomputed")
@contextlib.contextmanager
def only_the_first(modules):
    with from_partials(modules[:1]) if len(modules) > 1 else contextlib.nullcontext():
        yield


@wrong("which takes no keyword arguments")
@contextlib.contextmanager
def reentrant(modules):
    before = [vars(m).get("forward") for m in modules]
    for module in modules:
        module.forward = partial(checkpoint, module.forward, use_reentrant=True)
    try:
        yield
    finally:
        put_back(modules, before)


@wrong("contextlib.contextmanager above the function")
def no_context_manager(modules):
    for module in modules:
        module.forward = partial(checkpoint, module.forward, use_reentrant=False)


@wrong("with right gradients: each module is one segment")
@contextlib.contextmanager
def keeps_a_copy(modules):
    kept = []

    def forward(original, *args, **kwargs):
        out = checkpoint(original, *args, use_reentrant=False, **kwargs)
        kept.append([torch.cat([t, t]) for t in (*args, *kwargs.values()) if torch.is_tensor(t)])
        return out

    before = [vars(m).get("forward") for m in modules]
    for module in modules:
        module.forward = partial(forward, module.forward)
    try:
        yield
    finally:
        put_back(modules, before)


@wrong("did not come out of it")
@contextlib.contextmanager
def swallows_errors(modules):
    with contextlib.suppress(RuntimeError, Exception), from_partials(modules):
        yield


@wrong("not that of its class")
@contextlib.contextmanager
def runs_the_class(modules):
    before = [vars(m).get("forward") for m in modules]
    for module in modules:
        plain = partial(type(module).forward, module)
        module.forward = partial(checkpoint, plain, use_reentrant=False)
    try:
        yield
    finally:
        put_back(modules, before)


@right
@contextlib.contextmanager
def to_the_end_of_each_segment(modules):
    before = [vars(m).get("forward") for m in modules]
    for module in modules:
        module.forward = partial(checkpoint, module.forward, use_reentrant=False, early_stop=False)
    try:
        yield
    finally:
        put_back(modules, before)


@right
@contextlib.contextmanager
def from_partials(modules):
    before = [vars(m).get("forward") for m in modules]
    try:
        for module in modules:
            module.forward = partial(checkpoint, module.forward, use_reentrant=False)
        yield
    finally:
        put_back(modules, before)


@right
class AsAClass:
    def __init__(self, modules):
        self.modules = list(modules)

    def __enter__(self):
        self.stack = contextlib.ExitStack()
        for module in self.modules:
            self.one(module)

    def one(self, module):
        forward, was_there = module.forward, "forward" in vars(module)

        def segment(*args, **kwargs):
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)

        def undo():
            if was_there:
                module.forward = forward
            else:
                del module.forward

        module.forward = segment
        self.stack.callback(undo)

    def __exit__(self, *error):
        self.stack.close()
