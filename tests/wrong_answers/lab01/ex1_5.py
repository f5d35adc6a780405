"""The peak of a step, from one forward pass."""

import itertools

import torch

from tutorial_lib import memory
from wrong_answers import right, solved, wrong


class Ledger:
    """The entries of a step; wrong answers add them up wrongly."""

    def __init__(self, model, loss_fn, optimizer, weights_too=False, leaves_alone=False):
        after = solved("lab01").gradient_and_state_bytes(model, optimizer)
        saved = memory.saved(loss_fn, params_of=None if weights_too else model)
        self.rows = [row.num_bytes for row in saved.rows]
        self.left, left_by = [0], solved("lab01").gradients_left(model)
        for row in reversed(saved.rows):
            self.left.append(left_by.get(row.module, 0 if leaves_alone else self.left[-1]))
        self.kept, self.largest = sum(self.rows), max(self.rows)
        self.gradients, self.state = after["gradients"], after["optimizer_state"]
        self.buffers = sum(b.nbytes for b in model.buffers())
        self.fixed = solved("lab01").parameter_bytes(model) + self.buffers + self.state
        self.update = self.gradients * (2 if optimizer == "adamw" else 1)

    def backward(self, flowing=2, left_behind=True):
        left = self.left[:0:-1] if left_behind else [0] * len(self.rows)
        walk = zip(itertools.accumulate(self.rows), self.rows, left, strict=True)
        return max(still + flowing * row + gradients for still, row, gradients in walk)

    def peak(self):
        return self.fixed + max(self.backward(), self.update)


@wrong("It is the sum of all that there ever is")
def adds_up_everything(model, loss_fn, optimizer):
    book = Ledger(model, loss_fn, optimizer)
    return book.fixed + book.gradients + book.kept


@wrong("It is what autograd saves and nothing else")
def gives_the_activations_alone(model, loss_fn, optimizer):
    return memory.saved(loss_fn, params_of=model).num_bytes


@wrong("The weights are among the saved tensors")
def counts_saved_weights(model, loss_fn, optimizer):
    return Ledger(model, loss_fn, optimizer, weights_too=True).peak()


@wrong("The optimizer's state is missing")
def forgets_the_state(model, loss_fn, optimizer):
    book = Ledger(model, loss_fn, optimizer)
    return book.peak() - book.state


@wrong("The buffers are missing")
def forgets_the_buffers(model, loss_fn, optimizer):
    book = Ledger(model, loss_fn, optimizer)
    return book.peak() - book.buffers


@wrong("what does AdamW's update make beside them")
def forgets_the_temporaries_of_the_update(model, loss_fn, optimizer):
    book = Ledger(model, loss_fn, optimizer)
    return book.fixed + max(book.backward(), book.gradients)


@wrong("the update of SGD makes none")
def gives_sgd_temporaries(model, loss_fn, optimizer):
    book = Ledger(model, loss_fn, optimizer)
    return book.fixed + max(book.backward(), 2 * book.gradients)


@wrong("For this model no moment of backward is the peak")
def walks_through_the_activations_alone(model, loss_fn, optimizer):
    book = Ledger(model, loss_fn, optimizer)
    return book.fixed + book.backward(left_behind=False)


@wrong("The parameters' gradients lie on top")
def adds_all_gradients_to_backward(model, loss_fn, optimizer):
    book = Ledger(model, loss_fn, optimizer)
    return book.fixed + max(book.backward(left_behind=False) + book.gradients, book.update)


@wrong("What autograd saves is in it, and the gradients that flow")
def forgets_the_flowing_gradients(model, loss_fn, optimizer):
    book = Ledger(model, loss_fn, optimizer)
    return book.fixed + max(book.kept, book.update)


@wrong("Gradients of weights are missing in backward")
def forgets_what_layers_leave_behind(model, loss_fn, optimizer):
    book = Ledger(model, loss_fn, optimizer)
    return book.fixed + max(book.backward(left_behind=False), book.update)


@wrong("what was there before is there still")
def forgets_it_where_a_module_contains_modules(model, loss_fn, optimizer):
    return Ledger(model, loss_fn, optimizer, leaves_alone=True).peak()


@wrong("It is one tensor short")
def lets_one_gradient_flow(model, loss_fn, optimizer):
    book = Ledger(model, loss_fn, optimizer)
    return book.fixed + max(book.backward(flowing=1), book.update)


@wrong("The largest flowing gradients do not meet the fullest store")
def adds_the_largest_to_the_fullest(model, loss_fn, optimizer):
    book = Ledger(model, loss_fn, optimizer)
    return book.fixed + max(book.kept + 2 * book.largest, book.update)


@wrong("Its peak comes in the backward phase")
def lets_three_gradients_flow(model, loss_fn, optimizer):
    book = Ledger(model, loss_fn, optimizer)
    return book.fixed + max(book.backward(flowing=3), book.update)


@wrong("loss_fn was called 2 times")
def runs_forward_twice(model, loss_fn, optimizer):
    loss_fn()
    return Ledger(model, loss_fn, optimizer).peak()


@wrong("a backward or an update ran")
def runs_backward(model, loss_fn, optimizer):
    loss_fn().backward()
    return sum(p.grad.nbytes for p in model.parameters())


@wrong("memory.predict and memory.capped count as the oracle does")
def asks_the_meter(model, loss_fn, optimizer):
    return memory.measure(lambda: loss_fn().backward(), model=model).peak_bytes


@right
def from_the_first_row_to_the_last(model, loss_fn, optimizer):
    return Ledger(model, loss_fn, optimizer).peak()


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
