"""The levers that save memory, pulled one after the other on a training step."""

from dataclasses import dataclass, replace
from typing import Any

from tutorial_lib import memory
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.units import Bytes

# What takes less memory, most often, at no price but rounding.
LEAN = {"fp32": "bf16-amp", "eager": "sdpa", "adamw": "adamw-fused"}
_SAME_FLOPS = {"precision", "attention", "optimizer", "micro_batch", "accumulation"}


@dataclass(frozen=True)
class Lever:
    """A lever, and the step with it and with all before it.

    Args:
        name: In words.
        training: What becomes of it: `exact` (the same gradients, bit for bit), `rounding` (other
            last digits) or `another`; empty for the step as it is.
        recipe: The step.
        report: Its predicted memory.
        flops: Floating-point operations of one sample.
    """

    name: str
    training: str
    recipe: Recipe
    report: memory.MemoryReport
    flops: int

    @property
    def outside_bytes(self) -> Bytes:
        """Bytes at the peak that no layer made: of a language model above all its loss."""
        held = self.report.by("module")
        return held.get("(forward)", Bytes(0)) + held.get("(backward)", Bytes(0))


def pull_levers(
    recipe: Recipe, report: memory.MemoryReport | None = None
) -> tuple[list[Lever], list[str]]:
    """Pull the levers of chapter 14 in order, the harmless ones first.

    Args:
        recipe: The step as it is.
        report: Its prediction, where there is one already.

    Returns:
        The step as it is, then with each lever that it has not pulled yet; and a sentence for each
        one that it cannot take.

    Raises:
        ValueError: When the step as it is cannot be.
    """
    flops = _flops(recipe)
    pulled, refused = [Lever("as it is", "", recipe, report or _at_peak(recipe), flops)], []
    today = {name: getattr(recipe, name) for name in ("precision", "attention", "optimizer")}
    lean = {name: LEAN.get(choice, choice) for name, choice in today.items()}
    precision = {"precision": lean.pop("precision")}
    alone = {"micro_batch": 1, "accumulation": recipe.micro_batch * recipe.accumulation}
    has_batch_norm = any("batch_norm" in life.op for life in pulled[0].report.timeline)
    levers: list[tuple[str, str, dict[str, Any]]] = [
        ("autocast", "rounding", precision),
        ("fused kernels", "rounding", lean),
        ("one sample at a time", "another" if has_batch_norm else "rounding", alone),
    ]
    if recipe.checkpointing == "none":
        levers.append(("checkpoint each block", "exact", {"checkpointing": "per-block"}))
    if "adamw" in recipe.optimizer:
        levers.append(("8-bit states", "another", {"optimizer": "adamw-8bit"}))
    if recipe.lora_rank is None:
        levers.append(("LoRA", "another", {"lora_rank": 16}))
    for name, training, choices in levers:
        wanted = replace(recipe, **choices)
        try:
            if wanted != recipe:
                flops = flops if choices.keys() <= _SAME_FLOPS else _flops(wanted)
                pulled.append(Lever(name, training, wanted, _at_peak(wanted), flops))
                recipe = wanted
        except ValueError as error:
            refused.append(f"{name}: {error}")
    return pulled, refused


def _at_peak(recipe: Recipe) -> memory.MemoryReport:
    # The third of several micro-batches peaks as the second.
    short = replace(recipe, accumulation=min(2, recipe.accumulation))
    return memory.predict(short.make_step)


def _flops(recipe: Recipe) -> int:
    with memory.predicting(), memory.flop_counter() as counter:
        step, *_ = replace(recipe, micro_batch=1, accumulation=1).make_step()
        step()
    return int(counter.get_total_flops())
