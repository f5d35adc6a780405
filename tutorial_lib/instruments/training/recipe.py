"""A training step of a published model as one object.

recipe = Recipe("gpt2", 8, precision="bf16-amp", checkpointing="per-block")
memory.predict(recipe.make_step, label=recipe.label())
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tutorial_lib.instruments.training.fields import RecipeFields

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

    from tutorial_lib.instruments.training.step import Loss, Step


class Recipe(RecipeFields):
    """One training step of a published model, as chosen; its weights and data are random.

    Choices may be given by their names, as in `precision="bf16-amp"`.

    Args:
        model: A key of `published.PUBLISHED`; the path of a `config.json` of transformers or
            diffusers, of a folder with one, or a name on the Hub; or a function of your own, as
            `path/to/train.py:make_step` or `package.module:make_loss`. It returns step, model and
            optimizer; or loss (a function that runs forward) and model. It may take `micro_batch`
            and `device`.
        micro_batch: Samples in memory at once.
        seq: Tokens in a sequence; `None` takes the model's own.
        size: Height and width: pixels for a vision transformer, latents for a U-Net.
        precision: Types of the numbers.
        attention: Which kernels.
        optimizer: Which update.
        checkpointing: A strategy of `segments.STRATEGIES`.
        accumulation: Micro-batches for each update.
        overrides: Fields of the model's configuration that differ, as in `{"n_layer": 2}`.
        lora_rank: Rank of the LoRA matrices beside the linear layers of all blocks, which alone are
            trained then; `None` trains the model itself.
        ranks: How many ranks train together; step and model are then those of one of them, made
            inside `ranks.pretend(ranks)` or on real ranks. `micro_batch` is a rank's own.
        shard: How they share the work; `None` for one rank.

    Raises:
        ValueError: When a choice has no such name, or there is to be no micro-batch. Model, sizes
            and strategy are looked at by `make_step` and its step.
    """

    @property
    def num_parameters(self) -> int:
        """Number of the model's parameters, counted without building it in memory."""
        return sum(p.numel() for p in self.make_model("meta").parameters())

    def one_rank(self) -> contextlib.AbstractContextManager[None]:
        """Make this process one of the recipe's ranks in a block, where they are several."""
        if self.shard is None:
            return contextlib.nullcontext()
        from tutorial_lib.instruments.training.pretended import pretend

        return pretend(self.ranks)

    def make_model(self, device: torch.device | str = "cpu") -> nn.Module:
        """Build the model alone, in training mode; its weights come from the global RNG.

        Args:
            device: Where; `meta` for shapes without memory.

        Raises:
            ValueError: When the model, an override or the device is not known.
        """
        from tutorial_lib.instruments.training.step import make_model

        return make_model(self, device)

    def make_loss(self, device: torch.device | str = "cpu") -> Loss:
        """Build model and micro-batch on a device, for a training step of your own.

        Returns:
            A function that runs forward and returns the loss, always of the same micro-batch, and
            the model that it runs.

        Raises:
            ValueError: When the model, a size or the device is not known or cannot be, or when
                checkpointing or accumulation were chosen: they are up to your step.
        """
        from tutorial_lib.instruments.training.step import make_loss

        if self.checkpointing != "none" or self.accumulation > 1:
            raise ValueError(
                f"a recipe with checkpointing (={self.checkpointing!r}) and accumulation "
                f"(={self.accumulation}) makes a whole step, and make_loss gives one micro-batch's "
                "loss: take make_step, or leave them out and checkpoint with segments.applied."
            )
        return make_loss(self, device)

    def make_optimizer(self, model: nn.Module) -> Optimizer:
        """Make the optimizer alone, for what is trained of a model that is there."""
        from tutorial_lib.instruments.training.step import make_optimizer

        return make_optimizer(self, model)

    def make_step(self, device: torch.device | str = "cpu") -> Step:
        """Build model, batch and optimizer; `memory.predict` takes this method as it is.

        Returns:
            The step (forward, backward, update, gradients set to None), its model, its optimizer.

        Raises:
            ValueError: When the model, a size or the device is not known or cannot be.
        """
        from tutorial_lib.instruments.training.step import make_step

        return make_step(self, device)
