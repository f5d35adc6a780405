"""The check of 8.1: the draws of an update."""

from itertools import pairwise

import torch
from torch import Tensor

from tutorial_lib.checks.given import answered
from tutorial_lib.checks.given.half import ANEW
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, check, expect, read

from .given import updates

_EARLIER: dict[int, list[Tensor]] = {}  # what the case before has drawn, by its seed
_PASSED = "images, times and noise depend on the update's number, and on nothing else"


def _cases(draw: Draw) -> Cases:
    case = {"seed": draw.randrange(10**6), "update": draw.randint(1, 1000)}
    num_times = draw.randint(5, 8)
    # a multiple: one stream of numbers that is drawn from twice then ties each time to an image
    num_images = draw.randint(2, 3) * num_times
    case |= {"num_images": num_images, "num_times": num_times, "state": draw.randrange(10**6)}
    yield case
    yield {**case, "state": case["state"] + 1, ANEW: draw.randrange(10**6)}


@check(updates.draw_update, _PASSED, _cases)
def draw_update(case: Case, result: Result) -> None:
    later = answered.several(result["later"], len(updates.LATER), "what later updates drew")
    first, again, *others = (
        [t if t is not None else torch.empty(0) for t in read.tensors(three, 3, "what was drawn")]
        for three in (result["first"], result["again"], *later)
    )
    noisy, times, noise = first
    _judge_shapes(noisy, times, noise)
    moved, failed = (read.items(result[name], name) for name in ("moved", "failed"))
    earlier = _EARLIER.get(case["seed"], first) if ANEW in case else first
    _EARLIER[case["seed"]], update = first, case["update"]
    found, wanted = set(times.tolist()), set(range(case["num_times"]))
    faults = {
        f"drawing moved the global random state of {' and '.join(map(str, moved))}: pass your "
        "own generator to every random function.": bool(moved),
        f"{updates.NOT_DRAWN} images were asked for, the draw failed, and the random state "
        f"of {' and '.join(map(str, failed))} stayed moved: with your own generators there is "
        "nothing to put back.": bool(failed),
        f"update {update} was drawn twice and came out differently: make a new generator in each "
        "call, seeded by the update's number.": not all(map(expect.same_bits, first, again)),
        f"update {update} was drawn again, from another global random state and, by a grader, in "
        "another process, and came out differently: use the update's number alone as your seed.": (
            not all(map(expect.same_bits, first, earlier))
        ),
        "all images have the same time: draw one for each image.": len(found) == 1,
        f"the times run from {min(found)} to {max(found)}, but this scheduler's run from 0 to "
        f"{max(wanted)}: scheduler.config.num_train_timesteps says how many.": found != wanted,
    }
    for more, other in zip(updates.LATER, others, strict=True):
        same = f"two updates drew the same, {more} apart: the seed must depend on the update's "
        same += "number, and each number needs its own."
        faults[same] = any(map(expect.same_bits, first, other))
    expect.no_fault(faults)
    _judge_noise(noise)
    _judge_pairs(case, _chosen(case, noisy, times, noise), times)


def _judge_shapes(noisy: Tensor, times: Tensor, noise: Tensor) -> None:
    expect.fact(
        times.dtype == torch.int64 and times.shape == (updates.NUM,),
        f"the times have the shape {tuple(times.shape)} and type {times.dtype}: return one "
        f"int64 for each of the {updates.NUM} images, in the second place.",
    )
    for name, tensor in {"noisy images": noisy, "noise": noise}.items():
        shape, wanted = tuple(tensor.shape), updates.SHAPE
        expect.fact(shape == wanted, f"the {name} have the shape {shape} instead of {wanted}.")


def _judge_noise(noise: Tensor) -> None:
    num, distinct = noise.numel(), len(set(noise.flatten().tolist()))
    spread, largest = float(noise.std()), float(noise.abs().max())
    normal = 0.9 < spread < 1.1 and largest > 2.5 and abs(float(noise.mean())) < 0.1
    is_one = torch.equal(noise[0], noise[1])
    faults = {
        "all images got the same noise: draw it in their shape.": is_one,
        f"of {num:,} numbers of noise only {distinct:,} are different: draw one for each pixel, in "
        "each channel of each image.": distinct < 0.9 * num,
        f"the noise has a deviation of {spread:.2f} and reaches {largest:.1f}: draw it with "
        "torch.randn, whose deviation is 1.": not normal,
    }
    expect.no_fault(faults)


def _chosen(case: Case, noisy: Tensor, times: Tensor, noise: Tensor) -> list[int]:
    """Find the chosen images, from the rest of them without the noise."""
    images, scheduler = updates.make_images(case)
    share = scheduler.alphas_cumprod[times][:, None, None, None]
    left = noisy - (1 - share).sqrt() * noise  # of the image, where all is right
    differences = left[:, None] - share.sqrt()[:, None] * images[None]
    error, chosen = differences.abs().amax((2, 3, 4)).min(1)
    expect.fact(
        float(error.max()) <= 1e-4,  # nan is not
        "the noisy images are not those that this scheduler makes of images, noise and times: "
        "scheduler.add_noise(images, noise, times), with the same noise that you return.",
    )
    return [int(row) for row in chosen]


def _judge_pairs(case: Case, rows: list[int], times: Tensor) -> None:
    num_images, possible, num_chosen = case["num_images"], case["num_times"], len(set(rows))
    pairs = len(set(zip(rows, times.tolist(), strict=True)))
    steps = {(b - a) % num_images for a, b in pairwise(rows)}
    faults = {
        f"of {num_images} images only {num_chosen} were ever chosen: draw the rows from all of "
        "them.": num_chosen < num_images,
        "the images come in their order: draw their rows at random.": len(steps) == 1,
        f"an image comes with {pairs / num_images:.0f} of {possible} times, always the same: does "
        "each draw start a generator with the same seed? Make all draws from one generator.": (
            pairs < num_images * possible / 2
        ),
    }
    expect.no_fault(faults)
