"""Recipes: what is predicted is what is counted, and what cannot be is refused."""

import pytest
import small_models
import torch
from test_predicting import assert_predicted_as_counted

from tutorial_lib import memory
from tutorial_lib.instruments import ranks
from tutorial_lib.instruments.training import Attention, OptimizerName, Precision, Recipe
from tutorial_lib.instruments.training.adamw_8bit import AdamW8bit

WIDTH = {"hidden_size": 64}
TINY = {
    "gpt2": {**small_models.TINY["gpt2"], **WIDTH, "vocab_size": 96, "n_positions": 32},
    "bert-base": {**small_models.TINY["bert-base"], **WIDTH},
    "llama-2-7b": {**small_models.TINY["llama-2-7b"], **WIDTH, "intermediate_size": 128},
    "vit-b-16": {**small_models.TINY["vit-b-16"], **WIDTH},
    "sd15-unet": {**small_models.TINY["sd15-unet"], "layers_per_block": 1},
}
CHOICES = [
    ("fp32", "adamw", "none"),
    ("fp32", "sgd", "per-block"),
    ("fp16-amp", "adamw-fused", "none"),
    ("bf16-amp", "adamw", "per-block"),
    ("bf16-amp", "adamw-8bit", "none"),
    ("bf16", "sgd", "none"),
    ("bf16", "adamw-8bit", "per-block"),
]


def tiny(model="gpt2", **choices):
    return Recipe(model, 2, overrides=TINY[model], **choices)


STEPS = [
    pytest.param(model, *choices, marks=pytest.mark.weekly if "unet" in model else ())
    for model in TINY
    for choices in (CHOICES[::3] if "unet" in model else CHOICES)  # a U-Net takes longest
]


@pytest.mark.parametrize(("model", "precision", "optimizer", "checkpointing"), STEPS)
def test_predicted_is_counted_to_the_byte(model, precision, optimizer, checkpointing):
    chosen = {"precision": precision, "optimizer": optimizer, "checkpointing": checkpointing}
    recipe = tiny(model, **chosen)
    counted = assert_predicted_as_counted(recipe.make_step)
    assert set(counted.phases) == {"forward", "backward", "optimizer", "zero"}


def test_every_choice_changes_the_prediction():
    one_layer = {**TINY["gpt2"], "n_layer": 1}

    def peaks(**choices):
        return memory.predict(Recipe("gpt2", 2, overrides=one_layer, **choices).make_step).phases

    plain = peaks()
    changes = [{"precision": name} for name in list(Precision)[1:]]
    changes += [{"optimizer": name} for name in ("sgd", "adamw-fused", "adamw-8bit")]
    changes += [{"attention": "eager"}, {"checkpointing": "per-block"}]
    assert [change for change in changes if peaks(**change) == plain] == []


def test_float16_is_scaled_from_the_first_step_on():
    scales = []
    step, model, optimizer = tiny(precision="fp16-amp").make_step()
    model.lm_head.weight.register_hook(lambda grad: scales.append(grad.abs().sum()))
    step()
    assert optimizer.state  # the first update was not skipped
    plain_step, plain, _ = tiny(precision="fp32").make_step()
    plain.load_state_dict(model.state_dict())
    plain.lm_head.weight.register_hook(lambda grad: scales.append(grad.abs().sum()))
    plain_step()
    assert scales[0] / scales[1] > 100


def test_a_window_holds_one_copy_of_the_gradients_more_and_updates_once():
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 100, "n_positions": 32}
    one, four = (
        Recipe("gpt2", 16, 32, precision="fp32", accumulation=num, overrides=sizes)
        for num in (1, 4)
    )
    assert four.label() == "gpt2, batch 16 x 4, seq 32, fp32, adamw"
    alone, window = (memory.predict(recipe.make_step) for recipe in (one, four))
    assert alone.at_peak["gradients"] == 0
    assert window.at_peak["gradients"] == window.at_peak["parameters"]
    step, _, optimizer = four.make_step()
    step()
    assert {int(state["step"]) for state in optimizer.state.values()} == {1}


@pytest.mark.parametrize("precision", Precision)
def test_a_recipes_loss_is_that_of_its_step(precision):
    recipe, seen = tiny(precision=precision, optimizer="sgd"), []
    torch.manual_seed(0)
    loss, model = recipe.make_loss()
    loss().backward()
    torch.manual_seed(0)
    step, twin, optimizer = recipe.make_step()
    optimizer.register_step_pre_hook(lambda *_: seen.extend(p.grad.clone() for p in params))
    params = list(twin.parameters())
    step()
    assert next(model.parameters()).dtype == params[0].dtype
    found = [p.grad for p in model.parameters()]
    # In float16 the scaler keeps what would round to zero without it.
    tolerance = {"atol": 1e-4, "rtol": 0.05} if precision == Precision.FP16_AMP else {}
    torch.testing.assert_close(found, seen, **tolerance)


def test_choices_are_kept_as_they_are_named():
    recipe = Recipe("gpt2", precision="bf16-amp", optimizer="adamw-8bit", attention="eager")
    assert recipe.precision is Precision.BF16_AMP
    assert recipe.attention is Attention.EAGER
    assert isinstance(tiny(optimizer=OptimizerName.ADAMW_8BIT).make_step()[2], AdamW8bit)
    assert recipe.label() == "gpt2, batch 1, bf16-amp, adamw-8bit, eager"
    assert Recipe(**{**recipe.as_data(), "model": "gpt2"}) == recipe


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"precision": "bf61"}, r"precision \(='bf61'\) must be one of fp32, .*mean bf16"),
        ({"attention": "flash"}, r"attention \(='flash'\) must be one of sdpa, eager"),
        ({"optimizer": "adam"}, "Did you mean adamw"),
        ({"model": "gpt-2"}, "Did you mean gpt2"),
        ({"accumulation": 0}, r"accumulation \(=0\) must be at least 1"),
        ({"checkpointing": "per-blok"}, "Did you mean per-block"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_allocated(choices, says):
    with pytest.raises(ValueError, match=says):
        memory.predict(Recipe(**{"model": "gpt2", **choices}).make_step)


def one_of_two(model, shard):
    recipe = tiny(model, optimizer="adamw-fused", checkpointing="per-block", ranks=2, shard=shard)
    with ranks.pretend(2):
        return recipe, memory.predict(recipe.make_step)


@pytest.mark.parametrize(
    ("shard", "part"), [("ddp", 1.0), ("fsdp", 0.5), ("tp", 0.5), ("zero1", 0.5), ("zero2", 0.5)]
)
def test_one_rank_keeps_its_part_of_the_states(shard, part):
    recipe, report = one_of_two("vit-b-16", shard)
    whole = 2 * 4 * recipe.num_parameters
    assert recipe.label().endswith(f"one of 2 ranks, {shard}")
    # Tensor parallelism leaves norms, patches and positions whole.
    assert report.at_peak["optimizer_state"] == pytest.approx(part * whole, rel=0.1)
    assert Recipe(**recipe.as_data()) == recipe


@pytest.mark.parametrize(
    ("model", "choices", "says"),
    [
        ("bert-base", {"ranks": 4, "shard": "tp"}, "2 heads cannot be divided by 4 ranks"),
        ("resnet50", {"shard": "tp"}, "are not known: try shard='fsdp'"),
        ("lstm", {"shard": "fsdp"}, "gather in forward alone"),
        ("vit-b-16", {"shard": "fsdp", "optimizer": "adamw-8bit"}, "try adamw-fused"),
        ("vit-b-16", {"shard": "tp", "precision": "fp16-amp"}, "try bf16-amp"),
        ("vit-b-16", {"shard": "tp", "lora_rank": 4}, "leave LoRA out"),
        ("train.py:make_step", {"shard": "ddp"}, "divide the model in the function"),
    ],
)
def test_what_cannot_be_divided_is_refused(model, choices, says):
    choices = {"ranks": 2, **choices}
    with ranks.pretend(choices["ranks"]), pytest.raises(ValueError, match=says):
        memory.predict(Recipe(model, 2, overrides=TINY.get(model, {}), **choices).make_step)


def test_lora_without_a_linear_layer_in_any_block_is_refused():
    with pytest.raises(ValueError, match="ResNetForImageClassification has none there: leave it"):
        Recipe("resnet50", lora_rank=4).make_model("meta")


def test_a_rank_that_is_none_of_so_many_is_refused():
    with pytest.raises(ValueError, match="one of 2 ranks, and this process is one of 1"):
        tiny(ranks=2, shard="fsdp").make_step()
    with pytest.raises(ValueError, match="go together"):
        Recipe("gpt2", ranks=2)
