"""The training steps that are recorded, as data: a grid of models and strategies, and the tables
that published claims speak of.
"""

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from tutorial_lib.instruments.training import Recipe

# Model, and the sizes at which it is recorded: micro-batch, then tokens or pixels where the
# model's own are not meant. Each fits, checkpointed, on a card of 80 GiB.
SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"micro_batch": 8},
    "gpt2-medium": {"micro_batch": 8},
    "gpt2-large": {"micro_batch": 8},
    "gpt2-xl": {"micro_batch": 8},
    "bert-base": {"micro_batch": 32, "seq": 512},
    "bert-large": {"micro_batch": 16, "seq": 512},
    "transformer-50": {"micro_batch": 8},
    "llama-2-7b": {"micro_batch": 1, "seq": 2048, "precision": "bf16"},
    "vit-b-16": {"micro_batch": 32},
    "vit-l-16": {"micro_batch": 32},
    "clip-two-tower": {"micro_batch": 64},
    "sd15-unet": {"micro_batch": 4},
    "sd21-unet": {"micro_batch": 4},
    "sdxl-unet": {"micro_batch": 1},
    "sd-vae": {"micro_batch": 1},
    "unet3d": {"micro_batch": 1},
    "resnet50": {"micro_batch": 64},
    "resnet1000": {"micro_batch": 16},
    "lstm": {"micro_batch": 16},
}
STRATEGIES = ("none", "per-block", "every-2", "sqrt", "attention-only", "library-switch")
# What the claims say of a model: largest batch without and with checkpointing.
FITTED = {
    "sd21-unet": ("E02", "E06"),
    "sdxl-unet": ("E07",),
    "llama-2-7b": ("E08",),
    "vit-l-16": ("E09",),
}
CARD_GIB = 16
# One sample at a time, accumulated: chapter 14c's last levers, in their order.
LEVERS = (("none", "adamw-fused"), ("per-block", "adamw-fused"), ("per-block", "adamw-8bit"))
_ALL_BF16 = (("bf16", "sdpa"), ("bf16", "eager"))


@dataclass(frozen=True)
class Row:
    """One step to record.

    Args:
        recipe: The step.
        claims: Ids of the claims that it settles.
        largest: Whether to look for the largest micro-batch that fits.
        card_gib: Memory of the card to emulate, in GiB; `None` is the whole card.
    """

    recipe: Recipe
    claims: tuple[str, ...] = ()
    largest: bool = False
    card_gib: int | None = None

    @property
    def key(self) -> str:
        """Its name in the file."""
        words = self.recipe.label().split(", ")
        if self.largest:
            words[1] = "largest batch"  # in place of the batch that the search begins with
        words += [f"card of {self.card_gib} GiB"] if self.card_gib else []
        return ", ".join(words)


def find_rows(pattern: str = "*") -> list[Row]:
    """List the rows whose key, or one of whose claims, matches a pattern of the shell.

    Raises:
        ValueError: When none does.
    """
    found: dict[str, Row] = {}
    for row in _all():
        if any(fnmatch.fnmatch(name, pattern) for name in (row.key, *row.claims)):
            found.setdefault(row.key, row)
    if not found:
        raise ValueError(
            f"No row matches {pattern!r}: try a model and a star, as in 'gpt2*', or a claim, as "
            "in E06."
        )
    return list(found.values())


def _all() -> Iterator[Row]:
    """Yield every row; one that a claim speaks of comes before the same one of the grid."""
    yield from _claimed()
    for model, sizes in SIZES.items():
        base = Recipe(model, **sizes)
        precisions = (base.precision,) if "precision" in sizes else ("fp32", "bf16-amp")
        for precision in precisions:
            for strategy in STRATEGIES:
                row = replace(base, precision=precision, checkpointing=strategy)
                yield Row(row)
                if strategy in ("none", "per-block"):
                    yield Row(replace(row, optimizer="adamw-fused"))
                    yield Row(replace(row, attention="eager"))
    yield from _court()


def _claimed() -> Iterator[Row]:
    for strategy in ("none", "per-block"):
        for precision in ("fp32", "bf16-amp"):
            choices: dict[str, Any] = {"precision": precision, "checkpointing": strategy}
            yield Row(Recipe("gpt2-xl", 32, 1024, **choices), ("A12",))
            yield Row(Recipe("bert-large", 16, 512, **choices), ("A13",))
            yield Row(Recipe("bert-large", 4, 512, **choices), ("A13",))
            yield Row(Recipe("transformer-50", 8, **choices), ("E01",))
        for model, claims in FITTED.items():
            recipe = Recipe(model, 1, precision="bf16-amp", checkpointing=strategy)
            for card_gib in (None, CARD_GIB):
                yield Row(recipe, claims, largest=True, card_gib=card_gib)
    for attention, strategy in product(("sdpa", "eager"), ("none", "library-switch")):
        update: dict[str, Any] = {"attention": attention, "optimizer": "adamw-fused"}
        recipe = Recipe("sd21-unet", 1, checkpointing=strategy, **update)
        yield Row(recipe, ("E06",), largest=True)
    for strategy in STRATEGIES:
        recipe = Recipe("gpt2-medium", 8, precision="bf16-amp", checkpointing=strategy)
        yield Row(recipe, ("E12",))
    for strategy in ("none", "library-switch"):
        lora: dict[str, Any] = {"precision": "bf16", "optimizer": "adamw-fused", "lora_rank": 16}
        yield Row(Recipe("llama-2-7b", 4, 2048, checkpointing=strategy, **lora), ("E08",))
    for strategy in ("none", "per-block", "sqrt"):
        yield Row(Recipe("transformer-50", 11, 512, checkpointing=strategy), ("E01",))
    yield from _conditions()
    yield from _accumulated()
    yield from _divided()
    yield from _levers()


def _conditions() -> Iterator[Row]:
    """Other conditions under which such a claim might be true."""
    for strategy in ("none", "per-block"):
        for precision, attention in (*product(("fp32", "bf16-amp"), ("eager",)), *_ALL_BF16):
            choices: dict[str, Any] = {"precision": precision, "attention": attention}
            yield Row(Recipe("gpt2-xl", 32, 1024, checkpointing=strategy, **choices), ("A12",))
            if precision != "bf16":
                yield Row(Recipe("bert-large", 4, 512, checkpointing=strategy, **choices), ("A13",))
        half: dict[str, Any] = {"precision": "bf16", "checkpointing": strategy}
        for optimizer in ("adamw", "adamw-fused"):
            yield Row(Recipe("llama-2-7b", 1, 4096, optimizer=optimizer, **half), ("D07",))
        yield Row(Recipe("gpt2-xl", 8, **half), ("A12",))
        yield Row(Recipe("llama-2-7b", 4, 2048, optimizer="adamw-8bit", **half), ("E08",))
        yield Row(Recipe("llama-2-7b", 4, 2048, optimizer="adamw-fused", **half), ("E08",))
        for precision in ("fp32", "bf16-amp"):
            row = Recipe("vit-l-16", 96, precision=precision, checkpointing=strategy)
            yield Row(row, ("E09",))
            for attention in ("sdpa", "eager"):
                choices = {"precision": precision, "attention": attention}
                yield Row(Recipe("sdxl-unet", 4, checkpointing=strategy, **choices), ("E07",))


def _accumulated() -> Iterator[Row]:
    """Windows of micro-batches: what two claims have, a fixed micro-batch, a fixed window."""
    lean: dict[str, Any] = {"accumulation": 4, "checkpointing": "per-block"}
    two = lean | {"accumulation": 2}  # the second micro-batch peaks as the fourth would
    yield Row(Recipe("gpt2-xl", 8, 1024, precision="bf16", **two), ("A12",))
    for optimizer in ("adamw", "adamw-8bit"):
        yield Row(Recipe("bert-large", 4, 512, optimizer=optimizer, **lean), ("A13",))
    yield Row(Recipe("vit-b-16", 8, precision="bf16-amp", **two), ("A19",))
    for micro_batch, accumulation in ((8, 1), (8, 2), (8, 4), (32, 1), (16, 2), (4, 8)):
        window: dict[str, Any] = {"accumulation": accumulation, "precision": "bf16-amp"}
        yield Row(Recipe("gpt2", micro_batch, **window), ("A08",))
    for (micro_batch, accumulation), seq in product(((32, 1), (8, 4)), (None, 16)):
        yield Row(Recipe("gpt2", micro_batch, seq, accumulation=accumulation), ("A10", "D03"))


def _divided() -> Iterator[Row]:
    """One rank of eight, predicted and emulated; a GPU records rows of one rank."""
    lean: dict[str, Any] = {"precision": "bf16", "optimizer": "adamw-fused"}
    for model, shard in product(("gpt2-xl", "llama-2-7b", "llama-2-70b"), ("ddp", "fsdp", "tp")):
        if (model, shard) != ("gpt2-xl", "tp"):  # its 25 heads are not divided by 8
            recipe = Recipe(model, checkpointing="per-block", ranks=8, shard=shard, **lean)
            yield Row(recipe, ("C20",))


def _levers() -> Iterator[Row]:
    """One sample at a time: under autocast, checkpointed, and with 8-bit states too."""
    for model in (name for name in SIZES if name != "resnet1000"):  # half a minute a row
        alone = replace(Recipe(model, **SIZES[model]), micro_batch=1, precision="bf16-amp")
        yield Row(alone, ("A17",))
        yield Row(replace(alone, checkpointing="per-block"), ("A17",))
        lean = replace(alone, checkpointing="per-block", optimizer="adamw-8bit")
        yield Row(lean, ("A17",))
        for strategy, optimizer in LEVERS if "precision" not in SIZES[model] else ():
            window = {"accumulation": min(2, SIZES[model]["micro_batch"])}  # the second as the last
            choices = {"checkpointing": strategy, "optimizer": optimizer, **window}
            yield Row(replace(alone, **choices), ("A17",))


def _court() -> Iterator[Row]:
    """Yield what else the claims court tries: the library's call, and 8-bit states everywhere."""
    for attention, precision in product(("eager", "sdpa"), ("bf16-amp", "fp32")):
        kernels: dict[str, Any] = {"attention": attention, "precision": precision}
        lean = kernels | {"optimizer": "adamw-8bit"}
        for batch in (16, 4):
            yield Row(Recipe("bert-large", batch, 512, **lean), ("A13",))
        window = lean | {"accumulation": 4, "checkpointing": "per-block"}
        yield Row(Recipe("bert-large", 4, 512, **window), ("A13",))
        for model, claim in (("sdxl-unet", "E07"), ("sd21-unet", "E06")):
            if (model, attention, precision) != ("sdxl-unet", "sdpa", "fp32"):  # half a minute each
                for strategy in ("none", "per-block", "library-switch"):
                    for choices in (lean, kernels):
                        row = Recipe(model, 4, checkpointing=strategy, **choices)
                        yield Row(row, (claim,))
        if precision == "fp32":  # the latents of E06's source
            for batch, strategy in product((4, 15), ("none", "library-switch")):
                for choices in (lean, kernels):
                    row = Recipe("sd21-unet", batch, size=64, checkpointing=strategy, **choices)
                    yield Row(row, ("E06",))
        if attention == "eager":
            for strategy in STRATEGIES[2:5]:
                row = Recipe("gpt2-medium", 8, checkpointing=strategy, **kernels)
                yield Row(row, ("E12",))
    lean = {"optimizer": "adamw-8bit", "checkpointing": "per-block"}
    for precision in ("bf16", "bf16-amp"):
        for batch, accumulation in ((32, 1), (8, 2)):
            window = lean | {"accumulation": accumulation, "precision": precision}
            yield Row(Recipe("gpt2-xl", batch, 1024, **window), ("A12",))
    frozen: dict[str, Any] = {"optimizer": "adamw-fused", "lora_rank": 16, "attention": "eager"}
    for strategy in ("none", "library-switch"):
        frozen |= {"precision": "bf16", "checkpointing": strategy}
        yield Row(Recipe("llama-2-7b", 4, 2048, **frozen), ("E08",))
