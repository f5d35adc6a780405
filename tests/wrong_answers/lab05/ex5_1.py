"""Answers to 5.1, a context that checkpoints chosen modules."""

from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from unittest import mock

from torch.utils.checkpoint import checkpoint

from wrong_answers import right, wrong


@contextmanager
def set_by(wrapped, modules, put_back=True):
    """Set wrapped(module, forward) as each module's forward."""
    before = [(module, module.forward) for module in modules]
    try:
        for module, forward in before:
            module.forward = wrapped(module, forward)
        yield
    finally:
        for module, forward in before if put_back else []:
            module.forward = forward


def remade(forward, **options):
    return partial(checkpoint, forward, **{"use_reentrant": False, **options})


@wrong("no product ran again")
@contextmanager
def changes_nothing(modules):
    yield


@wrong("the calls never end")
def calls_the_module(modules):
    return set_by(lambda module, forward: remade(module), modules)


@wrong("in its closure, where autograd does not see them")
def hides_the_arguments(modules):
    def hidden(module, forward):
        return lambda *args, **kwargs: remade(lambda: forward(*args, **kwargs))()

    return set_by(hidden, modules)


@wrong("does each module run its own forward?")
@contextmanager
def binds_late(modules):
    before = [(module, module.forward) for module in modules]
    for module, forward in before:
        module.forward = lambda *args, **kwargs: remade(forward)(*args, **kwargs)  # noqa: B023
    try:
        yield
    finally:
        for module, own in before:
            module.forward = own


@wrong("does a module draw the same random numbers again?")
def keeps_no_random_state(modules):
    return set_by(lambda module, forward: remade(forward, preserve_rng_state=False), modules)


@wrong("take *args and **kwargs")
def passes_one_tensor(modules):
    return set_by(lambda module, forward: lambda x: remade(forward)(x), modules)


@wrong("the reentrant checkpoint takes no keyword arguments")
def is_reentrant(modules):
    return set_by(lambda module, forward: remade(forward, use_reentrant=True), modules)


@wrong("put back what you changed")
def stays(modules):
    return set_by(lambda module, forward: remade(forward), modules, put_back=False)


@wrong("put back that one, not the class's")
@contextmanager
def puts_back_the_class_s(modules):
    with set_by(lambda module, forward: remade(forward), modules, put_back=False):
        try:
            yield
        finally:
            for module in modules:
                del module.forward


@wrong("undo in `finally`")
@contextmanager
def forgets_errors(modules):
    before = [(module, module.forward) for module in modules]
    for module, forward in before:
        module.forward = remade(forward)
    yield
    for module, forward in before:
        module.forward = forward


@wrong("was swallowed: let it through")
class Swallows:
    def __init__(self, modules):
        self.inside = set_by(lambda module, forward: remade(forward), modules)

    def __enter__(self):
        self.inside.__enter__()

    def __exit__(self, *error):
        self.inside.__exit__(None, None, None)
        return True


@wrong("times the FLOPs that should run again")
def takes_the_first_alone(modules):
    return set_by(lambda module, forward: remade(forward), modules[:1])


@wrong("checkpoint_only should return a context manager")
def is_no_context(modules):
    for module in modules:
        module.forward = remade(module.forward)


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
