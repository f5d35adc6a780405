"""Plans for models and losses of one's own, of many kinds: planned and executed."""

from pathlib import Path

import own_models
import pytest
import torch
from plan_models import executed

from tutorial_lib import memory
from tutorial_lib.instruments import planning
from tutorial_lib.instruments.training import Recipe

OWN = Path(__file__).with_name("own_models.py")


@pytest.mark.parametrize("name", ["segmentation", "two_models"])
def test_a_float_batch_follows_the_models_precision(name):
    recipe = Recipe(f"{OWN}:{name}", 2, precision="bf16")
    step, model, optimizer = recipe.make_step()
    counted = memory.measure(step, model=model, optimizer=optimizer)
    assert memory.predict(recipe.make_step, kernels="cpu").peak_bytes == counted.peak_bytes
    loss, model = Recipe(f"{OWN}:{name}", 2).make_loss()
    model.bfloat16()
    with pytest.raises(RuntimeError, match=r"should be the same|same dtype"):
        loss()


@pytest.mark.parametrize("name", ["segmentation", "residual"])
def test_plans_of_ones_own_models_run_as_planned(name):
    """Gradients are equal bit for bit, and the peak is within 2 % of the plan's."""
    torch.manual_seed(0)
    loss, model = getattr(own_models, name)()
    profile = planning.profile(model, loss, speed=planning.Speed())
    floor = planning.floor_bytes(profile)
    everything = tuple(range(len(profile.stages)))
    whole = planning.simulate(profile.stages, everything, profile.skips).peak_bytes
    assert floor < 0.8 * whole
    for share in (0.0, 0.5, 1.0):
        budget = floor + int(share * (whole - floor))
        found, same, peak = executed(model, loss, profile, budget)
        assert same
        assert 0.98 <= peak / found.peak_bytes <= 1.0001
        assert (set(found.forward_executions) == {1}) == (share == 1.0)
