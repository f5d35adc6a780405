"""Every check of every lab: it is found under its name, and its cases are plain and drawn."""

import json

import pytest

from tutorial_lib import checks
from tutorial_lib.checks.core import Check

LABS = {name: getattr(checks, name) for name in checks.__all__ if name.startswith("lab")}
CHECKS = {
    f"{lab}.{name}": value
    for lab, module in LABS.items()
    for name, value in vars(module).items()
    if isinstance(value, Check)
}
SEEDS = range(8)
each_check = pytest.mark.parametrize("name", CHECKS)


def test_every_lab_has_checks():
    assert {name.partition(".")[0] for name in CHECKS} == set(LABS) != set()


@each_check
def test_a_check_is_found_under_its_name(name):
    assert CHECKS[name].name == name


@each_check
def test_cases_are_plain_and_drawn_from_the_seed(name):
    drawn = [CHECKS[name].cases(seed) for seed in SEEDS]
    assert json.loads(json.dumps(drawn)) == drawn == [CHECKS[name].cases(seed) for seed in SEEDS]
    assert any(cases != drawn[0] for cases in drawn)
