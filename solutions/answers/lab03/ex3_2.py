"""Hooks, recomputing once."""

import contextlib

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from solutions.answers import right, solved, wrong

keeps_the_tensor_itself = wrong(
    "recomputed bytes stayed after backward", "tensor.detach()", "tensor"
)
lets_nothing_go = wrong("stays in your dictionary", "recomputed.pop(number)", "recomputed[number]")
stores_copies = wrong("collect makes copies", "tensor.detach()", "tensor.detach().clone()")
runs_to_the_end = wrong(
    "Leave the recomputation when that tensor is there",
    "        if len(recomputed) == num_saved:\n            raise StopEarlyError\n",
    "",
)
recomputes_for_every_tensor = wrong(
    "one recomputation per tensor",
    "        if not recomputed",
    "        recomputed.clear()\n        if not recomputed",
)
shares_what_to_run = wrong(
    "one was recomputed in another's place",
    '*args):\n    "',
    '*args, latest={}):\n    "',
    "num_saved = 0\n",
    "num_saved = 0\n    latest['run'] = lambda: function(*args)\n",
    "        function(*args)\n",
    "        latest['run']()\n",
)
recomputes_with_gradients_off = wrong("it ran with gradients off", "torch.enable_grad(), ", "")
recomputes_from_detached_inputs = wrong(
    "Do not detach the arguments",
    "        function(*args)\n",
    "        function(*(tensor.detach() for tensor in args))\n",
)
recomputes_in_another_thread = wrong(  # the meter looks at its own thread alone
    "your code starts another thread",
    "            with torch.enable_grad(), hooks, contextlib.suppress(StopEarlyError):\n"
    "                run_again()\n",
    "            import threading\n\n"
    "            threads = torch.get_num_threads()\n\n"
    "            def recompute():\n"
    "                torch.set_num_threads(threads)  # each thread has its own number\n"
    "                with torch.enable_grad(), hooks, contextlib.suppress(StopEarlyError):\n"
    "                    run_again()\n\n"
    "            thread = threading.Thread(target=recompute)\n"
    "            thread.start()\n"
    "            thread.join()\n",
)


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


@wrong("so pack kept the tensors")
def packs_the_tensor(function, *args):
    with saved_tensors_hooks(torch.Tensor.detach, identity):
        return function(*args)


@wrong("an autograd.Function cuts the graph there")
def is_the_function_of_exercise_1(function, *args):
    output = solved("lab03").Discard.apply(function, *args)
    # so that the last backward has something to begin with
    return output if output.requires_grad else output.requires_grad_()


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
