"""Hooks, recomputing once."""

import contextlib
import functools
import threading

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from wrong_answers import right, solved, wrong


def identity(tensor):
    return tensor


class EnoughError(Exception):
    pass


def recompute(run, collect, num_saved=None):
    def collect_and_stop(tensor):
        kept, found = collect(tensor), next(numbers)
        if found == num_saved:
            raise EnoughError
        return kept

    numbers = iter(range(1, 10**6))
    hooks = saved_tensors_hooks(collect_and_stop, identity)
    with contextlib.suppress(EnoughError), torch.enable_grad(), hooks:
        run()


def with_faults(alias=torch.Tensor.detach, take=dict.pop, again=bool, stop=True):
    """The solution, with the alias, the taking out and the test for emptiness to choose."""

    def hooked(function, *args):
        numbers, found, packed = iter(range(10**6)), {}, []

        def collect(tensor):
            kept = alias(tensor)
            found[len(found)] = kept
            return kept

        def unpack(number):
            if not again(found):
                found.clear()
                recompute(lambda: function(*args), collect, len(packed) if stop else None)
            return take(found, number)

        def pack(tensor):
            packed.append(next(numbers))
            return packed[-1]

        with saved_tensors_hooks(pack, unpack):
            return function(*args)

    return hooked


keeps_the_tensor_itself = wrong("recomputed bytes stayed after backward")(
    with_faults(alias=identity)
)
lets_nothing_go = wrong("what was used once lies there")(with_faults(take=dict.__getitem__))
stores_copies = wrong("collect makes copies")(
    with_faults(alias=lambda tensor: tensor.detach().clone())
)
runs_to_the_end = wrong("Leave the recomputation when that tensor is there")(
    with_faults(stop=False)
)
recomputes_for_every_tensor = wrong("that is a recomputation for every tensor")(
    with_faults(again=lambda found: False)
)


@wrong("so pack kept the tensors")
def packs_the_tensor(function, *args):
    with saved_tensors_hooks(torch.Tensor.detach, identity):
        return function(*args)


@wrong("an autograd.Function cuts the graph there")
def is_the_function_of_exercise_1(function, *args):
    output = solved("lab03").Discard.apply(function, *args)
    # so that the last backward has something to begin with
    return output if output.requires_grad else output.requires_grad_()


@wrong("one was recomputed in another's place")
def shares_what_to_run(function, *args, latest={}):  # noqa: B006
    latest["run"] = lambda: function(*args)
    numbers, found = iter(range(10**6)), {}

    def collect(tensor):
        kept = tensor.detach()
        found[len(found)] = kept
        return kept

    def unpack(number):
        if not found:
            recompute(latest["run"], collect)
        return found.pop(number)

    with saved_tensors_hooks(lambda tensor: next(numbers), unpack):
        return function(*args)


@wrong("it ran with gradients off")
def recomputes_with_gradients_off(function, *args):
    numbers, found = iter(range(10**6)), {}

    def collect(tensor):
        kept = tensor.detach()
        found[len(found)] = kept
        return kept

    def unpack(number):
        if not found:
            with saved_tensors_hooks(collect, identity):
                function(*args)
        return found.pop(number)

    with saved_tensors_hooks(lambda tensor: next(numbers), unpack):
        return function(*args)


@wrong("Do not detach the arguments")
def recomputes_from_detached_inputs(function, *args):
    numbers, found = iter(range(10**6)), {}

    def collect(tensor):
        kept = tensor.detach()
        found[len(found)] = kept
        return kept

    def unpack(number):
        if not found:
            recompute(lambda: function(*(t.detach() for t in args)), collect)
        return found.pop(number)

    with saved_tensors_hooks(lambda tensor: next(numbers), unpack):
        return function(*args)


@wrong("Recompute where the meter looks on")
def recomputes_in_another_thread(function, *args):
    """Lets nothing go, and the meter, which looks at this thread alone, sees nothing of it."""
    packed, found = [], {}

    def pack(tensor):
        packed.append(len(packed))
        return packed[-1]

    def collect(tensor):
        found[len(found)] = tensor.detach()
        return found[len(found) - 1]

    def unpack(number):
        if not found:
            threads = torch.get_num_threads()

            def again():
                torch.set_num_threads(threads)  # each thread has its own number, and so its bits
                return function(*args)

            run = functools.partial(recompute, again, collect, len(packed))
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
        return found[number]

    with saved_tensors_hooks(pack, unpack):
        return function(*args)


@wrong("torch.utils.checkpoint is what you are writing")
def hands_it_on(function, *args):
    return checkpoint(function, *args, use_reentrant=False)


@right
def with_a_list_that_is_emptied(function, *args):
    count, found = 0, []

    def pack(tensor):
        nonlocal count
        count += 1
        return count - 1

    def collect(tensor):
        found.append(tensor.detach())
        return found[-1]

    def unpack(number):
        if all(tensor is None for tensor in found):
            found.clear()
            recompute(lambda: function(*args), collect, count)
        tensor, found[number] = found[number], None
        return tensor

    with saved_tensors_hooks(pack, unpack):
        return function(*args)


@right
def with_objects_for_numbers(function, *args):
    places, found = [], {}

    def pack(tensor):
        places.append(object())
        return places[-1]

    def unpack(place):
        if not found:
            fresh = iter(places)

            def collect(tensor):
                kept = tensor.data
                found[next(fresh)] = kept
                return kept

            recompute(lambda: function(*args), collect, len(places))
        return found.pop(place)

    with saved_tensors_hooks(pack, unpack):
        return function(*args)
