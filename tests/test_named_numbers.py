"""A number that an error tells to use is one that works: each is read out of it and used.

These errors are looked at here alone; those that name no number, beside what they protect.
"""

import re
import shlex

import pytest
import torch
from plan_models import profiled
from small_models import ASKED, TINY, UNet, UNet3d, small, volumes

from tutorial_lib import data, device
from tutorial_lib.checks.given.values import CheckError
from tutorial_lib.checks.vocabulary import accumulation
from tutorial_lib.instruments import figures, planning, published, segments
from tutorial_lib.instruments.ranks import processes
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.unet import UNetConfig
from tutorial_lib.models.vit import ViT, ViTConfig
from tutorial_lib.school.commands.main import run
from tutorial_lib.units import parse_bytes

HERE = f"{__file__}:"
CHAIN = [
    planning.Stage(forward_seconds=1, backward_seconds=2, input_bytes=n, saved_bytes=9 * n)
    for n in (5_000, 700_001, 30_000, 2_000_000, 400)
]


def trained(model, *batch):
    model.loss(*batch).backward()


def recipe_of(name, **asked):
    """Train a step of a small published model; its sizes are those of the configuration."""
    recipe = Recipe(name, overrides=TINY[name], **{**ASKED.get(name, {}), **asked})
    with recipe.one_rank():
        loss, _ = recipe.make_loss()
        loss().backward()


def grouped_heads(ranks):
    heads = {**TINY["llama-2-7b"], "num_attention_heads": 4, "num_key_value_heads": 2}
    recipe = Recipe("llama-2-7b", overrides=heads, ranks=ranks, shard="tp")
    with recipe.one_rank():
        recipe.make_loss()


def unet(*sides):
    trained(small(UNet), torch.zeros(2, 1, *sides), torch.tensor([1, 2]), torch.zeros(2, 1, *sides))


def unet3d(*sides):
    trained(small(UNet3d), volumes(1, sides=sides), torch.zeros(1, *sides).long())


def vit(side):
    small(ViT, image_size=side)(torch.zeros(1, 1, 8, 8))


def image_size(side):
    asked = {**TINY["vit-b-16"], "image_size": side}
    model = published.build("vit-b-16", device="cpu", **asked)
    published.loss("vit-b-16", model, published.batch("vit-b-16", 1, **asked))


def image_size_of_the_batch(side):
    published.batch("vit-b-16", 1, size=side, **TINY["vit-b-16"])


def every(number):
    with segments.applied(small(GPT, num_layers=5), f"every-{number}"):
        pass


def started(number):
    processes.start(number)


def one_graph(peak):
    accumulation.expect_one_graph({"peak": peak}, 12_345_678)


def drawn(step):
    figures.schedule(planning.simulate(CHAIN, tuple(range(5))).events, step=step)


# What is called, a value that it refuses, and where its message names one that works.
NAMED = {
    "digits": (data.digits, [4], r"try size=(\d+)"),
    "text": (data.text, [10**9], r"and the (\d+) characters"),
    "image batch": (lambda n: data.image_batch(n, 1, 8), [0], r"try batch=(\d+)"),
    "windows": (lambda n: data.text_batches(1, n), [200_001], r"at most (\d+)"),
    "seed": (device.seed_everything, [-1], r"try seed=(\d+)"),
    "width": (lambda n: GPTConfig(d_model=n, num_heads=6), [100], r"Try d_model=(\d+)"),
    "tokens": (
        lambda n: trained(small(GPT), torch.zeros(1, n, dtype=torch.long)),
        [99],
        r"Try tokens\[:, :(\d+)\]",
    ),
    "patches": (lambda n: ViTConfig(image_size=n, patch_size=4), [30], r"Try image_size=(\d+)"),
    "small patches": (lambda n: ViTConfig(image_size=n, patch_size=9), [3], r"image_size=(\d+)"),
    "images": (vit, [16], r"Try image_size=(\d+)"),
    "groups": (lambda n: UNetConfig(base_channels=30, groups=n), [8], r"Try groups=(\d+)"),
    "unet": (unet, [9, 4], r"Try (\d+) x (\d+)"),
    "tiny unet": (unet, [1, 1], r"Try (\d+) x (\d+)"),
    "unet3d": (unet3d, [9, 8, 1], r"Try (\d+) x (\d+) x (\d+)"),
    "segments": (every, [6], r"between 1 and (\d+)"),
    "no segment": (every, [0], r"between 1 and (\d+)"),
    "ranks": (grouped_heads, [4], r"that divides (\d+)"),
    "budget": (lambda n: planning.solve(CHAIN, budget_bytes=n), [1], r"less than (\d+) bytes"),
    "events": (drawn, [11], r"the (\d+) events"),
    "processes": (started, [10**6], r"at most (\d+)"),
    "a graph": (one_graph, [12_345_679], r"bytes, but ([\d,]+) are plenty"),
}
for model, key, number in (
    *(("gpt2", "seq", 99), ("clip-two-tower", "seq", 99), ("gpt2", "micro_batch", 0)),
    *(("vit-b-16", "size", 200), ("vit-b-16", "size", 1), ("vit-b-16", "size", 0)),
    *(("dinov2-base", "size", 30), ("clip-two-tower", "size", 40), ("sd-vae", "size", 9)),
    *(("sd35-medium", "size", 7), ("flux-dev", "size", 5)),
    *(("unet3d", "size", 9), ("unet3d", "size", 1)),
):
    call = lambda n, model=model, key=key: recipe_of(model, **{key: n})  # noqa: E731
    NAMED[f"{key} {number} of {model}"] = call, [number], rf"[Tt]ry (?:{key}=)?(\d+)"


@pytest.mark.parametrize("name", NAMED)
def test_the_number_that_an_error_names_works(name, monkeypatch):
    monkeypatch.setattr(processes, "Ranks", lambda _: None)  # none is started
    call, refused, pattern = NAMED[name]
    with pytest.raises((ValueError, CheckError)) as error:
        call(*refused)
    found = re.search(pattern, str(error.value))
    assert found, error.value
    call(*[int(number.replace(",", "")) for number in found.groups()])


def test_an_image_size_is_named_for_model_and_batch():
    with pytest.raises(ValueError, match="in both build and batch") as error:
        image_size_of_the_batch(48)
    image_size(int(re.search(r"image_size=(\d+) in both", str(error.value))[1]))


@pytest.mark.parametrize("name", ["gpt", pytest.param("unet", marks=pytest.mark.weekly)])
def test_the_floor_of_a_chain_is_enough_in_digits_and_in_words(name):
    profile = profiled(name, selective=True)[2]
    with pytest.raises(ValueError, match="is below the floor") as error:
        planning.solve(profile, budget_bytes=1)
    digits, words = re.search(r"less than (\d+) bytes \((.*?)\)", str(error.value)).groups()
    for budget in (int(digits), parse_bytes(words)):
        assert planning.solve(profile, budget_bytes=budget).peak_bytes <= budget
    with pytest.raises(ValueError, match="is below the floor"):
        planning.solve(profile, budget_bytes=int(digits) - 1)


def linear(micro_batch=1):
    model, x = torch.nn.Linear(512, 512), torch.randn(micro_batch, 1000, 512)
    return (lambda: model(x).square().mean()), model


def told(words, capsys):
    status = run(shlex.split(words))
    return status, capsys.readouterr().out


def test_the_micro_batch_that_fits_is_the_largest_with_a_yes(capsys):
    words = f"predict {HERE}linear --fits 160MiB"
    batch = int(re.search(r"batch (\d+)", told(words, capsys)[1])[1])
    assert batch > 1
    assert "fits: yes" in told(f"{words} --batch {batch}", capsys)[1]
    said = told(f"{words} --batch {batch + 1}", capsys)[1]
    assert "fits: yes" not in said
    enough = re.search(r"enough +(\S+) (\S+)", said)
    more = f"predict {HERE}linear --fits {''.join(enough.groups())} --batch {batch + 1}"
    assert "fits: yes" in told(more, capsys)[1]
