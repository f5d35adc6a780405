"""The bytes of gradients and optimizer state."""

import torch

from solutions.answers import right, wrong

gives_sgd_a_state = wrong("Plain SGD remembers nothing", '"sgd": 0', '"sgd": gradients')
forgets_momentum = wrong("Momentum remembers something", '"momentum": gradients', '"momentum": 0')
gives_momentum_two_tensors = wrong(
    "You counted what AdamW keeps", '"momentum": gradients', '"momentum": 2 * gradients'
)
gives_adam_one_average = wrong(
    "one tensor per parameter: Adam keeps two", "2 * gradients + step_counts", "gradients"
)
counts_steps_of_momentum = wrong(
    "You counted step counters", '"momentum": gradients', '"momentum": gradients + step_counts'
)
forgets_the_step_counts = wrong("Something small is missing", " + step_counts", "")
counts_steps_once = wrong("You counted one step counter", "4 * len(trained)", "4")
gives_frozen_parameters_a_gradient = wrong(
    "You counted frozen parameters: they get no gradient", " if parameter.requires_grad", ""
)
gives_frozen_parameters_a_state = wrong(
    "You counted frozen parameters: they get no state",
    " if parameter.requires_grad",
    "",
    '"gradients": gradients',
    '"gradients": sum(p.nbytes for p in trained if p.requires_grad)',
)
keeps_states_in_float32 = wrong(
    "You counted in float32",
    "states = {",
    "single = sum(4 * p.numel() for p in trained)\n    states = {",
    'gradients, "adamw": 2 * gradients',
    'single, "adamw": 2 * single',
)
goes_module_by_module = wrong(
    "You counted the tied matrix twice",
    "in model.parameters()",
    "in (p for m in model.modules() for p in m.parameters(False))",
)
gives_the_sum = wrong(
    "a dict with the keys gradients, optimizer_state is needed",
    '{"gradients": gradients, "optimizer_state": states[optimizer]}',
    "gradients + states[optimizer]",
)


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
