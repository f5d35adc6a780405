"""The bytes of gradients and optimizer state."""

import torch

from wrong_answers import right, wrong


def ledger(model, optimizer, *, num_states=None, steps=None):
    """A right ledger; wrong answers change one thing."""
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = sum(p.nbytes for p in trained)
    num_states = {"sgd": 0, "momentum": 1, "adamw": 2} | (num_states or {})
    state = num_states[optimizer] * gradients
    if optimizer == "adamw":
        state += 4 * len(trained) if steps is None else steps
    return {"gradients": gradients, "optimizer_state": state}


@wrong("Plain SGD remembers nothing")
def gives_sgd_a_state(model, optimizer):
    return ledger(model, optimizer, num_states={"sgd": 1})


@wrong("Momentum remembers something")
def forgets_momentum(model, optimizer):
    return ledger(model, optimizer, num_states={"momentum": 0})


@wrong("It is what AdamW keeps")
def gives_momentum_two_tensors(model, optimizer):
    return ledger(model, optimizer, num_states={"momentum": 2})


@wrong("It is one tensor a parameter: Adam keeps two")
def gives_adam_one_average(model, optimizer):
    return ledger(model, optimizer, num_states={"adamw": 1}, steps=0)


@wrong("Something small is missing")
def forgets_the_step_counts(model, optimizer):
    return ledger(model, optimizer, steps=0)


@wrong("One count of steps is in it")
def counts_steps_once(model, optimizer):
    return ledger(model, optimizer, steps=4)


@wrong("Frozen parameters are in it: they get no gradient")
def gives_frozen_parameters_a_gradient(model, optimizer):
    parameters = list(model.parameters())
    gradients = sum(p.nbytes for p in parameters)
    states = {"sgd": 0, "momentum": gradients, "adamw": 2 * gradients + 4 * len(parameters)}
    return {"gradients": gradients, "optimizer_state": states[optimizer]}


@wrong("Frozen parameters are in it: they get no state")
def gives_frozen_parameters_a_state(model, optimizer):
    return {
        "gradients": ledger(model, optimizer)["gradients"],
        "optimizer_state": gives_frozen_parameters_a_gradient(model, optimizer)["optimizer_state"],
    }


@wrong("It is what float32 gives")
def keeps_states_in_float32(model, optimizer):
    trained = [p for p in model.parameters() if p.requires_grad]
    single = 4 * sum(p.numel() for p in trained)
    states = {"sgd": 0, "momentum": single, "adamw": 2 * single + 4 * len(trained)}
    return ledger(model, optimizer) | {"optimizer_state": states[optimizer]}


@wrong("The tied matrix is in it twice")
def goes_module_by_module(model, optimizer):
    every = [p for m in model.modules() for p in m.parameters(recurse=False) if p.requires_grad]
    gradients = sum(p.nbytes for p in every)
    states = {"sgd": 0, "momentum": gradients, "adamw": 2 * gradients + 4 * len(every)}
    return {"gradients": gradients, "optimizer_state": states[optimizer]}


@wrong("a dict with the keys gradients, optimizer_state is needed")
def gives_the_sum(model, optimizer):
    return sum(ledger(model, optimizer).values())


@right
def does_a_step_and_looks(model, optimizer):
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.requires_grad else None
    kinds = {"sgd": (torch.optim.SGD, 0), "momentum": (torch.optim.SGD, 0.9)}
    kind, momentum = kinds.get(optimizer, (torch.optim.AdamW, None))
    options = {} if momentum is None else {"momentum": momentum}
    real = kind(model.parameters(), **options)
    real.step()
    kept = [t for state in real.state.values() for t in state.values() if torch.is_tensor(t)]
    return {
        "gradients": sum(p.grad.nbytes for p in model.parameters() if p.grad is not None),
        "optimizer_state": sum(t.nbytes for t in kept),
    }


@right
def parameter_by_parameter(model, optimizer):
    gradients = state = 0
    for p in model.parameters():
        if not p.requires_grad:
            continue
        gradients += p.numel() * p.element_size()
        if optimizer == "momentum":
            state += p.numel() * p.element_size()
        if optimizer == "adamw":
            state += 2 * p.numel() * p.element_size() + torch.tensor(0.0).nbytes
    return {"optimizer_state": state, "gradients": gradients}
