"""The halves that run 8.1, 8.2 and 8.6: an update's draws, in pieces, and under a cap."""

import contextlib
import itertools
import json
import random
from functools import cache
from typing import Any

import numpy as np
import torch
from diffusers import DDPMScheduler
from torch import Tensor, nn
from torch.optim import SGD

from tutorial_lib.checks.given import Answer, Case, Result, answered, exam, observe, run_half
from tutorial_lib.checks.given.forbid import own_code
from tutorial_lib.checks.given.surroundings import watched
from tutorial_lib.checks.given.values import CheckError
from tutorial_lib.checks.same_training.state import random_states, set_random_states
from tutorial_lib.instruments.cap import capped

from . import models

NUM = 400  # enough for every image and every time to come up
SHAPE = (NUM, 3, 4, 4)
NOT_DRAWN = -1  # so many images cannot be drawn
LATER = (1, 1000)  # other updates: a neighbour, and one with the same last digits
_LEANER = 2**15  # bytes that an answer to 8.2 may need less; gradients have five times as many
_IMAGES_OF_EXAM = 3072  # 336 MiB at the peak at once, 21 in sixteen micro-batches
_WHOLE = "All images at once do not fit. What does your loop keep until its end?"
_OWN_LOOP = own_code(("tutorial_lib.checks.lab08.given.models:backward",))


def make_images(case: Case) -> tuple[Tensor, Any]:
    """Make the images that are there to draw from, and a scheduler of few times."""
    generator = torch.Generator().manual_seed(case["seed"])
    images = torch.rand(case["num_images"], *SHAPE[1:], generator=generator) * 2 - 1
    return images, DDPMScheduler(num_train_timesteps=case["num_times"])


def _moved(before: dict[str, Any]) -> list[str]:
    """Name the generators that everybody shares and that are not where they were."""
    now = random_states()
    is_kept = {
        "PyTorch": torch.equal(now["torch"], before["torch"]),
        "NumPy": all(map(np.array_equal, now["NumPy"], before["NumPy"])),
        "Python": now["Python"] == before["Python"],
    }
    return [name for name, kept in is_kept.items() if not kept]


@run_half("8.1")
def draw_update(answer: Answer, case: Case) -> Result:
    images, scheduler = make_images(case)

    def drawn(update: int) -> list[Any]:
        try:
            got = answer(images, NUM, update, scheduler)
        except IndexError as error:
            raise CheckError(
                f"there are {case['num_images']} images and {case['num_times']} times here, but "
                f"you asked for one that isn't there ({error}): len(images) and "
                "scheduler.config.num_train_timesteps say how many."
            ) from error
        except NotImplementedError:
            raise
        except RuntimeError as error:
            raise CheckError(
                f"{NUM} images are drawn from {case['num_images']} here, and this came: {error}. "
                "Are rows, times and noise all num long, and is the noise shaped (num, "
                "*images.shape[1:])? (torch.randint repeats; randperm and a slice do not.)"
            ) from error
        return answered.several(got, 3, "noisy images, their times, their noise")

    outside = random_states()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(case["state"])
    before = random_states()
    first = drawn(case["update"])
    moved = _moved(before)
    torch.manual_seed(case["state"] + 1)
    later = [drawn(case["update"] + more) for more in LATER]
    again, before_failure = drawn(case["update"]), random_states()
    with contextlib.suppress(Exception):
        answer(images, NOT_DRAWN, case["update"], scheduler)
    failed = _moved(before_failure)
    set_random_states(outside)
    return {"first": first, "moved": moved, "later": later, "again": again, "failed": failed}


def _exam(answer: Answer, case: Case) -> Result:
    large = {**case, "levels": 1, "layers": 2}
    unet, drawn = models.make_unet(large), models.make_drawn(large, _IMAGES_OF_EXAM)
    answer(unet, drawn, _IMAGES_OF_EXAM // 16)
    return {"gradients": [parameter.grad for parameter in unet.parameters()]}


@run_half("8.2", forbidden=[_OWN_LOOP], exam=exam.of(_exam, _WHOLE))
def backward_in_pieces(answer: Answer, case: Case) -> Result:
    unet, drawn = models.make_unet(case), models.make_drawn(case, case["num"])
    observe.fill_gradients(unet)
    with observe.rows_seen(unet) as rows:
        loss = answer(unet, drawn, case["micro_batch"])
    seen = {"loss": loss, "gradient": observe.gradient_vector(unet), "rows": rows}
    peak, _ = observe.peak_above(lambda: answer(unet, drawn, case["micro_batch"]), unet)
    return {**seen, "peak": peak}


def make_training(case: Case) -> tuple[nn.Module, SGD, models.Drawn]:
    """Build a training with its state there, after one update."""
    unet, drawn = models.make_unet(case), models.make_drawn(case, 16)
    optimizer = SGD(unet.parameters(), lr=0.01, momentum=0.9)
    models.backward(unet, drawn, 8)
    optimizer.step()
    optimizer.zero_grad()
    if case.get("left"):
        observe.fill_gradients(unet)
    torch.manual_seed(case["seed"] + 1)
    return unet, optimizer, drawn


def peak_of(case: Case, micro_batch: int) -> int:
    """Return the peak of an update."""
    unet, optimizer, drawn = make_training(case)
    optimizer.zero_grad()
    with capped(2**40, model=unet, optimizer=optimizer) as cap:
        models.backward(unet, drawn, micro_batch)
        optimizer.step()
    return cap.peak_bytes


def sizes_tried(case: Case) -> list[int]:
    """List the micro-batches that are tried, the one that fits included where one does."""
    sizes = [int(case["begin"])]
    while sizes[-1] > max(1, case["fits"]):
        sizes.append(max(1, sizes[-1] // 2))
    return sizes


@cache
def limit_of(case_text: str) -> int:
    """Return a cap under which the last attempt to fail fails late, with gradients in `.grad`."""
    case = json.loads(case_text)
    failing = [size for size in sizes_tried(case) if size > case["fits"]]
    return peak_of(case, failing[-1]) - _LEANER if failing else 2 * peak_of(case, case["begin"])


def state_of(unet: nn.Module, optimizer: SGD) -> list[Tensor]:
    """Copy parameters and momenta."""
    momenta = [optimizer.state[p]["momentum_buffer"] for p in unet.parameters()]
    return [t.detach().clone() for t in (*unet.parameters(), *momenta)]


class _OtherError(RuntimeError):
    pass


@run_half("8.6")
def update_that_fits(answer: Answer, case: Case) -> Result:
    limit, forwards, steps = limit_of(json.dumps(case)), itertools.count(1), list[int]()
    unet, optimizer, drawn = make_training(case)

    def fail_in_second_forward(*_: Any) -> None:
        if next(forwards) == 2:
            raise _OtherError("an operation got sizes that do not match")

    def fail_with_one_parameter_moved(*_: Any) -> None:
        steps.append(1)
        with torch.no_grad():
            optimizer.param_groups[0]["params"][0].mul_(0.9)
        raise torch.OutOfMemoryError("the optimizer's temporaries do not fit")

    if case["kind"] == "other error":
        unet.register_forward_pre_hook(fail_in_second_forward)
    if case["kind"] == "torn":
        optimizer.register_step_pre_hook(fail_with_one_parameter_moved)
    seen: dict[str, Any] = {"said": ""}
    with (
        watched(unet, optimizer=optimizer) as changed,
        observe.rows_seen(unet) as rows,
        capped(limit, model=unet, optimizer=optimizer),
    ):
        try:
            got = answer(unet, optimizer, drawn, case["begin"])
            seen["loss"], seen["micro_batch"] = answered.several(
                got, 2, "the loss and the micro-batch"
            )
        except (torch.OutOfMemoryError, _OtherError) as error:
            is_other = isinstance(error, _OtherError)
            seen["said"] = f"{'_OtherError' if is_other else 'OutOfMemoryError'}: {error}"
    seen |= {"rows": rows, "steps": len(steps), "changed": changed}
    seen |= {"state": state_of(unet, optimizer), "random_state": torch.get_rng_state()}
    return {**seen, "gradients_left": any(p.grad is not None for p in unet.parameters())}
