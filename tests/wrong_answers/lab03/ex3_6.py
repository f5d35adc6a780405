"""A check of the recomputation, and checkpoint itself."""

import contextlib

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint as torchs

from wrong_answers import right, solved, wrong
from wrong_answers.lab03.ex3_5 import StopsAtTheLastOneAlive

LAB = solved("lab03")


def with_faults(
    surroundings=LAB.remember_surroundings,
    arguments=LAB.save_arguments,
    compare=lambda compares: compares,
    describe=lambda describes: describes,
    rerun=None,
    finished=True,
    stops=lambda early_stop: early_stop,
    kind_of_region=LAB.Region,
    contexts=lambda context_fn: context_fn(),
    plain=lambda function: not torch.is_grad_enabled(),
):
    """The solution, with each of its pieces to choose."""

    def checkpoint(function, *args, **kwargs):
        options = LAB.read_options(function, kwargs)
        if plain(function):
            return function(*args, **kwargs)
        first, second = contexts(options.context_fn)
        restored = surroundings(function, (), options.preserve_rng_state)
        again = rerun(function) if rerun else function

        def run(*args, **kwargs):
            with restored(), second:
                again(*args, **kwargs)

        bring_back = arguments(args, kwargs)
        comparison = describe(options.describe), compare(options.compare)
        region = kind_of_region(run, bring_back, stops(options.early_stop), *comparison)
        with saved_tensors_hooks(region.pack, region.unpack), first:
            output = function(*args, **kwargs)
        region.forward_is_done = finished
        return output

    return checkpoint


def says(words):
    """A compare that says the same of every difference."""

    def compare(first, again):
        same = [one[1:] for one in first] == [other[1:] for other in again]
        if not same:
            raise LAB.CheckpointError(words.format(len(first), len(again)))

    return compare


def with_operations(first, again):
    LAB.compare(first, again)
    if first != again:
        raise LAB.CheckpointError("tensors have different metadata")


def always(value):
    return lambda chosen: value


def without_operation(first, again):
    try:
        LAB.compare(first, again)
    except LAB.CheckpointError as error:
        raise LAB.CheckpointError(
            str(error).replace("Backward", "").replace("operation", "")
        ) from None


def without_shapes(first, again):
    try:
        LAB.compare(first, again)
    except LAB.CheckpointError as error:
        said = str(error)
        raise LAB.CheckpointError(
            said.replace("(3,)", "") if "metadata" in said else said
        ) from None


def forgetful(function, devices, preserve_rng_state):
    return contextlib.nullcontext


def without_autocast(function, devices, preserve_rng_state):
    """The surroundings, but for autocast, which is off in backward."""
    restored = LAB.remember_surroundings(function, devices, preserve_rng_state)

    @contextlib.contextmanager
    def plain():
        with restored(), torch.autocast("cpu", enabled=False):
            yield

    return plain


latest = []


def late_binding(function):
    latest.append(function)
    return lambda *args, **kwargs: latest[-1](*args, **kwargs)


def closure(args, kwargs):
    return lambda: (args, kwargs)


def positional(args, kwargs):
    bring_back = LAB.save_arguments(args, kwargs)
    return lambda: (bring_back()[0], {})


def in_eval_mode(function):
    module = getattr(function, "__self__", function)
    return not torch.is_grad_enabled() or getattr(module, "training", True) is False


leaves_eval_mode_alone = wrong("in eval mode nothing was checkpointed")(
    with_faults(plain=in_eval_mode)
)
runs_the_latest_function = wrong("one was recomputed in another's place")(
    with_faults(rerun=late_binding, surroundings=forgetful, compare=always(None))
)
forgets_the_surroundings = wrong("does the recomputation compute what forward did")(
    with_faults(surroundings=forgetful)
)
forgets_autocast = wrong("was bfloat16")(with_faults(surroundings=without_autocast))
keeps_arguments_in_a_closure = wrong("saves nothing while a closure holds its inputs")(
    with_faults(arguments=closure)
)
loses_keywords = wrong("missing 2 required keyword-only arguments")(
    with_faults(arguments=positional)
)
always_stops_early = wrong("hand options.early_stop to")(with_faults(stops=lambda _: True))
ignores_contexts = wrong("the contexts of context_fn and the function came in the order")(
    with_faults(contexts=lambda context_fn: LAB.no_contexts())
)
goes_on_without_gradients = wrong("where gradients are off, a context")(
    with_faults(plain=lambda function: False)
)
stops_at_the_last_one_alive = wrong("stops when the last slot is filled, dead or alive")(
    with_faults(kind_of_region=StopsAtTheLastOneAlive)
)
never_compares = wrong("which takes forward_is_done")(with_faults(finished=False))
says_one_thing_for_all = wrong("the three messages of compare begin as")(
    with_faults(compare=always(says("the recomputation differs: {} and {}")))
)
names_no_operation = wrong("does not name the operation that made the tensor")(
    with_faults(compare=always(without_operation))
)
names_no_shape = wrong("does not name (3,):")(with_faults(compare=always(without_shapes)))


compares_operations_too = wrong("operations may differ, so compare what comes after them")(
    with_faults(compare=always(with_operations))
)
ignores_the_determinism_check = wrong("hand options.describe to")(
    with_faults(describe=always(LAB.describe))
)
ignores_preserve_rng_state = wrong("hand that option to remember_surroundings")(
    with_faults(
        surroundings=lambda function, devices, preserve: LAB.remember_surroundings(function)
    )
)
ignores_debug = wrong("hand options.compare to")(with_faults(compare=always(LAB.compare)))


@wrong("torch.utils.checkpoint is what you are writing")
def hands_it_on(function, *args, **kwargs):
    return torchs(function, *args, use_reentrant=False, **kwargs)


from_its_pieces = right(with_faults())


def run_again(restored, around, function, args, kwargs):
    with restored(), around:
        function(*args, **kwargs)


@right
def without_a_closure(function, *args, **kwargs):
    options = LAB.read_options(function, kwargs)
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    first, second = options.context_fn()
    gpus = LAB.gpus_of(args, kwargs)
    restored = LAB.remember_surroundings(function, gpus, options.preserve_rng_state)
    region = LAB.Region(
        lambda *a, **k: run_again(restored, second, function, a, k),
        LAB.save_arguments(args, kwargs),
        early_stop=options.early_stop,
        describe=options.describe,
        compare=options.compare,
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(saved_tensors_hooks(region.pack, region.unpack))
        stack.enter_context(first)
        output = function(*args, **kwargs)
    region.forward_is_done = True
    return output


@wrong("a block called through yours gave NoneType")
def returns_nothing(function, *args, **kwargs):
    run_it = solved("lab03").checkpoint
    run_it(function, *args, **kwargs)
