"""A check of the recomputation, and checkpoint itself."""

import contextlib

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint as torchs

from solutions.answers import right, solved, wrong

leaves_eval_mode_alone = wrong(
    "in eval mode nothing was checkpointed",
    "if not torch.is_grad_enabled()",
    "module = getattr(function, '__self__', function)\n"
    "    if not torch.is_grad_enabled() or not getattr(module, 'training', True)",
)
runs_the_latest_function = wrong(
    "one was recomputed in another's place",
    "    def run(",
    "    checkpoint.latest = function\n\n    def run(",
    "restored(), ",
    "",
    "            function(",
    "            checkpoint.latest(",
    "options.compare",
    "None",
)
forgets_the_surroundings = wrong(
    "does the recomputation compute what forward did", "restored(), ", ""
)
forgets_autocast = wrong(
    "was bfloat16", "restored(),", 'restored(), torch.autocast("cpu", enabled=False),'
)
keeps_arguments_in_a_closure = wrong(
    "saves nothing while a closure holds its inputs",
    "save_arguments(args, kwargs)",
    "lambda: (args, kwargs)",
)
loses_keywords = wrong(
    "missing 2 required keyword-only arguments",
    "save_arguments(args, kwargs)",
    "save_arguments(args, {})",
)
always_stops_early = wrong("pass options.early_stop to", "options.early_stop", "True")
ignores_contexts = wrong(
    "the contexts of context_fn and the function came in the order",
    "options.context_fn()",
    "no_contexts()",
)
goes_on_without_gradients = wrong(
    "with gradients off, a context",
    "    if not torch.is_grad_enabled():\n        return function(*args, **kwargs)\n",
    "",
)
stops_at_the_last_one_alive = wrong(
    "stops at the last slot's number, dead or alive",
    "    comparison =",
    "    class Early(Region):\n"
    "        def fill(self, number, alias, backward):\n"
    "            rest, stops = self.slots[number + 1 :], self.early_stop\n"
    "            self.early_stop = False\n"
    "            super().fill(number, alias, backward)\n"
    "            self.early_stop = stops\n"
    "            if stops and all(slot() is None for slot in rest):\n"
    "                raise StopEarlyError\n"
    "\n"
    "    comparison =",
    "    region = Region(",
    "    region = Early(",
)
never_compares = wrong(
    "after you set its forward_is_done", "    region.forward_is_done = True\n", ""
)
says_one_thing_for_all = wrong(
    "begin compare's three messages as",
    "    comparison =",
    "    def says(first, again):\n"
    "        if [kept[1:] for kept in first] != [kept[1:] for kept in again]:\n"
    "            said = f'the recomputation differs: {len(first)} and {len(again)}'\n"
    "            raise CheckpointError(said)\n"
    "\n"
    "    comparison =",
    "options.compare",
    "says",
)
names_no_operation = wrong(
    "does not name the operation that made the tensor",
    "    comparison =",
    "    def quiet(*lists):\n"
    "        try:\n"
    "            compare(*lists)\n"
    "        except CheckpointError as error:\n"
    "            words = str(error).replace('Backward', '').replace('operation', '')\n"
    "            raise CheckpointError(words) from None\n"
    "\n"
    "    comparison =",
    "options.compare",
    "quiet",
)
names_no_shape = wrong(
    "does not name (3,):",
    "    comparison =",
    "    def quiet(*lists):\n"
    "        try:\n"
    "            compare(*lists)\n"
    "        except CheckpointError as error:\n"
    "            words = str(error)\n"
    "            words = words.replace('(3,)', '') if 'metadata' in words else words\n"
    "            raise CheckpointError(words) from None\n"
    "\n"
    "    comparison =",
    "options.compare",
    "quiet",
)
compares_operations_too = wrong(
    "operations may differ, so compare what comes after them",
    "    comparison =",
    "    def strict(first, again):\n"
    "        compare(first, again)\n"
    "        if first != again:\n"
    "            raise CheckpointError('tensors have different metadata')\n"
    "\n"
    "    comparison =",
    "options.compare",
    "strict",
)
ignores_the_determinism_check = wrong("pass options.describe to", "options.describe", "describe")
ignores_preserve_rng_state = wrong(
    "pass that option to remember_surroundings", ", options.preserve_rng_state", ""
)
ignores_debug = wrong("pass options.compare to", "options.compare", "compare")
saves_arguments_too_late = wrong(
    "the function emptied its list argument",
    "    bring_back = save_arguments(args, kwargs)\n",
    "",
    "Region(run, bring_back,",
    "Region(run, None,",
    "    region.forward_is_done = True\n",
    "    region.bring_back = save_arguments(args, kwargs)\n    region.forward_is_done = True\n",
)
returns_nothing = wrong("a block called through yours gave NoneType", "return output", "output")


LAB = solved("lab03")


@wrong("torch.utils.checkpoint is what you are writing")
def hands_it_on(function, *args, **kwargs):
    return torchs(function, *args, use_reentrant=False, **kwargs)


from_its_pieces = right(
    "    comparison = options.describe, options.compare\n",
    "",
    "*comparison",
    "options.describe, options.compare",
)


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
