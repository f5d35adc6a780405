"""Answers to 5.3, contexts that keep chosen products."""

from functools import partial
from itertools import count

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torch.utils.flop_counter import flop_registry

from wrong_answers import right, wrong

KEEP, REMAKE = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE


def is_product(op):
    return op.overloadpacket in flop_registry


def counted(is_kept, also=lambda op: False, start=0):
    """Make contexts by a policy that numbers the products of each run."""

    def contexts():
        numbers = {False: count(start), True: count(start)}

        def policy(context, op, *args, **kwargs):
            if not is_product(op):
                return KEEP if also(op) else REMAKE
            return KEEP if is_kept(next(numbers[context.is_recompute])) else REMAKE

        return create_selective_checkpoint_contexts(policy)

    return contexts


@wrong("every product ran again: nothing was kept")
def keeps_nothing(numbers):
    return counted(lambda number: False)


@wrong("no product ran again")
def keeps_all(numbers):
    return counted(lambda number: True)


@wrong("those that should be kept ran again")
def keeps_the_others(numbers):
    return counted(lambda number: number not in numbers)


@wrong("an operation's name does not tell them apart")
def keeps_by_name(numbers):
    return partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])


@wrong("each run counts from 0, and context.is_recompute")
def counts_both_runs_as_one(numbers):
    def contexts():
        places = count()

        def policy(context, op, *args, **kwargs):
            kept = is_product(op) and next(places) in numbers
            return KEEP if kept else REMAKE

        return create_selective_checkpoint_contexts(policy)

    return contexts


@wrong("yours counts from 1")
def counts_from_one(numbers):
    return counted(numbers.__contains__, start=1)


@wrong("each segment counts for itself")
def counts_on_in_the_next_segment(numbers):
    counts = {False: count(), True: count()}

    def policy(context, op, *args, **kwargs):
        kept = is_product(op) and next(counts[context.is_recompute]) in numbers
        return KEEP if kept else REMAKE

    return partial(create_selective_checkpoint_contexts, policy)


@wrong("written in place after it was kept")
def keeps_what_costs_nothing(numbers):
    return counted(numbers.__contains__, lambda op: True)


@wrong("the results of other operations are to be made again")
def keeps_gelu_too(numbers):
    return counted(numbers.__contains__, lambda op: op is torch.ops.aten.gelu.default)


@wrong("and a function is wanted")
def gives_the_contexts_themselves(numbers):
    return counted(numbers.__contains__)()


@right
def with_counts_of_each_run(numbers):
    return counted(numbers.__contains__)


@right
class ByItself:
    """Without PyTorch's contexts: one mode stores, the other hands out."""

    def __init__(self, numbers):
        self.numbers = numbers

    def __call__(self):
        store = {}
        return _Numbered(self.numbers, store, False), _Numbered(self.numbers, store, True)


class _Numbered(TorchDispatchMode):
    def __init__(self, numbers, store, hands_out):
        super().__init__()
        self.numbers, self.store, self.hands_out, self.seen = numbers, store, hands_out, 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        number = self.seen if is_product(op) else None
        self.seen += number is not None
        if self.hands_out and number in self.store:
            return self.store.pop(number)
        out = op(*args, **(kwargs or {}))
        if not self.hands_out and number in self.numbers:
            self.store[number] = out.detach()
        return out


@right
def numbered_by_a_list(numbers):
    def policy(runs, context, op, *args, **kwargs):
        if not is_product(op):
            return CheckpointPolicy.MUST_RECOMPUTE
        runs[context.is_recompute].append(op)
        number = len(runs[context.is_recompute]) - 1
        return CheckpointPolicy.PREFER_SAVE if number in numbers else REMAKE

    return lambda: create_selective_checkpoint_contexts(partial(policy, ([], [])))
