"""Lab 04's answers against closed forms, a published package, the library's solver and torch."""

import itertools
import random
from dataclasses import replace

import pytest

from solutions.answers import solved
from tutorial_lib.checks.lab04 import chains
from tutorial_lib.checks.lab04.ex4_places import held
from tutorial_lib.instruments import planning

LAB = solved("lab04")
PAIRS = list(itertools.product(range(1, 61), range(1, 11)))


def drawn(rng, count):
    """A chain with all that the lab's prices know."""
    stages = [planning.Stage(**stage) for stage in chains.draw_stages(rng, count)]
    return [
        replace(s, handed_on_bytes=rng.choice([0, 4]), kept_temporary_bytes=rng.choice([0, 9]))
        for s in stages
    ]


def test_the_fewest_forwards_are_the_closed_form_and_those_of_checkpoint_schedules():
    assert [p for p in PAIRS if LAB.fewest_forwards(*p) != chains.binomial(*p)] == []
    schedules = pytest.importorskip("checkpoint_schedules")
    for stages, places in PAIRS[::7]:
        actions = schedules.MultistageCheckpointSchedule(stages, places, 0)
        theirs = sum(a.n1 - a.n0 for a in actions if isinstance(a, schedules.Forward))
        assert LAB.fewest_forwards(stages, places) == theirs


def test_every_revolve_tree_has_the_fewest_forwards_within_its_places():
    stage = planning.Stage(forward_seconds=1, backward_seconds=0, input_bytes=1, saved_bytes=1)
    for stages, places in PAIRS[::9]:
        tree = LAB.revolve_tree(stages, places)
        counts = planning.simulate([stage] * stages, tree).counts
        assert sum(counts) == chains.binomial(stages, places)
        kept, taken, _ = held(tree, stages)
        assert (kept, taken <= places) == (1, True)


def test_floor_and_fastest_tree_are_the_library_s():
    rng = random.Random(1)
    for _ in range(80):
        stages = drawn(rng, rng.randint(1, 9))
        floor = LAB.smallest_budget(stages)
        assert floor == planning.floor_bytes(stages)
        most = planning.simulate(stages, tuple(range(len(stages)))).peak_bytes
        budget = rng.randint(floor, max(floor, most))
        run = planning.simulate(stages, LAB.fastest_tree(stages, budget))
        assert run.peak_bytes <= budget
        assert run.seconds == pytest.approx(planning.solve(stages, budget_bytes=budget).seconds)
        with pytest.raises(ValueError, match=f"at least {floor} bytes"):
            LAB.fastest_tree(stages, floor - 1)
