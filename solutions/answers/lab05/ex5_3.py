"""Answers to 5.3, contexts that keep chosen matmuls."""

from functools import partial

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torch.utils.flop_counter import flop_registry

from solutions.answers import right, wrong

keeps_nothing = wrong(
    "every matmul ran again: nothing was kept",
    "CheckpointPolicy.MUST_SAVE",
    "CheckpointPolicy.PREFER_RECOMPUTE",
)
keeps_all = wrong("no matmul ran again", "number in numbers", "number >= 0")
keeps_the_others = wrong(
    "those that should be kept ran again", "number in numbers", "number not in numbers"
)
keeps_by_name = wrong(
    "an operation's name can't tell them apart",
    "contexts(policy)",
    "contexts([torch.ops.aten.addmm.default])",
)
counts_both_runs_as_one = wrong(
    "each run counts from 0, and context.is_recompute",
    "seen[context.is_recompute]\n",
    "seen[False]\n",
    "seen[context.is_recompute] +",
    "seen[False] +",
)
counts_from_one = wrong("your policy counts from 1", "{False: 0, True: 0}", "{False: 1, True: 1}")
counts_on_in_the_next_segment = wrong(
    "each segment counts for itself",
    "        seen = {False: 0, True: 0}\n",
    "",
    "    def contexts",
    "    seen = {False: 0, True: 0}\n\n    def contexts",
)
keeps_what_costs_nothing = wrong(
    "changed in place after it was kept",
    "(op):\n                return CheckpointPolicy.PREFER_RECOMPUTE",
    "(op):\n                return CheckpointPolicy.MUST_SAVE",
)
keeps_gelu_too = wrong(
    "recompute the results of other operations",
    "if not is_matmul",
    "if op is torch.ops.aten.gelu.default:\n"
    "                return CheckpointPolicy.MUST_SAVE\n"
    "            if not is_matmul",
)
gives_the_contexts_themselves = wrong(
    "but a function is needed", "return contexts", "return contexts()"
)
with_counts_of_each_run = right(
    "{False: 0, True: 0}",
    "{is_again: iter(range(10**6)) for is_again in (False, True)}",
    "seen[context.is_recompute]\n",
    "next(seen[context.is_recompute])\n",
    "            seen[context.is_recompute] += 1\n",
    "",
)


KEEP, REMAKE = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE


def is_matmul(op):
    return op.overloadpacket in flop_registry


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
        number = self.seen if is_matmul(op) else None
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
        if not is_matmul(op):
            return CheckpointPolicy.MUST_RECOMPUTE
        runs[context.is_recompute].append(op)
        number = len(runs[context.is_recompute]) - 1
        return CheckpointPolicy.PREFER_SAVE if number in numbers else REMAKE

    return lambda: create_selective_checkpoint_contexts(partial(policy, ([], [])))
