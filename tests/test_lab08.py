"""Lab 08's functions against the real trainer, and what the notebook says against the numbers."""

import functools
import json
from functools import partial

import pytest
from torch.optim import AdamW

from solutions.answers import solved
from tutorial_lib import data
from tutorial_lib.checks import assert_same_training, lab08
from tutorial_lib.checks.lab08.ex8_5 import Plans
from tutorial_lib.checks.lab08.given import models, updates

LAB = functools.partial(solved, "lab08")  # loaded when a test asks
CASE = {"seed": 0}


def make():
    unet = models.make_unet(CASE)
    return unet, AdamW(unet.parameters(), lr=1e-3, fused=True)


@pytest.fixture
def drawn():
    scheduler = LAB().DDPMScheduler(num_train_timesteps=100)
    return LAB().draw_update(data.digits()[0], 16, 3, scheduler)


def plain_update(unet, optimizer, drawn):
    loss = models.backward(unet, drawn, len(drawn[0]))
    optimizer.step()
    optimizer.zero_grad()
    return loss


def frugal_update(unet, optimizer, drawn):
    with LAB().recomputing([unet.down_blocks[0], unet.up_blocks[0]]):
        return LAB().update_that_fits(unet, optimizer, drawn, 5)[0]


def test_the_whole_is_the_same_training(drawn):
    plain, frugal = (partial(step, drawn=drawn) for step in (plain_update, frugal_update))
    assert_same_training(plain, frugal, make=make, calls=3)


@pytest.mark.parametrize("seed", range(2))
def test_the_search_case_has_one_answer_and_no_shortcut(seed):
    first, *_, last = lab08.cheapest_fit.cases(seed)
    plans, refused = Plans(first), Plans(last)
    assert plans.is_tricky()
    assert plans.peak(plans.fitting[0]) == first["limit"]
    assert refused.least == last["limit"] + 1
    assert refused.least not in {refused.peak((1, c)) for c in ((), refused.blocks)}


@pytest.mark.parametrize(
    "case", lab08.update_that_fits.cases(0)[:3], ids=lambda case: str(case["fits"])
)
def test_the_caps_let_just_so_many_images_fit(case):
    limit = updates.limit_of(json.dumps(case))
    for size in updates.sizes_tried(case):
        assert (updates.peak_of(case, size) <= limit) == (size <= case["fits"])
