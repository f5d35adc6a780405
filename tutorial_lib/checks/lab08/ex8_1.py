"""The check of 8.1: what an update draws."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.given import answered
from tutorial_lib.checks.same_training.state import random_states, set_random_states
from tutorial_lib.checks.vocabulary import expect, read

_NUM = 400  # enough for every image and every time to come up
_SHAPE = (_NUM, 3, 4, 4)
_LATER = (1, 1000)  # other updates: a neighbour, and one with the same last digits


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    case = {"seed": draw.randrange(10**6), "update": draw.randint(1, 1000)}
    num_times = draw.randint(5, 8)
    # a multiple: one stream of numbers that is drawn from twice then ties each time to an image
    num_images = draw.randint(2, 3) * num_times
    return [{**case, "num_images": num_images, "num_times": num_times}]


def _images(case: Case) -> Tensor:
    generator = torch.Generator().manual_seed(case["seed"])
    return torch.rand(case["num_images"], *_SHAPE[1:], generator=generator) * 2 - 1


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
        try:
            got = answer(images, _NUM, update, scheduler)
        except IndexError as error:
            raise CheckError(
                f"there are {case['num_images']} images and {case['num_times']} times here, and "
                f"one was asked for that is not there ({error}): len(images) and "
                "scheduler.config.num_train_timesteps say how many."
            ) from error
        except NotImplementedError:
            raise
        except RuntimeError as error:
            raise CheckError(
                f"{_NUM} images are drawn from {case['num_images']} here, so some come more than "
                f"once, and {error} came: torch.randint repeats, randperm and a slice do not."
            ) from error
        return answered.several(got, 3, "noisy images, their times, their noise")

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
    later = answered.several(result.get("later"), len(_LATER), "what later updates drew")
    all_drawn = [result.get("first"), result.get("again"), *later]
    first, again, *others = (
        [t if t is not None else torch.empty(0) for t in read.tensors(three, 3, "what was drawn")]
        for three in all_drawn
    )
    noisy, times, noise = first
    _judge_shapes(noisy, times, noise)
    moved, update = read.items(result.get("moved"), "moved"), case["update"]
    faults = {
        f"drawing moved the global random state of {' and '.join(map(str, moved))}: hand every "
        "random function a generator of your own.": bool(moved),
        f"update {update} was drawn twice and came out differently: begin a new generator in each "
        "call, with a seed that the update's number decides.": (
            not all(map(expect.same_bits, first, again))
        ),
    }
    expect.no_fault(faults)
    _judge_times(case, times)
    faults = {
        f"two updates drew the same, {more} apart: the seed must depend on the update's number, "
        "and each number needs its own.": any(map(expect.same_bits, first, other))
        for more, other in zip(_LATER, others, strict=True)
    }
    expect.no_fault(faults)
    _judge_noise(noise)
    _judge_pairs(case, _chosen(case, noisy, times, noise), times)


def _judge_shapes(noisy: Tensor, times: Tensor, noise: Tensor) -> None:
    wrong_times = times.dtype != torch.int64 or times.shape != (_NUM,)
    faults = {
        f"the times have the shape {tuple(times.shape)} and type {times.dtype}: one whole number "
        f"for each of the {_NUM} images is wanted, int64, in the second place.": wrong_times
    }
    for name, tensor in {"noisy images": noisy, "noise": noise}.items():
        shape = tuple(tensor.shape)
        faults[f"the {name} have the shape {shape}, and {_SHAPE} is wanted."] = shape != _SHAPE
    expect.no_fault(faults)


def _judge_times(case: Case, times: Tensor) -> None:
    seen, wanted = set(times.tolist()), set(range(case["num_times"]))
    faults = {
        "all images have one time: draw one for each image.": len(seen) == 1,
        f"the times run from {min(seen)} to {max(seen)}, and this scheduler has those from 0 to "
        f"{max(wanted)}: scheduler.config.num_train_timesteps says how many.": seen != wanted,
    }
    expect.no_fault(faults)


def _judge_noise(noise: Tensor) -> None:
    num, distinct = noise.numel(), len(set(noise.flatten().tolist()))
    spread, largest = float(noise.std()), float(noise.abs().max())
    normal = 0.9 < spread < 1.1 and largest > 2.5 and abs(float(noise.mean())) < 0.1
    faults = {
        "all images got one and the same noise: draw it in their shape.": (
            torch.equal(noise[0], noise[1])
        ),
        f"of {num:,} numbers of noise only {distinct:,} are different: draw one for each pixel, in "
        "each channel of each image.": distinct < 0.9 * num,
        f"the noise has a deviation of {spread:.2f} and reaches {largest:.1f}: normal numbers of "
        "deviation 1 are wanted, torch.randn.": not normal,
    }
    expect.no_fault(faults)


def _chosen(case: Case, noisy: Tensor, times: Tensor, noise: Tensor) -> list[int]:
    """Find out which images were chosen, from what is left of them without the noise."""
    images, scheduler = _images(case), _scheduler(case)
    share = scheduler.alphas_cumprod[times][:, None, None, None]
    left = noisy - (1 - share).sqrt() * noise  # of the image, where all is right
    differences = (left[:, None] - share.sqrt()[:, None] * images[None]).abs().amax((2, 3, 4))
    error, chosen = differences.min(1)
    if not float(error.max()) <= 1e-4:  # nan is not
        raise CheckError(
            "the noisy images are not those that this scheduler makes of images, noise and times: "
            "scheduler.add_noise(images, noise, times), with the very noise that is returned."
        )
    return [int(row) for row in chosen]


def _judge_pairs(case: Case, rows: list[int], times: Tensor) -> None:
    num_images, possible, num_chosen = case["num_images"], case["num_times"], len(set(rows))
    pairs = len(set(zip(rows, times.tolist(), strict=True)))
    faults = {
        f"of {num_images} images only {num_chosen} were ever chosen: draw the rows from all of "
        "them.": num_chosen < num_images,
        "the images come in their order: draw which ones.": (
            len({(b - a) % num_images for a, b in pairwise(rows)}) == 1
        ),
        f"an image comes with {pairs / num_images:.0f} of {possible} times, always the same: does "
        "each draw begin a generator of the same seed? Draw one after the other from one.": (
            pairs < num_images * possible / 2
        ),
    }
    expect.no_fault(faults)


draw_update = Check(
    "lab08.draw_update",
    "8.1",
    "an update's number decides its images, times and noise, and nothing else does",
    _cases,
    _run,
    _judge,
)
