"""The peak of a step, from one forward pass."""

import torch

from solutions.answers import right, solved, wrong
from tutorial_lib import memory

adds_up_everything = wrong(
    "You added all gradients to all activations",
    "max(in_backward, in_update)",
    'after["gradients"] + sum(row.num_bytes for row in rows)',
)
gives_the_activations_alone = wrong(
    "It is only what autograd saves",
    "fixed + max(in_backward, in_update)",
    "sum(row.num_bytes for row in rows)",
)
counts_saved_weights = wrong("The weights are counted twice", ", params_of=model", "")
forgets_the_state = wrong(
    "The optimizer's state is missing", '    fixed += after["optimizer_state"]\n', ""
)
forgets_the_buffers = wrong(
    "The buffers are missing", " + sum(b.nbytes for b in model.buffers())", ""
)
forgets_the_temporaries_of_the_update = wrong(
    "which temporary tensors does AdamW's update make", ' * (2 if optimizer == "adamw" else 1)', ""
)
gives_sgd_temporaries = wrong("but SGD's makes none", '(2 if optimizer == "adamw" else 1)', "2")
walks_through_the_activations_alone = wrong(
    "This model's peak isn't in backward",
    " + left",
    "",
    "max(in_backward, in_update)",
    "in_backward",
)
adds_all_gradients_to_backward = wrong(
    "You added all of the parameters' gradients",
    "still_saved + left",
    'still_saved + after["gradients"]',
)
forgets_the_flowing_gradients = wrong(
    "You left out the gradients that flow",
    "still_saved + left + 2 * row.num_bytes",
    "still_saved",
)
forgets_what_layers_leave_behind = wrong(
    "Gradients of weights are missing in backward", " + left", ""
)
forgets_it_where_a_module_contains_modules = wrong(
    "take the value of the entry before", "row.module, left", "row.module, 0"
)
lets_one_gradient_flow = wrong("It is one tensor short", "2 * row.num_bytes", "row.num_bytes")
adds_the_largest_to_the_fullest = wrong(
    "The largest gradients come late in backward",
    " + left",
    "",
    "        still_saved -= row.num_bytes\n",
    "",
)
lets_three_gradients_flow = wrong(
    "Its peak comes in the backward phase", "2 * row.num_bytes", "3 * row.num_bytes"
)
runs_forward_twice = wrong("loss_fn was called 2 times", "    rows =", "    loss_fn()\n    rows =")
runs_backward = wrong(
    "a backward or an update ran", "    rows =", "    loss_fn().backward()\n    rows ="
)


LAB = solved("lab01")


@wrong("memory.predict and memory.capped count as the oracle does")
def asks_the_meter(model, loss_fn, optimizer):
    return memory.measure(lambda: loss_fn().backward(), model=model).peak_bytes


@right
def from_the_first_row_to_the_last(model, loss_fn, optimizer):
    rows, left_by = memory.saved(loss_fn, params_of=model).rows, LAB.gradients_left(model)
    after, left = LAB.gradient_and_state_bytes(model, optimizer), [0]
    for row in reversed(rows):
        left.append(left_by.get(row.module, left[-1]))
    peak, saved = after["gradients"] * (2 if optimizer == "adamw" else 1), 0
    for row, gradients in zip(rows, left[:0:-1], strict=True):
        saved += row.num_bytes
        peak = max(peak, saved + 2 * row.num_bytes + gradients)
    there = [*model.parameters(), *model.buffers()]
    return sum(tensor.nbytes for tensor in there) + after["optimizer_state"] + peak


@right
def with_hooks_of_its_own(model, loss_fn, optimizer):
    resident = {p.untyped_storage().data_ptr() for p in [*model.parameters(), *model.buffers()]}
    saved, begun, ended = {}, [], []

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in resident:
            # from here on modules go backward before this tensor is let go
            saved.setdefault(storage.data_ptr(), (storage.nbytes(), len(ended), tensor.detach()))
        return tensor

    leaves = [module for module in model.modules() if not [*module.children()]]
    hooks = [leaf.register_forward_pre_hook(lambda m, args: begun.append(m)) for leaf in leaves]
    hooks += [leaf.register_forward_hook(lambda m, args, out: ended.append(m)) for leaf in leaves]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = loss_fn()
    for hook in hooks:
        hook.remove()
    del loss
    sizes = [num_bytes for num_bytes, *_ in saved.values()]
    born = [sum(p.nbytes for p in leaf.parameters() if p.requires_grad) for leaf in begun]
    left = [sum(born[place:]) for _, place, _ in saved.values()]
    gradients = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    per_gradient = {"sgd": 0, "momentum": 1, "adamw": 2}[optimizer]
    there = [*model.parameters(), *model.buffers()]
    resident_bytes = sum(t.nbytes for t in there) + per_gradient * gradients
    in_backward = max(sum(sizes[: i + 1]) + 2 * sizes[i] + left[i] for i in range(len(sizes)))
    return resident_bytes + max(in_backward, gradients * (2 if optimizer == "adamw" else 1))
