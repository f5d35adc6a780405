"""The judge."""

import copy

import torch
from torch import nn

from solutions.answers import right, solved, wrong
from tutorial_lib.checks import assert_same_training

looks_at_the_end = wrong(
    "these steps clear their gradients before they return", "gradients[0]", "gradient_vector(twin)"
)
lets_the_second_draw_on = wrong(
    "the second drew other masks",
    "        torch.set_rng_state(random_state)\n        twin",
    "        twin",
)
leaves_the_random_state = wrong(
    "a comparison must not change the training",
    "    torch.set_rng_state(random_state)\n    return",
    "    return",
)
compares_norms = wrong(
    "not the difference of the norms", "gradients[0]", "gradients[0].norm().reshape(1)"
)
compares_parameters_first = wrong(
    "compare the gradients too, before the parameters",
    '"gradients": gradients[0], "parameters": weights',
    '"parameters": weights, "gradients": gradients[0]',
)
asks_whether_it_is_beyond = wrong(
    "every comparison with nan is False",
    "    return first_beyond(seen, wanted, tolerance)",
    "    found = {part: relative(seen[part], wanted[part]) for part in wanted}\n"
    "    beyond = [item for item in found.items() if item[1] > tolerance]\n"
    "    return beyond[0] if beyond else ('nothing', max(found.values()))",
)
measures_something_else = wrong(
    "which is not the norm of the difference divided by",
    "return first_beyond(seen, wanted, tolerance)",
    "part, difference = first_beyond(seen, wanted, tolerance)\n    return part, 2 * difference",
)
compares_losses_in_float32 = wrong(
    "too little for float32", "dtype=torch.float64", "dtype=torch.float32"
)
has_a_tolerance_of_its_own = wrong(
    "differ by less than the tolerance", "wanted, tolerance)", "wanted, 1e-12)"
)
finds_nothing_and_no_difference = wrong(
    "is not the largest of the three differences",
    "return first_beyond(seen, wanted, tolerance)",
    "part, difference = first_beyond(seen, wanted, tolerance)\n"
    "    return part, 0.0 if part == 'nothing' else difference",
)
asks_the_gradients_first = wrong(
    "return the first difference, not the largest",
    '"loss": loss, "gradients": gradients[0]',
    '"gradients": gradients[0], "loss": loss',
)
leaves_it_in_eval = wrong(
    "your call left a module in a different mode",
    "    return first",
    "    model.eval()\n    return first",
)
runs_on_the_model = wrong(
    "run each step on its own deep copy",
    "    return first",
    "    step_a(model, make_optimizer(model.parameters()))\n    return first",
)
says_yes_or_no = wrong(
    "return a pair: the part", "wanted, tolerance)", "wanted, tolerance)[0] == 'nothing'"
)
runs_the_second_first = right(
    "wanted, seen = observe(step_a), observe(step_b)",
    "seen, wanted = observe(step_b), observe(step_a)",
)


LAB = solved("lab06")


@wrong("assert_same_training is what you are writing")
def hands_it_on(step_a, step_b, model, make_optimizer, tolerance):
    def make():
        twin = copy.deepcopy(model)
        return twin, make_optimizer(twin.parameters())

    try:
        assert_same_training(step_a, step_b, make=make)
    except AssertionError:
        return "gradients", 1.0
    return "nothing", 0.0


@right
def by_replacing_step(step_a, step_b, model, make_optimizer, tolerance):
    def run(step):
        twin = copy.deepcopy(model)
        optimizer = make_optimizer(twin.parameters())
        plain_step, seen = optimizer.step, []

        def recorded(*args, **kwargs):
            seen.append(LAB.gradient_vector(twin))
            return plain_step(*args, **kwargs)

        optimizer.step = recorded
        with torch.random.fork_rng(devices=[]):
            loss = step(twin, optimizer)
        weights = nn.utils.parameters_to_vector(twin.parameters()).detach()
        return [torch.tensor(loss, dtype=torch.float64), seen[-1], weights]

    largest = 0.0
    for part, a, b in zip(
        ["loss", "gradients", "parameters"], run(step_a), run(step_b), strict=True
    ):
        difference = 0.0 if torch.equal(a, b) else float((b - a).norm() / a.norm())
        if difference != difference or difference > tolerance:
            return part, difference
        largest = max(largest, difference)
    return "nothing", largest


@right
def in_place_and_put_back(step_a, step_b, model, make_optimizer, tolerance):
    """Both steps on the model itself; put back after each."""
    kept = [(p, p.detach().clone(), p.grad) for p in model.parameters()]
    state, found = torch.get_rng_state(), []
    for step in (step_a, step_b):
        seen = []
        optimizer = make_optimizer(model.parameters())
        optimizer.register_step_pre_hook(
            lambda *_, seen=seen: seen.append(LAB.gradient_vector(model))
        )
        loss = step(model, optimizer)
        found.append((torch.DoubleTensor([loss]), seen[0], LAB.vector(model.parameters())))
        with torch.no_grad():
            for p, value, gradient in kept:
                p.copy_(value)
                p.grad = gradient
        torch.set_rng_state(state)
    names = ("loss", "gradients", "parameters")
    differences = dict(zip(names, map(LAB.relative, *reversed(found)), strict=True))
    beyond = [item for item in differences.items() if not item[1] <= tolerance]
    return beyond[0] if beyond else ("nothing", max(differences.values()))
