"""Lab 06: a slip in words that another answer has, so that it stands in no solutions/answers."""

import copy

import pytest
import torch

from solutions.answers import solved
from tutorial_lib.checks import CheckError, lab06

LAB = solved("lab06")


def test_a_judge_that_keeps_grad_itself_is_refused():
    def keeps_grad(step_a, step_b, model, make_optimizer, tolerance):
        found, state = [], torch.get_rng_state()
        for step in (step_a, step_b):
            torch.set_rng_state(state)
            twin, seen = copy.deepcopy(model), []
            optimizer = make_optimizer(twin.parameters())
            optimizer.register_step_pre_hook(
                lambda *_, twin=twin, seen=seen: seen.extend(p.grad for p in twin.parameters())
            )
            loss = torch.tensor([step(twin, optimizer)], dtype=torch.float64)
            found.append([loss, LAB.vector(seen), LAB.vector(twin.parameters())])
        torch.set_rng_state(state)
        names = ("loss", "gradients", "parameters")
        differences = {n: LAB.relative(b, a) for n, a, b in zip(names, *found, strict=True)}
        beyond = [item for item in differences.items() if not item[1] <= tolerance]
        return beyond[0] if beyond else ("nothing", max(differences.values()))

    with pytest.raises(CheckError, match="copy them, for they are zeroed in place"):
        lab06.first_difference(keeps_grad)
