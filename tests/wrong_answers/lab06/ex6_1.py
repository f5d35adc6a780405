"""The judge."""

import copy

import torch
from torch import nn

from tutorial_lib.checks import assert_same_training
from wrong_answers import right, solved, wrong

LAB = solved("lab06")


def with_slips(
    at_the_end=False,
    keep_random=True,
    seed=True,
    by_norms=False,
    is_far=None,
    parts=None,
    twice=1,
    loss_dtype=torch.float64,
):
    """The solution, with what it looks at and what it leaves to choose."""

    def first_difference(step_a, step_b, model, make_optimizer, tolerance):
        state, found = torch.get_rng_state(), []
        for step in (step_a, step_b):
            if seed:
                torch.set_rng_state(state)
            twin, seen = copy.deepcopy(model), []
            optimizer = make_optimizer(twin.parameters())
            optimizer.register_step_pre_hook(
                lambda *_, twin=twin, seen=seen: seen.append(LAB.gradient_vector(twin))
            )
            loss = torch.tensor([step(twin, optimizer)], dtype=loss_dtype)
            gradients = LAB.gradient_vector(twin) if at_the_end else seen[0]
            if by_norms:
                gradients = gradients.norm().reshape(1)
            found.append((loss, gradients, LAB.vector(twin.parameters())))
        if keep_random:
            torch.set_rng_state(state)
        names = ("loss", "gradients", "parameters")
        far = is_far or (lambda difference: not difference <= tolerance)
        differences = {
            name: twice * LAB.relative(b, a) for name, a, b in zip(names, *found, strict=True)
        }
        for name in parts or names:
            if far(differences[name]) and differences[name] != 0:
                return name, differences[name]
        return "nothing", max(differences.values())

    return first_difference


looks_at_the_end = wrong("these steps clear their gradients before they return")(
    with_slips(at_the_end=True)
)
lets_the_second_draw_on = wrong("the second drew other masks")(with_slips(seed=False))
leaves_the_random_state = wrong("a comparison draws nothing from the training")(
    with_slips(keep_random=False)
)
compares_norms = wrong("not the difference of the norms")(with_slips(by_norms=True))
compares_parameters_first = wrong("compare the gradients too, and first")(
    with_slips(parts=("loss", "parameters", "gradients"))
)
asks_whether_it_is_beyond = wrong("every comparison with nan is False")(
    with_slips(is_far=lambda difference: difference > 1e-9)
)
measures_something_else = wrong("which is not the norm of the difference divided by")(
    with_slips(twice=2)
)
compares_losses_in_float32 = wrong("too little for float32")(with_slips(loss_dtype=None))
has_a_tolerance_of_its_own = wrong("differ by less than the tolerance")(
    with_slips(is_far=lambda difference: not difference <= 1e-12)
)


@wrong("is not the largest of the three differences")
def finds_nothing_and_no_difference(step_a, step_b, model, make_optimizer, tolerance):
    part, difference = with_slips()(step_a, step_b, model, make_optimizer, tolerance)
    return part, 0.0 if part == "nothing" else difference


@wrong("the first is asked for, and not the largest")
def asks_the_gradients_first(*arguments):
    return with_slips(parts=("gradients", "loss", "parameters"))(*arguments)


@wrong("a module is in another mode after your call")
def leaves_it_in_eval(step_a, step_b, model, make_optimizer, tolerance):
    found = with_slips()(step_a, step_b, model, make_optimizer, tolerance)
    model.eval()
    return found


@wrong("run each step on a deep copy of its own")
def runs_on_the_model(step_a, step_b, model, make_optimizer, tolerance):
    found = with_slips()(step_a, step_b, model, make_optimizer, tolerance)
    step_a(model, make_optimizer(model.parameters()))
    return found


@wrong("a pair is to be returned")
def says_yes_or_no(step_a, step_b, model, make_optimizer, tolerance):
    return with_slips()(step_a, step_b, model, make_optimizer, tolerance)[0] == "nothing"


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


just_so = right(with_slips())
