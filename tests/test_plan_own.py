"""Plans for models and losses of one's own, of many kinds: planned and executed."""

from pathlib import Path

import pytest

from tutorial_lib import memory
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
