"""The checks of lab 08, fit the U-Net: here what an update draws (8.1)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.lab08_pieces import backward_in_pieces
from tutorial_lib.checks.lab08_room import room_for_activations
from tutorial_lib.checks.lab08_search import cheapest_fit
from tutorial_lib.checks.lab08_segments import recomputing
from tutorial_lib.checks.lab08_survive import update_that_fits
from tutorial_lib.checks.results import tensors
from tutorial_lib.checks.running import alone

__all__ = [
    "backward_in_pieces",
    "cheapest_fit",
    "draw_update",
    "recomputing",
    "room_for_activations",
    "update_that_fits",
]

_NUM = 400  # enough for every image and every time to come up


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    case = {"seed": draw.randrange(10**6), "update": draw.randint(1, 1000)}
    return [{**case, "num_images": draw.randint(12, 16), "num_times": draw.randint(5, 8)}]


def _images(case: Case) -> Tensor:
    generator = torch.Generator().manual_seed(case["seed"])
    return torch.rand(case["num_images"], 1, 4, 4, generator=generator) * 2 - 1


def _scheduler(case: Case) -> Any:
    from diffusers import DDPMScheduler

    return DDPMScheduler(num_train_timesteps=case["num_times"])


def _run(answer: Callable[..., Any], case: Case) -> Result:
    images, scheduler = _images(case), _scheduler(case)

    def drawn(update: int, num: int = _NUM) -> list[Any]:
        got = answer(images, num, update, scheduler)
        if not isinstance(got, list | tuple) or len(got) != 3:
            raise CheckError("three tensors are wanted: noisy images, their times, their noise.")
        return list(got)

    torch.manual_seed(case["seed"])
    before = torch.get_rng_state()
    first = drawn(case["update"])
    kept = torch.equal(before, torch.get_rng_state())
    torch.manual_seed(case["seed"] + 1)
    other = drawn(case["update"] + 1)
    return {"first": first, "kept": kept, "other": other, "again": drawn(case["update"])}


def _judge(case: Case, result: Result) -> None:
    first, other, again = (
        [t if t is not None else torch.empty(0) for t in tensors(result.get(key), 3, key)]
        for key in ("first", "other", "again")
    )
    noisy, times, noise = first
    _judge_shapes(noisy, times, noise)
    if result.get("kept") is not True:
        raise CheckError(
            "drawing moved the global random state: hand every random function a generator of "
            "your own."
        )
    if not all(map(_equal, first, again)):
        raise CheckError(
            f"update {case['update']} was drawn twice and came out differently: begin a new "
            "generator in each call, with a seed that the update's number decides."
        )
    if any(_equal(a, b) for a, b in zip(first, other, strict=True)):
        raise CheckError("two updates drew the same: the seed must depend on the update's number.")
    _judge_times(case, times)
    _judge_noise(noise)
    _judge_mixture(case, noisy, times, noise)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def _judge_shapes(noisy: Tensor, times: Tensor, noise: Tensor) -> None:
    if times.is_floating_point() or times.shape != (_NUM,):
        raise CheckError(
            f"the times have the shape {tuple(times.shape)} and type {times.dtype}: one whole "
            f"number for each of the {_NUM} images is wanted, in the second place."
        )
    for name, tensor in {"noisy images": noisy, "noise": noise}.items():
        if tensor.shape != (_NUM, 1, 4, 4):
            raise CheckError(
                f"the {name} have the shape {tuple(tensor.shape)}, and {(_NUM, 1, 4, 4)} is wanted."
            )


def _judge_times(case: Case, times: Tensor) -> None:
    seen, wanted = set(times.tolist()), set(range(case["num_times"]))
    if len(seen) == 1:
        raise CheckError("all images have one time: draw one for each image.")
    if seen != wanted:
        raise CheckError(
            f"the times run from {min(seen)} to {max(seen)}, and this scheduler has those from 0 "
            f"to {max(wanted)}: scheduler.config.num_train_timesteps says how many."
        )


def _judge_noise(noise: Tensor) -> None:
    if torch.equal(noise[0], noise[1]):
        raise CheckError("all images got one and the same noise: draw it in their shape.")
    spread, largest = float(noise.std()), float(noise.abs().max())
    if not (0.9 < spread < 1.1 and largest > 2.5 and abs(float(noise.mean())) < 0.1):
        raise CheckError(
            f"the noise has a deviation of {spread:.2f} and reaches {largest:.1f}: normal "
            "numbers of deviation 1 are wanted, torch.randn."
        )


def _judge_mixture(case: Case, noisy: Tensor, times: Tensor, noise: Tensor) -> None:
    images, scheduler = _images(case), _scheduler(case)
    share = scheduler.alphas_cumprod[times][:, None, None, None]
    left = noisy - (1 - share).sqrt() * noise  # of the image, where all is right
    off = (left[:, None] - share.sqrt()[:, None] * images[None]).abs().amax((2, 3, 4))
    error, chosen = off.min(1)
    if float(error.max()) > 1e-4:
        raise CheckError(
            "the noisy images are not those that this scheduler makes of images, noise and times: "
            "scheduler.add_noise(images, noise, times), with the very noise that is returned."
        )
    if len(set(chosen.tolist())) < case["num_images"]:
        raise CheckError(
            f"of {case['num_images']} images only {len(set(chosen.tolist()))} were ever chosen: "
            "draw the rows from all of them."
        )
    if torch.equal(chosen, torch.arange(_NUM) % case["num_images"]):
        raise CheckError("the images come in their order: draw which ones.")


draw_update = Check(
    name="lab08.draw_update",
    exercise="8.1",
    passed="an update's number decides its images, times and noise, and nothing else does",
    cases=_cases,
    run=alone(_run),
    judge=_judge,
)
