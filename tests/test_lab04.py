"""Lab 04's answers against closed forms, a published package, the library's solver and torch."""

import itertools
import random
from dataclasses import replace

import pytest
import torch
from torch import nn
from wrong_answers import solved

from tutorial_lib import plan
from tutorial_lib.checks.lab04 import models
from tutorial_lib.checks.lab04.ex4_4 import held

LAB = solved("lab04")
PAIRS = list(itertools.product(range(1, 61), range(1, 11)))


def drawn(rng, count):
    """A chain with all that the lab's prices know."""
    stages = [plan.Stage(**stage) for stage in models.draw_stages(rng, count)]
    return [
        replace(s, handed_on_bytes=rng.choice([0, 4]), kept_temporary_bytes=rng.choice([0, 9]))
        for s in stages
    ]


def test_the_fewest_forwards_are_the_closed_form_everywhere():
    wrong = [p for p in PAIRS if LAB.fewest_forwards(*p) != models.binomial(*p)]
    assert wrong == []


def test_the_fewest_forwards_are_those_of_checkpoint_schedules():
    schedules = pytest.importorskip("checkpoint_schedules")
    for stages, places in PAIRS[::7]:
        actions = schedules.MultistageCheckpointSchedule(stages, places, 0)
        theirs = sum(a.n1 - a.n0 for a in actions if isinstance(a, schedules.Forward))
        assert LAB.fewest_forwards(stages, places) == theirs


def test_every_revolve_tree_has_the_fewest_forwards_within_its_places():
    stage = plan.Stage(forward_seconds=1, backward_seconds=0, input_bytes=1, saved_bytes=1)
    for stages, places in PAIRS[::9]:
        tree = LAB.revolve_tree(stages, places)
        counts = plan.simulate([stage] * stages, tree).counts
        assert sum(counts) == models.binomial(stages, places)
        kept, taken = held(tree, stages)
        assert (kept, taken <= places) == (1, True)


def test_segments_cost_what_the_simulator_says():
    rng = random.Random(0)
    for _ in range(150):
        stages = drawn(rng, rng.randint(1, 12))
        length = rng.randint(1, len(stages))
        run = plan.simulate(stages, models.in_segments(len(stages), length))
        assert LAB.segments_cost(stages, length) == (run.peak_bytes, run.seconds)


def test_floor_and_fastest_tree_are_the_library_s():
    rng = random.Random(1)
    for _ in range(80):
        stages = drawn(rng, rng.randint(1, 9))
        floor = LAB.smallest_budget(stages)
        assert floor == plan.floor_bytes(stages)
        most = plan.simulate(stages, tuple(range(len(stages)))).peak_bytes
        budget = rng.randint(floor, max(floor, most))
        run = plan.simulate(stages, LAB.fastest_tree(stages, budget))
        assert run.peak_bytes <= budget
        assert run.seconds == pytest.approx(plan.solve(stages, budget_bytes=budget).seconds)
        with pytest.raises(ValueError, match=f"at least {floor} bytes"):
            LAB.fastest_tree(stages, floor - 1)


def test_a_short_chain_s_fastest_tree_is_beaten_by_no_tree_of_single_recomputation():
    rng = random.Random(2)
    for _ in range(10):
        stages = drawn(rng, 5)
        budget = LAB.smallest_budget(stages) + rng.randint(0, 60)
        seconds = plan.simulate(stages, LAB.fastest_tree(stages, budget)).seconds
        for tree in models.single_trees(5):
            run = plan.simulate(stages, tree)
            assert run.peak_bytes > budget or run.seconds >= seconds


def gradients(run, layers, x):
    layers.zero_grad()
    torch.manual_seed(1)
    run(x).backward()
    return [p.grad.clone() for p in layers.parameters()]


@pytest.mark.parametrize("places", [1, 2, 4])
def test_executed_schedules_have_the_same_gradients_and_the_planned_runs(places):
    case = {"seed": 3, "width": 8, "middles": [32] * 9, "rows": 64}
    layers, x = models.make_layers(case), models.make_rows(case)
    tree = LAB.revolve_tree(9, places)
    runs = []
    for layer in layers:
        layer.register_forward_pre_hook(lambda *_: runs.append(1))
    seen = gradients(lambda x: LAB.run_tree(layers, tree, x), layers, x)
    assert len(runs) == models.binomial(9, places)
    assert all(map(torch.equal, seen, gradients(layers, layers, x)))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 1.0])
def test_the_counted_peak_of_an_executed_plan_is_the_predicted_one(share):
    torch.manual_seed(0)
    blocks = [LAB.block(32, wide, 32) for wide in (256, 256, 192, 192, 128, 128, 96)]
    layers, x = nn.Sequential(*blocks, LAB.MeanSquare()), torch.randn(512, 32)
    stages = LAB.chain_of(layers, x)
    floor = LAB.smallest_budget(stages)
    most = plan.simulate(stages, tuple(range(len(stages)))).peak_bytes
    tree = LAB.fastest_tree(stages, int(floor + share * (most - floor)))
    planned = plan.simulate(stages, tree).peak_bytes
    assert LAB.counted_peak(layers, tree, x) == pytest.approx(planned, rel=0.03)
