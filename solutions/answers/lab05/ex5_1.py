"""Answers to 5.1, a context that checkpoints chosen modules."""

from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from unittest import mock

from torch.utils.checkpoint import checkpoint

from solutions.answers import right, wrong
from tutorial_lib.instruments import segments

changes_nothing = wrong(
    "no matmul ran again",
    "module.forward = partial(checkpoint, forward, use_reentrant=False)",
    "pass",
)
calls_the_module = wrong(
    "the calls never end", "partial(checkpoint, forward,", "partial(checkpoint, module,"
)
hides_the_arguments = wrong(
    "in its closure, where autograd does not see them",
    "partial(checkpoint, forward, use_reentrant=False)",
    "lambda *args, forward=forward, **kwargs: checkpoint(\n"
    "                lambda: forward(*args, **kwargs), use_reentrant=False\n"
    "            )",
)
binds_late = wrong(
    "does each module run its own forward",
    "partial(checkpoint, forward, use_reentrant=False)",
    "lambda *args, **kwargs: checkpoint(\n"
    "                forward, *args, use_reentrant=False, **kwargs\n"
    "            )",
)
keeps_no_random_state = wrong(
    "does a module draw the same random numbers again?",
    "use_reentrant=False",
    "use_reentrant=False, preserve_rng_state=False",
)
passes_one_tensor = wrong(
    "pass on all arguments, *args and **kwargs",
    "partial(checkpoint, forward, use_reentrant=False)",
    "lambda x, *, forward=forward: checkpoint(\n"
    "                forward, x, use_reentrant=False\n"
    "            )",
)
is_reentrant = wrong(
    "the reentrant checkpoint takes no keyword arguments",
    "use_reentrant=False",
    "use_reentrant=True",
)
stays = wrong("put back what you changed", "module.forward = forward", "pass")
puts_back_the_class_s = wrong(
    "put back that one, not the class's", "module.forward = forward", "del module.forward"
)
forgets_errors = wrong(
    "undo in `finally`", "finally:", "except Exception:\n        raise\n    else:"
)
Swallows = wrong(
    "was swallowed: let it through", "finally:", "except Exception:\n        pass\n    finally:"
)
takes_the_first_alone = wrong(
    "times as many FLOPs ran again as should", "in modules]", "in modules[:1]]"
)
is_no_context = wrong("checkpoint_only should return a context manager", "@contextmanager\n", "")


def remade(forward, **options):
    return partial(checkpoint, forward, **{"use_reentrant": False, **options})


@wrong("do this lab's work by themselves")
def asks_the_library(modules):
    return segments.called_through(partial(checkpoint, use_reentrant=False), modules)


@right
@contextmanager
def with_patches(modules):
    with ExitStack() as undo:
        for module in modules:
            undo.enter_context(mock.patch.object(module, "forward", remade(module.forward)))
        yield


@right
class AsAClass:
    def __init__(self, modules):
        self.modules, self.before = modules, [vars(module).get("forward") for module in modules]

    def __enter__(self):
        for module in self.modules:
            module.forward = self.wrapped(module.forward)

    def wrapped(self, forward):
        @wraps(forward)
        def run(*args, **kwargs):
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)

        return run

    def __exit__(self, *error):
        for module, own in zip(self.modules, self.before, strict=True):
            del module.forward
            if own is not None:
                module.forward = own
