"""Build the training step of a recipe."""

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adafactor, AdamW, Optimizer

from tutorial_lib.instruments import published, segments
from tutorial_lib.instruments.published.libraries import config_value, making_lora, quiet
from tutorial_lib.instruments.segments.structure import map_leaves
from tutorial_lib.instruments.training import user_function
from tutorial_lib.instruments.training.adamw_8bit import AdamW8bit
from tutorial_lib.instruments.training.fields import OptimizerName, Precision, RecipeFields, Shard

Step = tuple[Callable[[], None], nn.Module, Optimizer]
Loss = tuple[Callable[[], Tensor], nn.Module]

LEARNING_RATE = 1e-4
# PyTorch begins at 65536, and an update that overflows is skipped: the state would come late.
FIRST_SCALE = 1024.0
_OPTIMIZERS: dict[OptimizerName, tuple[Any, dict[str, Any]]] = {
    OptimizerName.SGD: (SGD, {}),
    OptimizerName.MOMENTUM: (SGD, {"momentum": 0.9}),
    OptimizerName.ADAMW: (AdamW, {}),
    OptimizerName.ADAMW_FUSED: (AdamW, {"fused": True}),
    OptimizerName.ADAMW_8BIT: (AdamW8bit, {}),
    OptimizerName.ADAFACTOR: (Adafactor, {}),
}
_AUTOCAST = {Precision.BF16_AMP: torch.bfloat16, Precision.FP16_AMP: torch.float16}


def make_model(recipe: RecipeFields, device: torch.device | str = "cpu") -> nn.Module:
    """Build the model of a recipe: see `Recipe.make_model`."""
    if user_function.is_function(recipe.model):
        model: nn.Module = user_function.build(recipe, device)[1]
        return _adapted(recipe, model)
    bfloat16 = torch.bfloat16 if recipe.precision == Precision.BF16 else None
    kernel, overrides = str(recipe.attention), _overrides(recipe)
    model = published.build(
        recipe.model, device=device, dtype=bfloat16, attention=kernel, **overrides
    )
    return _adapted(recipe, model)


def make_loss(recipe: RecipeFields, device: torch.device | str = "cpu") -> Loss:
    """Build model and batch of a recipe; checkpointing and accumulation are left to the step."""
    made = _built(recipe, device)
    if len(made) == 3:
        raise ValueError(
            f"{recipe.model} returns a whole step, but only its loss is needed here: let it return "
            "loss (a function that runs forward) and model."
        )
    return made


def _built(recipe: RecipeFields, device: torch.device | str) -> Loss | Step:
    """Return loss and model of a recipe; or step, model and optimizer of a user's function."""
    if user_function.is_function(recipe.model):
        made = user_function.build(recipe, device)
        if len(made) == 3:
            return made
        return _cast(recipe, made[0], device), _adapted(recipe, made[1])
    sizes: dict[str, Any] = {"seq": recipe.seq, "size": recipe.size, "device": device}
    batch = published.batch(recipe.model, recipe.micro_batch, **sizes, **_overrides(recipe))
    model = make_model(recipe, device)
    forward = functools.partial(published.loss, recipe.model, _divided(recipe, model), batch)
    return _cast(recipe, forward, device), model


def make_step(recipe: RecipeFields, device: torch.device | str = "cpu") -> Step:
    """Build model, batch and optimizer of a recipe: see `Recipe.make_step`."""
    made = _built(recipe, device)
    if len(made) == 3:
        return _whole(recipe, *made)
    loss, model = made
    optimizer = make_optimizer(recipe, model)
    scaler = torch.amp.GradScaler(
        torch.device(device).type,
        init_scale=FIRST_SCALE,
        enabled=recipe.precision == Precision.FP16_AMP,
    )

    def step() -> None:
        with segments.applied(model, recipe.checkpointing):
            for _ in range(recipe.accumulation):
                value = loss() / recipe.accumulation if recipe.accumulation > 1 else loss()
                scaler.scale(value).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step, model, optimizer


def compared_samples(recipe: RecipeFields) -> Literal["", "pairs", "loads"] | None:
    """Tell what a published model's loss compares among samples: nothing, `pairs`, or `loads`.

    CLIP's loss compares each image with each text, and one that balances experts their loads over
    the micro-batch. `None` for a user's function, since nobody here knows it.
    """
    if user_function.is_function(recipe.model):
        return None
    model = published.find(recipe.model)
    if model.family == "two-tower":
        return "pairs"
    return "loads" if config_value(model, recipe.overrides, "output_router_logits") else ""


def _divided(recipe: RecipeFields, model: nn.Module) -> nn.Module:
    """Return what runs forward on one of several ranks: the model itself, or DDP around it."""
    if recipe.shard is None:
        return model
    from tutorial_lib.instruments.training.shard import sharded  # its imports take a second

    family = published.find(recipe.model).family
    if family == "autoencoder" or family.startswith("our-"):
        raise ValueError(
            f"{recipe.model} cannot be divided: its loss calls other methods than forward, and "
            "DDP and FSDP gather in forward alone. Try another model."
        )
    if recipe.shard == Shard.TP and recipe.lora_rank is not None:
        raise ValueError(
            f"shard (=tp) divides plain linear layers, but LoRA (of rank {recipe.lora_rank}) "
            "replaces them: try shard fsdp, or leave LoRA out."
        )
    if recipe.shard == Shard.TP and recipe.precision == Precision.FP16_AMP:
        raise ValueError(
            "PyTorch's gradient scaler, which precision (=fp16-amp) needs, can't take divided "
            "and whole gradients together, as shard (=tp) leaves them: try bf16-amp, or shard fsdp."
        )
    return sharded(model, recipe.ranks, str(recipe.shard))


def _whole(recipe: RecipeFields, step: Any, model: nn.Module, optimizer: Any) -> Step:
    """Checkpoint a step that the user wrote, and refuse what has to stand in it."""
    mine = dict(recipe.as_data()).items()
    kept = ("model", "micro_batch", "seq", "size", "checkpointing", "overrides")
    plain = dict(RecipeFields(recipe.model).as_data())
    changed = [f"{k} (={v})" for k, v in mine if k not in kept and v != plain[k]]
    if changed:
        raise ValueError(
            f"{recipe.model} returns a whole step, which cannot be given another "
            f"{' or '.join(changed)}: write it into the step, or let the function return loss and "
            "model."
        )

    def checkpointed() -> None:
        with segments.applied(model, recipe.checkpointing):
            step()

    return checkpointed, model, optimizer


def _adapted(recipe: RecipeFields, model: nn.Module) -> nn.Module:
    """Return a model in the type of the recipe's numbers, with LoRA where asked for."""
    floats = (p.dtype for p in model.parameters() if p.is_floating_point())
    if recipe.precision == Precision.BF16 and set(floats) - {torch.bfloat16}:
        with quiet():  # published models are built in it
            model = model.to(torch.bfloat16)
    if recipe.precision == Precision.BF16 and user_function.is_function(recipe.model):
        _cast_inputs(model, torch.bfloat16)
    if recipe.lora_rank is None:
        return model
    from peft import LoraConfig, inject_adapter_in_model

    names = {module: name for name, module in model.named_modules()}
    parts = [part for block in segments.find_blocks(model) for part in block.modules()]
    linear = [names[m] for m in parts if isinstance(m, nn.Linear) or type(m).__name__ == "Conv1D"]
    if not linear:
        raise ValueError(
            f"LoRA (of rank {recipe.lora_rank}) goes beside the linear layers of blocks, but "
            f"{type(model).__name__} has none there: leave it out."
        )
    config = LoraConfig(r=recipe.lora_rank, target_modules=linear)
    with making_lora():
        adapted: nn.Module = inject_adapter_in_model(config, model)
    return adapted


def _cast_inputs(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast the floating-point tensors that a loss hands to a model, or to each of several.

    Training in bfloat16 throughout needs the batch cast as well as the model, since kernels refuse
    two types. What the model makes in another type is left alone, as are the targets. The cast is
    a part of autograd's graph.
    """

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    def enter(module: nn.Module, args: Any, kwargs: Any) -> Any:
        return map_leaves(Tensor, cast, (args, kwargs))

    holds_several = type(model).forward is nn.Module.forward
    for module in model.children() if holds_several else [model]:
        module.register_forward_pre_hook(enter, with_kwargs=True)


def _trained(model: nn.Module) -> list[dict[str, Any]]:
    """Group the parameters by class: one kernel takes no divided and whole ones together."""
    groups: dict[type, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            groups.setdefault(type(parameter.data), []).append(parameter)
    return [{"params": group} for group in groups.values()]


def make_optimizer(recipe: RecipeFields, model: nn.Module) -> Optimizer:
    """Make the optimizer of a recipe: see `Recipe.make_optimizer`."""
    kind, settings = _OPTIMIZERS[OptimizerName(recipe.optimizer)]
    if any(p.is_complex() for p in model.parameters()):  # no fused kernel takes those
        settings = {name: value for name, value in settings.items() if name != "fused"}
    if recipe.shard == Shard.ZERO1:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        kind = functools.partial(ZeroRedundancyOptimizer, optimizer_class=kind)
    made: Optimizer = kind(_trained(model), lr=LEARNING_RATE, **settings)
    return made


def _cast(
    recipe: RecipeFields, forward: Callable[[], Tensor], device: torch.device | str
) -> Callable[[], Tensor]:
    """Run a forward under the autocast that the recipe asks for."""
    dtype, kind = _AUTOCAST.get(Precision(recipe.precision)), torch.device(device).type

    def loss() -> Tensor:
        with torch.autocast(kind, dtype=dtype) if dtype else contextlib.nullcontext():
            return forward()

    return loss


def _overrides(recipe: RecipeFields) -> Mapping[str, Any]:
    """Put the image size where a model's configuration fixes it, for it has a position a patch."""
    model, size = published.find(recipe.model), recipe.size
    if size is None:
        return recipe.overrides
    part = "vision_config" if model.family == "two-tower" else ""
    within = f"{part}." if part else ""
    if not config_value(model, recipe.overrides, f"{within}image_size"):
        return recipe.overrides
    patch = config_value(model, recipe.overrides, f"{within}patch_size") or 1
    if size < 1 or size % patch:
        raise ValueError(
            f"size (={size}) must be a multiple of {patch}, the height and width of "
            f"{recipe.model}'s patches. Try size={max(1, round(size / patch)) * patch}."
        )
    if not part:
        return {**recipe.overrides, "image_size": size}
    before = {**model.config.get(part, {}), **recipe.overrides.get(part, {})}
    return {**recipe.overrides, part: {**before, "image_size": size}}
