"""Lab 08: the search has one answer, and a cap lets just so many images fit."""

import json

import pytest

from tutorial_lib.checks import lab08
from tutorial_lib.checks.lab08.ex8_5 import Plans
from tutorial_lib.checks.lab08.given import updates


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
