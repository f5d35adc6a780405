"""What checkpointing saves of a model's step, under every condition that was recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from . import store
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.units import parse_bytes


def tried(model: str, ways: tuple[str, ...] = ("per-block", "library-switch")) -> dict[str, Any]:
    """Compare every predicted step that checkpoints with the same one that does not.

    Args:
        model: A key of `published.PUBLISHED`.
        ways: Which strategies of checkpointing count.

    Returns:
        `saved` in percent of the whole step's peak, `largest batch` and
        `largest batch, checkpointed`, each by the step's label. The batches are estimates for an
        A100 of 80 GB, mostly low: as if all that forward and backward add grew with the batch.
    """
    rows = store.load(store.PREDICTED).rows
    card = parse_bytes(store.load("emulated NVIDIA A100-SXM4-80GB").device.partition(", ")[2])
    found: dict[str, Any] = {"saved": {}, "largest batch": {}, "largest batch, checkpointed": {}}
    for label, row in rows.items():
        recipe = Recipe(**row["recipe"])
        plain = rows.get(replace(recipe, checkpointing="none").label(), {})
        if recipe.model == model and recipe.checkpointing in ways and "report" in plain:
            both = plain["report"], row["report"]
            before, after = (report["peak_bytes"] for report in both)
            batches = (_largest(report, recipe.micro_batch, card) for report in both)
            values = 100 * (1 - after / before), *batches
            for part, value in zip(found, values, strict=True):
                found[part][label] = value
    return found


def _largest(report: dict[str, Any], micro_batch: int, card: int) -> int:
    phases, before = report["phases"], report["baseline_bytes"]
    added = max(phases["forward"], phases["backward"]) - before
    return int(micro_batch * (card - before) / added) if phases["optimizer"] <= card else 0
