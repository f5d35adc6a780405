"""Chapter 11c: three small models and a straight line give the step of a published one."""

import pytest

from tutorial_lib import memory
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.school import authoring

LORA = {"precision": "bf16", "lora_rank": 16}


@pytest.mark.weekly
@pytest.mark.parametrize("checkpointing", ["none", "library-switch"])
@pytest.mark.parametrize(
    ("name", "choices"), [("sd35-medium", {"precision": "bf16-amp"}), ("flux-dev", LORA)]
)
def test_the_line_gives_the_peak_of_the_published_model(root, name, choices, checkpointing):
    chapter = authoring.load_definitions(root / "course/11c_diffusion_transformers.ipynb")
    choices = {**choices, "checkpointing": checkpointing}
    line = chapter.by_line(name, chapter.BLOCKS[name], **choices)
    whole = memory.predict(Recipe(name, optimizer="adamw-fused", **choices).make_step)
    assert sum(line.values()) == pytest.approx(whole.peak_bytes, rel=1e-3)
