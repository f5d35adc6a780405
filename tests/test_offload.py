"""Plans with a host, against every plan, a clock of the test's own, and arithmetic by hand."""

import contextlib
import functools
import itertools
import random
import time

import pytest
from test_plan import drawn, equal

from tutorial_lib.instruments import planning
from tutorial_lib.instruments.planning.chain.moves import Move
from tutorial_lib.instruments.segments.tree import Selective, leaves


@functools.cache
def flat_trees(first, count):
    """Every tree without a segment in a segment."""
    if first == count:
        return [()]
    kept = [(first, *rest) for rest in flat_trees(first + 1, count)]
    return kept + [
        (tuple(range(first, stop)), *rest)
        for stop in range(first + 1, count + 1)
        for rest in flat_trees(stop, count)
    ]


def in_its_ways(stages, tree):
    """The tree with each of its kept stages whole, and selective where the stage can be."""
    forms = [
        (item, Selective(item)) if isinstance(item, int) and stages[item].selective else (item,)
        for item in tree
    ]
    return itertools.product(*forms)


def seconds_of(plan, moves, speed):
    """The time of a step, by asking over and over what may begin next."""
    slots, count = plan.slots, len(plan.tree)
    work = [("f", n) for n in range(count)] + [("b", n) for n in reversed(range(count))]
    by_item = {move.item: move for move in moves}
    ended, engines = {}, {"out": 0.0, "in": 0.0}
    outs = sorted(by_item)
    ins = sorted(by_item, reverse=True)
    for place, (way, item) in enumerate(work):
        before = ended[work[place - 1]] if place else 0.0
        needs = [before]
        if way == "f":
            needs += [ended["out", k] for k in outs if by_item[k].leaves == item]
        else:
            for k in [k for k in ins if by_item[k].returns == item]:
                copying = slots.movable[k] / speed
                engines["in"] = max(engines["in"], before) + copying
                ended["in", k] = engines["in"]
            needs += [ended["in", item - 1]] if item - 1 in by_item else []
        lasts = slots.forward_seconds if way == "f" else slots.backward_seconds
        ended[way, item] = max(needs) + lasts[item]
        if way == "f" and item in by_item:
            engines["out"] = max(engines["out"], ended["f", item]) + slots.movable[item] / speed
            ended["out", item] = engines["out"]
    return ended["b", 0]


def peak_of(plan, moves):
    """The peak, event by event."""
    item_of = {stage: n for n, item in enumerate(plan.tree) for stage in leaves((item,))}
    held = []
    for event in plan.simulation.events:
        item, is_back = item_of[event.stage], event.kind != "forward"
        away = [
            plan.slots.movable[m.item]
            for m in moves
            if (item > m.returns if is_back else item >= m.leaves)
        ]
        held.append(event.held_bytes - sum(away))
    return max(held)


def schedules(plan, items):
    """Every way to let these items leave and return, copies in the order of the engines."""
    count = len(plan.tree)
    leave = [range(item + 2, count) for item in items]
    back = [range(item + 1, count - 1) for item in items]
    for leaving in itertools.product(*leave):
        for returning in itertools.product(*back):
            if list(returning) == sorted(returning):
                yield [Move(*each) for each in zip(items, leaving, returning, strict=True)]


def every_tree(stages, skips):
    """A plan for each tree without nested segments that runs no stage twice that must not."""
    for flat in flat_trees(0, len(stages)):
        for tree in in_its_ways(stages, flat):
            plan = planning.Plan(tuple(stages), tree, tuple(skips))
            runs = zip(plan.forward_executions, stages, strict=True)
            if all(count == 1 or stage.recomputable for count, stage in runs):
                yield plan


def best_of_all(stages, skips, host, budget, *, all_schedules=False):
    """The least seconds of all plans that fit, with `solve` for those that nest segments."""
    room = float("inf") if host.num_bytes is None else host.num_bytes
    best = float("inf")
    with contextlib.suppress(ValueError):
        best = planning.solve(stages, budget_bytes=budget, skips=skips).seconds
    for plan in sorted(every_tree(stages, skips), key=lambda plan: plan.simulation.seconds):
        if plan.simulation.seconds >= best:  # it may only wait besides
            return best
        movable = [item for item, size in enumerate(plan.slots.movable) if size]
        for count in range(len(movable) + 1):
            for items in itertools.combinations(movable, count):
                if all_schedules:
                    ways = schedules(plan, items)
                else:
                    ways = [plan.slots.schedule(items, budget)]
                for moves in ways:
                    if moves is None or sum(plan.slots.movable[n] for n in items) > room:
                        continue
                    if peak_of(plan, moves) <= budget:
                        best = min(best, seconds_of(plan, moves, host.bytes_per_second))
    return best


def drawn_case(rng, longest):
    stages, skips = drawn(rng, rng.randint(2, longest))
    total = sum(stage.saved_bytes for stage in stages)
    host = planning.Host(rng.choice([1, 4, 10, 100, 1e9]), rng.choice([None, None, total // 4]))
    return stages, skips, host, total


def misses(num_chains, longest, seed, **options):
    """Chains for which some plan beats the solver's, or the solver's isn't what it says."""
    rng, missed, with_moves = random.Random(seed), [], 0
    for _ in range(num_chains):
        stages, skips, host, total = drawn_case(rng, longest)
        budget = rng.randint(total // 5, total)
        best = best_of_all(stages, skips, host, budget, **options)
        try:
            found = planning.solve_with_host(stages, budget_bytes=budget, host=host, skips=skips)
        except ValueError:
            found = None
        if found is None:
            if best < float("inf"):
                missed.append((stages, skips, host, budget, best, None))
            continue
        with_moves += bool(found.moves)
        is_right = peak_of(found, found.moves) == found.peak_bytes <= budget
        if found.moves:
            again = seconds_of(found, found.moves, host.bytes_per_second)
            is_right &= abs(again - found.seconds) < 1e-9
        if not is_right or abs(found.seconds - best) > 1e-9:
            missed.append((stages, skips, host, budget, best, found))
    return missed, with_moves


def test_no_plan_beats_the_solver():
    missed, with_moves = misses(60, 6, seed=0)
    assert not missed
    assert with_moves >= 8


def test_no_schedule_beats_the_solvers():
    assert not misses(60, 5, seed=1, all_schedules=True)[0]


@pytest.mark.weekly
def test_no_plan_beats_the_solver_on_2000_chains():
    assert not misses(2_000, 9, seed=62)[0]
    assert not misses(1_000, 6, seed=63, all_schedules=True)[0]


def chain(count, seed):
    """A chain of unequal stages, each with temporaries; or of equal ones."""
    rng = random.Random(seed)
    draw = rng.uniform if seed else lambda low, _: low
    return [
        planning.Stage(
            forward_seconds=draw(1, 2),
            backward_seconds=draw(2, 4),
            input_bytes=int(draw(1e6, 2e6)),
            saved_bytes=int(draw(10e6, 25e6)),
            backward_temporary_bytes=int(draw(1e6, 2e6)),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("share", "relative"), [(0.15, 0.1), (0.15, 0.5), (0.5, 0.1), (0.5, 2)])
@pytest.mark.parametrize("count", [200, pytest.param(1_000, marks=pytest.mark.weekly)])
def test_a_long_chains_plan_is_near_the_bound(count, seed, share, relative):
    """The link copies that share of all saved bytes while the forward computes."""
    stages = chain(count, seed)
    total = sum(stage.saved_bytes for stage in stages)
    forward = sum(stage.forward_seconds for stage in stages)
    host, began = planning.Host(total * relative / forward), time.process_time()
    found = planning.solve_with_host(stages, budget_bytes=int(share * total), host=host)
    assert time.process_time() - began < 15
    assert found.least_seconds <= found.seconds < 1.02 * found.least_seconds
    assert peak_of(found, found.moves) == found.peak_bytes <= share * total


def test_a_step_worked_out_by_hand():
    """Five equal stages of 10 bytes: forward 1 s, backward 2 s, 4 bytes/s. Two of them move."""
    stages = tuple(equal(5, ratio=10))
    moves = (Move(0, 3, 2), Move(1, 4, 3))
    plan = planning.Plan(stages, (0, 1, 2, 3, 4), moves=moves, bytes_per_second=4)
    assert [stage.forward_seconds for stage in stages] == [1] * 5
    assert [stage.backward_seconds for stage in stages] == [2] * 5
    spans = {(span.kind, span.item): (span.start, span.end) for span in plan.spans}
    assert (spans["out", 0], spans["out", 1]) == ((1, 3.5), (3.5, 6))
    assert spans["forward", 3] == (3.5, 4.5)  # waits for the first copy
    assert spans["forward", 4] == (6, 7)  # and for the second
    assert spans["in", 1] == (9, 11.5)  # as the backward of stage 3 begins
    assert spans["in", 0] == (11.5, 14)
    assert spans["backward", 2] == (11.5, 13.5)  # needs what stage 1 left
    assert spans["backward", 1] == (14, 16)
    assert (plan.seconds, plan.host_bytes) == (18, 20)
    assert plan.peak_bytes == peak_of(plan, moves) < plan.simulation.peak_bytes
    assert "on the host" in str(plan)


@pytest.mark.parametrize("numbers", [(0,), (-1,), (float("nan"),), (1, -1)])
def test_a_host_without_a_link_is_refused(numbers):
    with pytest.raises(ValueError, match=r"above 0 bytes/s"):
        planning.Host(*numbers)


def test_a_budget_that_no_host_helps_is_refused_with_what_would_do():
    stages = chain(12, seed=3)
    for host in (planning.Host(1e18), planning.Host(1e18, 0), planning.Host(1e18, takes_all=True)):
        with pytest.raises(ValueError, match=r"with a host too. They need \d+ bytes") as refused:
            planning.solve_with_host(stages, budget_bytes=1_000, host=host)
        enough = int(str(refused.value).split("They need ")[1].split()[0])
        found = planning.solve_with_host(stages, budget_bytes=enough, host=host)
        assert peak_of(found, found.moves) == found.peak_bytes <= enough
        assert enough <= sum(stage.saved_bytes for stage in stages)


def test_a_host_may_take_all_that_may_move():
    stages = chain(12, seed=4)
    kept = planning.Plan(tuple(stages), tuple(range(12)))
    movable = [size for size in kept.slots.movable if size]
    for room, moved in ((None, len(movable)), (sum(movable[:4]), 4), (0, 0)):
        host = planning.Host(1e9, room, takes_all=True)
        found = planning.solve_with_host(stages, budget_bytes=kept.peak_bytes, host=host)
        assert found.tree == kept.tree
        assert len(found.moves) >= moved
        assert found.host_bytes <= (sum(movable) if room is None else room)
        assert seconds_of(found, found.moves, 1e9) == pytest.approx(found.seconds)


def test_a_host_without_memory_gives_the_plan_without_a_host():
    stages = chain(12, seed=5)
    budget = int(0.6 * sum(stage.saved_bytes for stage in stages))
    found = planning.solve_with_host(stages, budget_bytes=budget, host=planning.Host(1e18, 0))
    assert found.tree == planning.solve(stages, budget_bytes=budget).tree
    assert not found.moves
