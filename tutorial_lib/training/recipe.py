"""What can be chosen for a training step of a published model, and the step that follows.

recipe = Recipe("gpt2", 8, precision="bf16-amp", checkpointing="per-block")
memory.predict(recipe.make_step, label=recipe.label())

step, model, optimizer = recipe.make_step("cuda")
memory.measure(step, model=model, optimizer=optimizer, label=recipe.label())
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tutorial_lib.training.choices import Choices

if TYPE_CHECKING:
    import torch

    from tutorial_lib.training.step import Step


class Recipe(Choices):
    """One training step of a published model, as chosen.

    Choices may be given by their names, as in `precision="bf16-amp"`.

    Args:
        model: A key of `published.PUBLISHED`.
        micro_batch: Samples in memory at once.
        seq: Tokens in a sequence; `None` takes the model's own.
        size: Height and width: pixels for a vision transformer, latents for a U-Net.
        precision: Types of the numbers.
        attention: Which kernels.
        optimizer: Which update.
        checkpointing: A strategy of `strategies.STRATEGIES`.
        accumulation: Micro-batches for each update.
        overrides: Fields of the model's configuration that differ, as in `{"n_layer": 2}`.

    Raises:
        ValueError: When a choice has no such name, or there is to be no micro-batch. Model, sizes
            and strategy are looked at by `make_step` and its step.
    """

    def make_step(self, device: torch.device | str = "cpu") -> Step:
        """Build model, batch and optimizer, with random weights.

        Args:
            device: Where; `cpu` for `memory.predict`, which takes this method as it is.

        Returns:
            The step (forward, backward, update, gradients set to None), its model, its optimizer.

        Raises:
            ValueError: When the model, a size or the device is not known or cannot be.
        """
        from tutorial_lib.training.step import make_step

        return make_step(self, device)
