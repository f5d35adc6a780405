"""A check of the recomputation, and checkpoint itself."""

import contextlib

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint as torchs

from wrong_answers import right, solved, wrong

LAB = solved("lab03")


def with_slips(
    surroundings=LAB.remember_surroundings,
    arguments=LAB.save_arguments,
    compare=LAB.compare,
    rerun=None,
    finished=True,
    stops=lambda early_stop: early_stop,
    contexts=lambda context_fn: context_fn(),
    plain=lambda function: not torch.is_grad_enabled(),
):
    """The solution, with each of its pieces to choose."""

    def checkpoint(
        function,
        *args,
        early_stop=True,
        context_fn=LAB.no_contexts,
        preserve_rng_state=True,
        **kwargs,
    ):
        if plain(function):
            return function(*args, **kwargs)
        first, second = contexts(context_fn)
        restored = surroundings(function, (), preserve_rng_state)
        again = rerun(function) if rerun else function

        def run(*args, **kwargs):
            with restored(), second:
                again(*args, **kwargs)

        bring_back = arguments(args, kwargs)
        region = LAB.Region(run, bring_back, stops(early_stop), LAB.describe, compare)
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
    with_slips(plain=in_eval_mode)
)
runs_the_latest_function = wrong("one was recomputed in another's place")(
    with_slips(rerun=late_binding, surroundings=forgetful, compare=None)
)
forgets_the_surroundings = wrong("does the recomputation compute what forward did")(
    with_slips(surroundings=forgetful)
)
keeps_arguments_in_a_closure = wrong("saves nothing while a closure holds its inputs")(
    with_slips(arguments=closure)
)
loses_keywords = wrong("missing 2 required keyword-only arguments")(
    with_slips(arguments=positional)
)
always_stops_early = wrong("hand early_stop to the region")(with_slips(stops=lambda _: True))
ignores_contexts = wrong("the contexts of context_fn and the function came in the order")(
    with_slips(contexts=lambda context_fn: LAB.no_contexts())
)
never_compares = wrong("which takes forward_is_done")(with_slips(finished=False))
says_one_thing_for_all = wrong("the three messages of compare begin as")(
    with_slips(compare=says("the recomputation differs: {} and {}"))
)
names_no_operation = wrong("does not name the operation that made the tensor")(
    with_slips(compare=without_operation)
)
names_no_shape = wrong("does not name (3,):")(with_slips(compare=without_shapes))


@wrong("torch.utils.checkpoint is what you are writing")
def hands_it_on(function, *args, **kwargs):
    return torchs(function, *args, use_reentrant=False, **kwargs)


from_its_pieces = right(with_slips())


def run_again(restored, around, function, args, kwargs):
    with restored(), around:
        function(*args, **kwargs)


@right
def without_a_closure(function, *args, early_stop=True, context_fn=LAB.no_contexts, **kwargs):
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    first, second = context_fn()
    restored = LAB.remember_surroundings(function, LAB.gpus_of(args, kwargs))
    region = LAB.Region(
        lambda *a, **k: run_again(restored, second, function, a, k),
        LAB.save_arguments(args, kwargs),
        early_stop=early_stop,
        describe=LAB.describe,
        compare=LAB.compare,
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(saved_tensors_hooks(region.pack, region.unpack))
        stack.enter_context(first)
        output = function(*args, **kwargs)
    region.forward_is_done = True
    return output
