"""The checks of lab 08, fit the U-Net: here what an update draws (8.1)."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tutorial_lib.checks.calls import calls_of
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.lab08_pieces import backward_in_pieces
from tutorial_lib.checks.lab08_room import room_for_activations
from tutorial_lib.checks.lab08_search import cheapest_fit
from tutorial_lib.checks.lab08_segments import recomputing
from tutorial_lib.checks.lab08_survive import update_that_fits
from tutorial_lib.checks.results import items, tensors
from tutorial_lib.checks.training_state import random_states, set_random_states

__all__ = [
    "backward_in_pieces",
    "cheapest_fit",
    "draw_update",
    "recomputing",
    "room_for_activations",
    "update_that_fits",
]

case = calls_of(__name__)

_NUM = 400  # enough for every image and every time to come up
_LATER = (1, 1000)  # other updates: a neighbour, and one with the same last digits


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    case = {"seed": draw.randrange(10**6), "update": draw.randint(1, 1000)}
    num_times = draw.randint(5, 8)
    # a multiple: one stream of numbers that is drawn from twice then ties each time to an image
    num_images = draw.randint(2, 3) * num_times
    return [{**case, "num_images": num_images, "num_times": num_times}]


def _shape(num: int) -> tuple[int, int, int, int]:
    return num, 3, 4, 4


def _images(case: Case) -> Tensor:
    generator = torch.Generator().manual_seed(case["seed"])
    return torch.rand(_shape(case["num_images"]), generator=generator) * 2 - 1


def _scheduler(case: Case) -> Any:
    from diffusers import DDPMScheduler

    return DDPMScheduler(num_train_timesteps=case["num_times"])


def _moved(before: dict[str, Any]) -> list[str]:
    """Name the generators that everybody shares and that are not where they were."""
    now = random_states()
    is_kept = {
        "PyTorch": torch.equal(now["torch"], before["torch"]),
        "NumPy": all(map(np.array_equal, now["NumPy"], before["NumPy"])),
        "Python": now["Python"] == before["Python"],
    }
    return [name for name, kept in is_kept.items() if not kept]


def _run(answer: Callable[..., Any], case: Case) -> Result:
    images, scheduler = _images(case), _scheduler(case)

    def drawn(update: int) -> list[Any]:
        got = answer(images, _NUM, update, scheduler)
        if not isinstance(got, list | tuple) or len(got) != 3:
            raise CheckError("three tensors are wanted: noisy images, their times, their noise.")
        return list(got)

    torch.manual_seed(case["seed"])
    before = random_states()
    first = drawn(case["update"])
    moved = _moved(before)
    torch.manual_seed(case["seed"] + 1)
    later = [drawn(case["update"] + more) for more in _LATER]
    again = drawn(case["update"])
    set_random_states(before)
    return {"first": first, "moved": moved, "later": later, "again": again}


def _judge(case: Case, result: Result) -> None:
    later = result.get("later")
    if not isinstance(later, list) or len(later) != len(_LATER):
        raise CheckError(f"later: {len(_LATER)} updates are wanted, and something else came.")
    first, again, *others = (
        [t if t is not None else torch.empty(0) for t in tensors(three, 3, "what was drawn")]
        for three in (result.get("first"), result.get("again"), *later)
    )
    noisy, times, noise = first
    _judge_shapes(noisy, times, noise)
    moved = items(result.get("moved"), "moved")
    if moved:
        names = " and ".join(map(str, moved))
        raise CheckError(
            f"drawing moved the global random state of {names}: hand every random function a "
            "generator of your own."
        )
    if not all(map(_equal, first, again)):
        raise CheckError(
            f"update {case['update']} was drawn twice and came out differently: begin a new "
            "generator in each call, with a seed that the update's number decides."
        )
    _judge_times(case, times)
    for more, other in zip(_LATER, others, strict=True):
        if any(map(_equal, first, other)):
            raise CheckError(
                f"two updates drew the same, {more} apart: the seed must depend on the update's "
                "number, and each number needs its own."
            )
    _judge_noise(noise)
    _judge_pairs(case, _chosen(case, noisy, times, noise), times)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def _judge_shapes(noisy: Tensor, times: Tensor, noise: Tensor) -> None:
    if times.dtype != torch.int64 or times.shape != (_NUM,):
        raise CheckError(
            f"the times have the shape {tuple(times.shape)} and type {times.dtype}: one whole "
            f"number for each of the {_NUM} images is wanted, int64, in the second place."
        )
    for name, tensor in {"noisy images": noisy, "noise": noise}.items():
        if tensor.shape != _shape(_NUM):
            raise CheckError(
                f"the {name} have the shape {tuple(tensor.shape)}, and {_shape(_NUM)} is wanted."
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
    distinct = len(set(noise.flatten().tolist()))
    if distinct < 0.9 * noise.numel():
        raise CheckError(
            f"of {noise.numel():,} numbers of noise only {distinct:,} are different: draw one for "
            "each pixel, in each channel of each image."
        )
    spread, largest = float(noise.std()), float(noise.abs().max())
    if not (0.9 < spread < 1.1 and largest > 2.5 and abs(float(noise.mean())) < 0.1):
        raise CheckError(
            f"the noise has a deviation of {spread:.2f} and reaches {largest:.1f}: normal "
            "numbers of deviation 1 are wanted, torch.randn."
        )


def _chosen(case: Case, noisy: Tensor, times: Tensor, noise: Tensor) -> list[int]:
    """Find out which images were chosen, from what is left of them without the noise."""
    images, scheduler = _images(case), _scheduler(case)
    share = scheduler.alphas_cumprod[times][:, None, None, None]
    left = noisy - (1 - share).sqrt() * noise  # of the image, where all is right
    off = (left[:, None] - share.sqrt()[:, None] * images[None]).abs().amax((2, 3, 4))
    error, chosen = off.min(1)
    if not float(error.max()) <= 1e-4:  # nan is not
        raise CheckError(
            "the noisy images are not those that this scheduler makes of images, noise and times: "
            "scheduler.add_noise(images, noise, times), with the very noise that is returned."
        )
    return [int(row) for row in chosen]


def _judge_pairs(case: Case, rows: list[int], times: Tensor) -> None:
    num_images, possible = case["num_images"], case["num_times"]
    if len(set(rows)) < num_images:
        raise CheckError(
            f"of {num_images} images only {len(set(rows))} were ever chosen: "
            "draw the rows from all of them."
        )
    if len({(b - a) % num_images for a, b in pairwise(rows)}) == 1:
        raise CheckError("the images come in their order: draw which ones.")
    pairs = set(zip(rows, times.tolist(), strict=True))
    if len(pairs) < num_images * possible / 2:
        raise CheckError(
            f"an image comes with {len(pairs) / num_images:.0f} of {possible} times, always the "
            "same: does each draw begin a generator of the same seed? Draw one after the other "
            "from one."
        )


draw_update = Check(
    name="lab08.draw_update",
    exercise="8.1",
    passed="an update's number decides its images, times and noise, and nothing else does",
    cases=_cases,
    run=_run,
    judge=_judge,
)
