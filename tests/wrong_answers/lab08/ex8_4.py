"""Chosen modules as segments, for a while."""

import contextlib
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

from wrong_answers import right, wrong

binds_late = wrong(
    "another module ran in its place",
    "module.forward = partial(checkpoint, module.forward, use_reentrant=False)",
    "forward = module.forward\n"
    "        module.forward = lambda *args, **kwargs: checkpoint(\n"
    "            forward, *args, use_reentrant=False, **kwargs\n"
    "        )",
)
undone_without_finally = wrong(
    "still recomputed: undo it in a finally",
    "finally:",
    "except Exception:\n        raise\n    else:",
)
forgets_what_was_there = wrong(
    "had a forward of its own before, and it is gone", "module.forward = own", "pass"
)
leaves_a_forward = wrong(
    "still has a forward of its own", 'vars(module).get("forward")', "module.forward"
)
without_the_random_state = wrong(
    "does the recomputation draw what forward drew?",
    "use_reentrant=False",
    "use_reentrant=False, preserve_rng_state=False",
)
only_the_first = wrong(
    "not all were recomputed",
    "    before",
    "    modules = modules[:1] if len(modules) > 1 else []\n    before",
)
reentrant = wrong("which takes no keyword arguments", "use_reentrant=False", "use_reentrant=True")
no_context_manager = wrong(
    "contextlib.contextmanager above the function", "@contextlib.contextmanager\n", ""
)
swallows_errors = wrong(
    "did not come out of it", "finally:", "except Exception:\n        pass\n    finally:"
)
runs_the_class = wrong(
    "not that of its class",
    "checkpoint, module.forward",
    "checkpoint, partial(type(module).forward, module)",
)
to_the_end_of_each_segment = right("use_reentrant=False", "use_reentrant=False, early_stop=False")
from_partials = right(
    "    for module in modules:\n"
    "        module.forward = partial(checkpoint, module.forward, use_reentrant=False)\n"
    "    try:\n",
    "    try:\n"
    "        for module in modules:\n"
    "            module.forward = partial(checkpoint, module.forward, use_reentrant=False)\n",
)


@wrong("nothing was recomputed")
@contextlib.contextmanager
def does_nothing(modules):
    yield


def put_back(modules, before):
    for module, forward in zip(modules, before, strict=True):
        del module.forward
        if forward is not None:
            module.forward = forward


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
