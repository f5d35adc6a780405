"""The levers that save memory, pulled one after the other."""

from dataclasses import replace

import pytest
import torch
from small_models import publish_tiny
from torch.utils.checkpoint import checkpoint

from tutorial_lib import memory
from tutorial_lib.instruments import planning
from tutorial_lib.instruments.emulated.cards import CARDS
from tutorial_lib.instruments.planning.run.roofline import PUBLISHED_SPEEDS, Roofline
from tutorial_lib.instruments.training import Recipe

SIZES = {"n_layer": 3, "n_embd": 32, "n_head": 2, "vocab_size": 64, "n_positions": 64}
ALL = [
    *("as it is", "autocast", "fused kernels", "checkpoint each block"),
    *("one sample at a time", "8-bit states", "LoRA"),  # small: no micro-batch fills a GPU
]
SCRIPT = """
import torch
from torch import nn

def make_loss(micro_batch=1, norm=nn.BatchNorm2d):
    blocks = [nn.Sequential(nn.Conv2d(8, 8, 3), norm(8), nn.ReLU()) for _ in range(3)]
    model, images = nn.Sequential(*blocks), torch.randn(micro_batch, 8, 16, 16)
    return lambda: model(images).square().mean(), model

def make_step(micro_batch=1):
    loss, model = make_loss(micro_batch)
    optimizer = torch.optim.SGD(model.parameters())

    def step():
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, model, optimizer
"""


@pytest.fixture
def tiny(monkeypatch):
    """A published model that is small enough for a test."""
    return publish_tiny(monkeypatch, 64, **SIZES)


@pytest.fixture
def script(tmp_path):
    """A script of somebody's own, with BatchNorm and without a linear layer."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def names(levers):
    return [lever.name for lever in levers]


@pytest.mark.weekly
def test_each_lever_keeps_those_before_it(tiny):
    levers, refused = planning.pull_levers(Recipe(tiny, 4, attention="eager"))
    assert names(levers) == ALL
    assert refused == []
    first, *_, checkpointed, alone, eight_bit, lora = levers
    assert alone.recipe == Recipe(
        tiny,
        accumulation=4,
        precision="bf16-amp",
        optimizer="adamw-fused",
        checkpointing="per-block",
    )
    assert alone.report.peak_bytes < checkpointed.report.peak_bytes < first.report.peak_bytes / 2
    assert 1.15 < checkpointed.flops / first.flops < 1.4
    assert eight_bit.recipe.optimizer == "adamw-8bit"
    assert lora.flops != eight_bit.flops == checkpointed.flops
    assert [lever.training for lever in levers[1:5]] == ["rounding"] * 2 + ["exact", "redrawn"]
    assert 0 < first.outside_bytes < first.report.peak_bytes


def test_each_lever_is_told_of_and_predicted_as_a_whole_step_is(tiny):
    told = []
    recipe = Recipe(tiny, 4, optimizer="adamw-fused", precision="bf16-amp")
    levers, _ = planning.pull_levers(recipe, tell=lambda *what: told.append(what))
    assert [words for words, _ in told][:2] == [
        "lever 1 of 7: autocast",
        "lever 2 of 7: fused kernels",
    ]
    assert len(told) == len(planning.ORDER) == 7
    for lever in levers:
        short = replace(lever.recipe, accumulation=min(2, lever.recipe.accumulation))
        whole = memory.predict(short.make_step)
        assert (lever.report.at_peak, lever.report.phases) == (whole.at_peak, whole.phases)
        assert lever.report.by("module") == whole.by("module")


def test_what_a_script_cannot_take_is_said_and_the_rest_is_pulled(script):
    levers, refused = planning.pull_levers(Recipe(f"{script}:make_loss", 4))
    assert names(levers) == ALL[:-1]
    assert [why for why in refused if "has none there: leave it out" in why] == refused != []
    alone = levers[4]
    assert (alone.name, alone.training) == ("one sample at a time", "another")  # BatchNorm


def test_each_card_has_its_speed_and_one_without_bfloat16_its_autocast(tiny):
    assert {card.name for card in CARDS.values()} == set(PUBLISHED_SPEEDS)
    with pytest.raises(ValueError, match="'my card' is known here: name one of Tesla T4"):
        planning.Speed.of("my card")
    assert planning.Speed.of(None).matmul_flops == pytest.approx(0.64e12 * 19.5)
    torch.backends.cuda.matmul.allow_tf32 = True
    told = [planning.Speed.of(card) for card in (CARDS["a100"].name, None)]
    torch.backends.cuda.matmul.allow_tf32 = False
    assert told == [planning.Speed()] * 2
    t4 = planning.Speed.of(CARDS["t4"].name)
    levers, _ = planning.pull_levers(Recipe(tiny, 2), speed=t4)
    assert (levers[1].name, levers[1].recipe.precision) == ("autocast", "fp16-amp")
    old, new = {"has_bfloat16": False}, {"matmul_flops": 0.5}
    for more, operation, dtype, seconds in (
        *((old, torch.bmm, torch.float16, 0.2), (old, torch.bmm, torch.bfloat16, 2.0)),
        *((new, torch.bmm, torch.float32, 4.0), (new, torch.conv1d, torch.float32, 2.0)),
    ):
        with Roofline(planning.Speed(10.0, 1.0, 1e30, **more)) as roofline:
            operation(*[torch.empty(1, 1, 1, dtype=dtype)] * 2)
        assert roofline.seconds == pytest.approx(seconds)


@pytest.mark.parametrize("shape", [(6, 8), (2, 3, 8)])
def test_a_linear_layer_is_one_launch_whatever_the_shape_of_its_rows(shape):
    layer, rows = torch.nn.Linear(8, 16, bias=False), torch.ones(shape)
    with torch.no_grad(), Roofline(planning.Speed()) as roofline:
        layer(rows)
    assert roofline.launches == roofline.matmuls == 1


def test_a_checkpoint_calls_three_hooks_for_each_saved_tensor():
    x, mark = torch.ones(2, requires_grad=True), lambda kept: kept
    mark.is_torchs = True  # as checkpoint marks its own hooks since 2.15
    waiting = planning.Speed(1e30, 1e30, 1e30, launch_seconds=0.0, hook_seconds=0.5)
    with Roofline(planning.Speed()) as roofline, Roofline(waiting) as inner:
        checkpoint(torch.exp, x, use_reentrant=False).sum().backward()
        hooks = torch.autograd.graph.saved_tensors_hooks(pack_hook=mark, unpack_hook=abs)
        with hooks:
            x.exp()
    assert (roofline.hooks, inner.hooks, hooks.pack_hook.is_torchs) == (3 + 1, 3 + 1, True)
    assert inner.elapsed == pytest.approx(4 * 0.5)


def test_a_device_waits_for_launches_and_these_do_not_wait_for_it():
    speed = planning.Speed(10.0, 1.0, bytes_per_second=8.0, launch_seconds=2.0, hook_seconds=0.5)
    small, large = torch.ones(1), torch.ones(8)  # they take 1 and 8 seconds
    for order, ends in (((small,) * 3, 7.0), ((large, small, small), 12.0), ((small, large), 12.0)):
        with torch.no_grad(), Roofline(speed) as roofline:
            for tensor in order:
                tensor.neg()
        assert roofline.elapsed == ends
