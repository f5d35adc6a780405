"""The solver against all plans there are, against published schedules and against closed forms."""

import functools
import itertools
import random
from dataclasses import replace
from math import comb

import pytest

from tutorial_lib.instruments import planning
from tutorial_lib.instruments.planning.chain.costs import Costs
from tutorial_lib.instruments.planning.chain.exact import best_ways
from tutorial_lib.instruments.planning.chain.floor import Floor
from tutorial_lib.instruments.planning.chain.nested import NestedTable, parts_to_solve
from tutorial_lib.instruments.segments.tree import Selective


def equal(count, ratio=1, boundary=1):
    """Equal stages, whose saved bytes are `ratio` boundaries."""
    stage = planning.Stage(
        forward_seconds=1, backward_seconds=2, input_bytes=boundary, saved_bytes=ratio * boundary
    )
    return [stage] * count


def drawn(rng, count):
    """A chain with nothing equal, temporaries, a skip, and a stage that must not run twice."""
    seconds = [rng.randint(1, 9) for _ in range(count)]
    stages = [
        planning.Stage(
            forward_seconds=forward,
            early_stop_seconds=rng.choice([0, 0, 0.25, 1]) * forward,
            backward_seconds=rng.randint(1, 18),
            input_bytes=rng.randint(0, 9),
            saved_bytes=rng.randint(10, 40),
            forward_temporary_bytes=rng.randint(0, 12),
            backward_temporary_bytes=rng.randint(0, 12),
            handed_on_bytes=rng.choice([0, 0, 4]),
            gradient_bytes=rng.choice([0, 0, 3]),
            waiting_bytes=rng.choice([0, 0, 7]),
            kept_temporary_bytes=rng.choice([0, 0, 8]),
            stopped_temporary_bytes=rng.choice([None, 0, 3]),
            recomputable=rng.random() < 0.9,
        )
        for forward in seconds
    ]
    for index in rng.sample(range(1, count), rng.randrange(count)):
        part = rng.randint(0, stages[index].input_bytes)
        stages[index] = replace(stages[index], released_bytes=part)
    for index in rng.sample(range(count), rng.choice([0, 1, 2])):
        stages[index] = replace(stages[index], selective=selective_form(rng, stages[index]))
    skips = []
    if count > 2 and rng.random() < 0.5:
        source = rng.randrange(count - 1)
        is_boundary = rng.random() < 0.5
        after = stages[source + 1]
        most = after.input_bytes - after.released_bytes if is_boundary else 5
        target = rng.randrange(source + 1, count)
        size, waiting, is_saved = rng.randint(0, most), rng.randint(0, 9), rng.random() < 0.7
        skips = [planning.Skip(source, target, size, is_boundary, waiting, is_saved)]
    return stages, skips


def selective_form(rng, stage):
    """The same stage, some of its bytes given for time."""
    return replace(
        stage,
        saved_bytes=rng.randint(9, stage.saved_bytes),
        backward_temporary_bytes=stage.backward_temporary_bytes + rng.randint(0, 30),
        backward_seconds=stage.backward_seconds + rng.choice([0, 0.5, 2]),
    )


@functools.cache
def items(first, stop):
    """Every way to have some stages as one item of a tree: a number, or a segment."""
    alone = [first] if stop == first + 1 else []
    return alone + list(sequences(first, stop))


@functools.cache
def sequences(first, stop):
    """Every way to have some stages as items in a row; a segment around a segment alone is none."""
    found = [(first,)] if stop == first + 1 else []
    for cut in range(first + 1, stop):
        for head in items(first, cut):
            found += [(head, *tail) for tail in sequences(cut, stop)]
            found += [(head, segment) for segment in sequences(cut, stop)]
    return list(dict.fromkeys(found))


def all_trees(count):
    return [*sequences(0, count), *((segment,) for segment in sequences(0, count))]


def some_selective(stages, tree):
    """A tree with each choice of the stages outside segments that may be kept selectively."""
    forms = [
        [item, Selective(item)] if isinstance(item, int) and stages[item].selective else [item]
        for item in tree
    ]
    return itertools.product(*forms)


def priced(stages, skips):
    """Peak and time of every plan that runs no stage twice that must not."""
    trees = itertools.chain.from_iterable(
        some_selective(stages, tree) for tree in all_trees(len(stages))
    )
    for tree in trees:
        run = planning.simulate(stages, tree, skips)
        pairs = zip(run.counts, stages, strict=True)
        if all(count == 1 or stage.recomputable for count, stage in pairs):
            yield run.peak_bytes, run.seconds


def misses(num_chains, longest, seed):
    """Compare the solver with all plans, at every budget at which the best time changes or might.

    Returns:
        Pairs of a chain and a budget that were compared, and those where the solver was beaten or
        went over the budget.
    """
    rng, pairs, missed = random.Random(seed), 0, []
    for _ in range(num_chains):
        stages, skips = drawn(rng, rng.randint(2, longest))
        known = sorted(set(priced(stages, skips)))
        for budget in sorted({peak for peak, _ in known}):
            pairs += 1
            best = min(seconds for peak, seconds in known if peak <= budget)
            found = planning.solve(stages, budget_bytes=budget, skips=skips)
            if found.peak_bytes > budget or found.seconds > best + 1e-9:
                missed.append((stages, skips, budget))
    return pairs, missed


def test_no_plan_beats_the_solver():
    pairs, missed = misses(num_chains=45, longest=4, seed=1)
    assert pairs > 200
    assert missed == []


@pytest.mark.weekly
def test_no_plan_beats_the_solver_on_3000_pairs():
    pairs, missed = misses(num_chains=360, longest=5, seed=2)
    more, missed_too = misses(num_chains=10, longest=6, seed=3)
    assert pairs + more > 3000
    assert missed + missed_too == []


def test_the_tables_for_long_chains_agree_with_the_exact_solver_on_short_ones():
    rng = random.Random(5)
    for _ in range(25):
        stages, skips = drawn(rng, rng.randint(2, 8))
        costs = Costs.of(stages, skips)
        best = best_ways(costs)
        assert Floor(costs).num_bytes == best[0].needs
        plain = sum(stage.forward_seconds + stage.backward_seconds for stage in stages)
        for choice in best:
            table = NestedTable(costs, choice.needs, num_slots=choice.needs)  # a slot is a byte
            run = planning.simulate(stages, table.read(table.levels()[-1]), skips)
            assert run.peak_bytes <= choice.needs + stages[0].input_bytes
            assert run.seconds == pytest.approx(plain + choice.extra)


def test_a_budget_below_the_floor_is_refused_by_name():
    for stages in (equal(5, 3), equal(40, 3)):
        floor = Floor(Costs.of(stages, ())).num_bytes + 1
        assert planning.solve(stages, budget_bytes=floor).peak_bytes == floor
        with pytest.raises(ValueError, match=f"less than {floor} bytes"):
            planning.solve(stages, budget_bytes=floor - 1)


def test_the_input_of_a_plan_is_looked_at():
    with pytest.raises(ValueError, match="no stage"):
        planning.solve([], budget_bytes=1)
    with pytest.raises(ValueError, match=r"saved_bytes \(=-1\)"):
        planning.Stage(forward_seconds=1, backward_seconds=1, input_bytes=1, saved_bytes=-1)
    with pytest.raises(ValueError, match=r"early_stop_seconds \(=4\) is a part of"):
        replace(equal(1)[0], early_stop_seconds=4)
    with pytest.raises(ValueError, match="skip leads from stage 2 to stage 1"):
        planning.solve(equal(3), budget_bytes=9, skips=[planning.Skip(2, 1, 1)])
    with pytest.raises(ValueError, match="once and in order"):
        planning.Plan(tuple(equal(3)), (0, (2, 1)))


# Boundaries, saved bytes and the gradient that comes in, in units of a boundary.
@pytest.mark.parametrize(
    ("tree", "peak", "forwards"),
    [
        (tuple(range(12)), 1 + 12 * 17 + 1, 12),
        ((*tuple((stage,) for stage in range(11)), 11), 12 + 17 + 1, 23),
        (((0, 1, 2, 3, 4, 5), 6, 7, 8, 9, 10, 11), 2 + 6 * 17 + 1, 18),
        # in the inner segment's turn: the input, its own, 6 and 7's outputs are gone by then
        ((((0, 1), 2, 3), 4, 5, 6, 7, 8, 9, 10, 11), 2 + 8 * 17 + 1, 12 + 4 + 2),
    ],
)
def test_the_simulator_on_plans_worked_out_by_hand(tree, peak, forwards):
    run = planning.simulate(equal(12, 17), tree)
    assert (run.peak_bytes, sum(run.counts)) == (peak, forwards)
    assert run.seconds == forwards + 2 * 12


def test_the_simulator_tells_what_is_held_when():
    stages = [
        planning.Stage(
            forward_seconds=1,
            backward_seconds=2,
            input_bytes=10,
            saved_bytes=50,
            forward_temporary_bytes=3,
            backward_temporary_bytes=7,
            handed_on_bytes=10,
            gradient_bytes=1,
        )
    ] * 3
    run = planning.simulate(stages, ((0,), 1, 2), [planning.Skip(0, 2, 4)])
    seen = [(event.kind, event.stage, event.held_bytes) for event in run.events]
    assert seen == [
        ("forward", 0, 10 + 10 + 3),
        ("forward", 1, 10 + 10 + 50),
        ("forward", 2, 10 + 10 + 50 + 50),
        ("backward", 2, 10 + 10 + 50 + 50 + 10 - 10 + 7),
        # the skip's gradient waits, and the parameters of stage 2 have theirs
        ("backward", 1, 10 + 10 + 50 + 10 - 10 + 7 + 4 + 1),
        ("recompute", 0, 10 + 50 + 10 + 4 + 2),
        ("backward", 0, 10 + 50 + 10 - 10 + 7 + 4 + 2),
    ]


def revolve_forwards(length, slots):
    """Forward executions of Revolve, Griewank and Walther (2000), with as many slots."""
    times = next(t for t in range(length) if comb(slots + t, slots) >= length)
    return length + (times * length - comb(slots + times, slots + 1) if times else 0)


def one_taped_at_a_time(length, slots):
    """A chain and a budget that are Revolve's: stored inputs, and room for one stage's tape."""
    tape = slots + 3
    stage = planning.Stage(forward_seconds=1, backward_seconds=1, input_bytes=1, saved_bytes=tape)
    # the taped stage has its input and the gradient of its output besides
    return [stage] * length, slots + tape + 2


@pytest.mark.parametrize("length", [1, 2, 7, 12, 33, 48])
def test_revolves_binomials_are_reached(length):
    schedules = pytest.importorskip("checkpoint_schedules")
    for slots in range(1, 21):
        stages, budget = one_taped_at_a_time(length, slots)
        found = planning.solve(stages, budget_bytes=budget)
        actions = schedules.MultistageCheckpointSchedule(length, slots, 0)
        published = sum(a.n1 - a.n0 for a in actions if isinstance(a, schedules.Forward))
        assert sum(found.forward_executions) == revolve_forwards(length, slots) == published
        assert found.peak_bytes <= budget


def test_a_long_chain_of_equals_is_solved_below_a_single_recomputation():
    found = planning.solve(equal(400), budget_bytes=20)
    assert max(found.forward_executions) > 2
    assert found.peak_bytes == 20
    assert parts_to_solve(Costs.of(equal(400), ())) == 400**2


def test_a_plan_says_what_it_does():
    names = tuple("abcdef")
    found = planning.Plan(tuple(equal(6, 3, 1024)), ((0, 1), ((2,), 3), 4, 5), (), names, 14 * 1024)
    assert str(found).splitlines() == [
        "6 stages: peak 10.0 KiB (budget 14.0 KiB), 23.0 s (+27.8%), 11 forwards",
        "  0-1       segment, recomputed          drops  6.00 KiB  a to b",
        "  2-3       segment, recomputed          drops  6.00 KiB  c to d",
        "    2         segment, recomputed        drops  3.00 KiB  c",
        "    3         kept                       holds  3.00 KiB  d",
        "  4-5       kept                         holds  6.00 KiB  e to f",
    ]
    assert found.forward_executions == (2, 2, 3, 2, 1, 1)


# PyTorch stops a recomputation at the last tensor that backward needs.
def test_an_early_stop_makes_short_segments_cheaper():
    stage = planning.Stage(
        forward_seconds=3, early_stop_seconds=1, backward_seconds=6, input_bytes=1, saved_bytes=9
    )
    by_one = planning.Plan((stage,) * 4, ((0,), (1,), (2,), (3,)))
    by_two = planning.Plan((stage,) * 4, ((0, 1), (2, 3)))
    kept = planning.Plan((stage,) * 4, (0, 1, 2, 3))
    assert (kept.seconds, by_two.seconds, by_one.seconds) == (36, 36 + 10, 36 + 8)
    inside = planning.Plan((stage,) * 4, ((0, (1,)), 2, 3))  # 0 again, then 1 again, in a segment
    assert inside.seconds == 36 + 3 + 3 + 2


# A selective stage keeps less, and its backward holds what it makes again.
def test_a_stage_may_keep_the_results_of_its_matmuls_only():
    stage = planning.Stage(forward_seconds=3, backward_seconds=6, input_bytes=1, saved_bytes=9)
    form = replace(stage, saved_bytes=4, backward_temporary_bytes=5, backward_seconds=7)
    stages = [replace(stage, selective=form)] * 12
    found = planning.solve(stages, budget_bytes=1 + 12 * 4 + 5 + 1)
    assert found.peak_bytes == 55
    assert found.seconds == 11 * 10 + 9  # the last one is kept whole for free
    assert all(isinstance(leaf, Selective) for leaf in found.tree[:-1])
    assert "0-10      matmuls kept" in str(found)
    with pytest.raises(ValueError, match="Stage 1 cannot be kept selectively"):
        planning.Plan(tuple(stages), ((0, Selective(1)), *range(2, 12)))


@pytest.mark.parametrize(("more", "parts"), [(1e-16, 39), (1e-11, 210)])
def test_equal_stages_are_solved_once_whatever_their_seconds_last_digits(monkeypatch, more, parts):
    tables, solve = [], NestedTable.__init__

    def noted(table, *asked):
        solve(table, *asked)
        tables.append(table)

    monkeypatch.setattr(NestedTable, "__init__", noted)
    (one,) = equal(1)
    stages = [replace(one, forward_seconds=1e-3 + more * number) for number in range(20)]
    planning.solve(stages, budget_bytes=10)
    assert [len(table.rows) for table in tables] == [parts]
