"""The levers that save memory, pulled one after the other on a training step."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tutorial_lib import memory
from tutorial_lib.instruments.planning.fitting.judged import judge
from tutorial_lib.instruments.planning.fitting.predictions import predicted
from tutorial_lib.instruments.planning.run.roofline import Roofline, Speed
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.units import Bytes

# The levers in order, and what each costs. First those that cost digits alone, then time, then
# those that make it another training.
ORDER = {
    "autocast": "last digits",
    "fused kernels": "last digits",
    "smaller micro-batch": "last digits, as long as the GPU stays filled",
    "checkpoint each block": "up to one more forward, and no bit of a gradient",
    "one sample at a time": "a GPU that is partly idle, where one sample does not fill it",
    "8-bit states": "another update",
    "LoRA": "another training; or more devices, which is another set-up",
}
# What takes less memory, most often, at no price but rounding.
_LEAN = {"eager": "sdpa", "adamw": "adamw-fused"}
_SAME_FLOPS = {"precision", "attention", "optimizer", "micro_batch", "accumulation"}


@dataclass(frozen=True)
class Lever:
    """A lever, and the step with it and with all before it."""

    name: str
    # what becomes of it, as `judge` says: `exact` (the same gradients, bit for bit), `rounding`
    # (other last digits), `redrawn` (other random numbers, as with dropout), `another`, or
    # `untried`; empty for the step as it is
    training: str
    recipe: Recipe
    report: memory.MemoryReport  # its predicted memory
    flops: int  # floating-point operations of one sample

    @property
    def outside_bytes(self) -> Bytes:
        """Bytes at the peak that no layer made: of a language model above all its loss."""
        held = self.report.by("module")
        return held.get("(forward)", Bytes(0)) + held.get("(backward)", Bytes(0))


def pull_levers(
    recipe: Recipe,
    report: memory.MemoryReport | None = None,
    speed: Speed | None = None,
    tell: Callable[[str, Sequence[Lever]], object] | None = None,
) -> tuple[list[Lever], list[str]]:
    """Pull the levers in the order of `ORDER`, the harmless ones first.

    Args:
        recipe: The step as it is.
        report: Its prediction, where there is one already.
        speed: Of the device, which says what fills it, and whether autocast is to bfloat16; `None`
            takes that of an A100. A slower one is filled by a smaller micro-batch.
        tell: Called before each lever, with words that say which one it is, and those pulled.

    Returns:
        The step as it is, then with each lever that it has not pulled yet; and a sentence for each
        one that it cannot take.

    Raises:
        ValueError: When the step as it is cannot be.
    """
    flops = _flops(recipe)
    pulled, refused = [Lever("as it is", "", recipe, report or predicted(recipe), flops)], []
    same = judge(recipe)
    trainings = dict.fromkeys(("smaller micro-batch", "one sample at a time"), same.accumulated)
    trainings |= {"checkpoint each block": same.recomputed}
    trainings |= {"8-bit states": "another", "LoRA": "another"}
    for number, name in enumerate(ORDER, start=1):
        if tell:
            tell(f"lever {number} of {len(ORDER)}: {name}", pulled)
        try:
            choices = _choices(name, recipe, speed or Speed.of(None))
            if choices.get("micro_batch") == 1 and not same.alone:
                raise ValueError("the loss compares samples, and one alone has no gradient.")
            wanted = replace(recipe, **choices)
            if wanted != recipe:
                flops = flops if choices.keys() <= _SAME_FLOPS else _flops(wanted)
                training = trainings.get(name, "rounding")
                pulled.append(Lever(name, training, wanted, predicted(wanted), flops))
                recipe = wanted
        except ValueError as error:
            refused.append(f"{name}: {error}")
    return pulled, refused


def _choices(name: str, recipe: Recipe, speed: Speed) -> dict[str, Any]:
    """Say what a lever changes in a recipe; nothing where it is pulled already."""
    samples = recipe.micro_batch * recipe.accumulation
    match name:
        case "autocast" if recipe.precision == "fp32":
            return {"precision": speed.autocast}
        case "fused kernels":
            today = {"attention": recipe.attention, "optimizer": recipe.optimizer}
            return {field: _LEAN.get(choice, choice) for field, choice in today.items()}
        case "smaller micro-batch" if recipe.micro_batch > 1:
            least = filling_micro_batch(recipe, speed)
            micro_batch = next(n for n in range(1, samples + 1) if samples % n == 0 and n >= least)
            if micro_batch < recipe.micro_batch:
                return {"micro_batch": micro_batch, "accumulation": samples // micro_batch}
        case "checkpoint each block" if recipe.checkpointing == "none":
            return {"checkpointing": "per-block"}
        case "one sample at a time":
            return {"micro_batch": 1, "accumulation": samples}
        case "8-bit states" if "adamw" in recipe.optimizer:
            return {"optimizer": "adamw-8bit"}
        case "LoRA" if recipe.lora_rank is None:
            return {"lora_rank": 16}
    return {}


def filling_micro_batch(recipe: Recipe, speed: Speed | None = None) -> int:
    """Predict the smallest micro-batch that keeps a GPU busy, at most the recipe's own.

    Operations are launched by the CPU. A micro-batch fills the GPU when its arithmetic and its
    bytes take longer than the launches; by a roofline, both are on a straight line in the samples.

    Args:
        recipe: The step.
        speed: Of the device; `None` takes that of an A100.

    Raises:
        ValueError: When it cannot be run with one sample or two, or is a whole step.
    """
    seconds = list[float]()
    plain = replace(recipe, accumulation=1, checkpointing="none")
    for samples in (1, 2):
        with recipe.one_rank(), memory.predicting(), Roofline(speed or Speed.of(None)) as roofline:
            loss, _ = replace(plain, micro_batch=samples).make_loss()
            start, launched = roofline.seconds, roofline.launches
            loss().backward()  # type: ignore[no-untyped-call]
        seconds.append(roofline.seconds - start)
    launching = (roofline.launches - launched) * roofline.speed.launch_seconds
    more: float = (launching - seconds[0]) / max(seconds[1] - seconds[0], 1e-12)
    return min(recipe.micro_batch, 1 + max(0, math.ceil(more)))


def _flops(recipe: Recipe) -> int:
    with memory.predicting(), memory.flop_counter() as counter:
        step, *_ = replace(recipe, micro_batch=1, accumulation=1).make_step()
        step()
    return int(counter.get_total_flops())
