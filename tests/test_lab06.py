"""Lab 06: the solution's steps against whole batches, its ranks, and what its checks forbid."""

import copy
import functools
import math

import pytest
import torch
from torch import nn
from wrong_answers import solved

from tutorial_lib import ranks
from tutorial_lib.checks import assert_same_training, expect, lab06, observe
from tutorial_lib.checks.core import Check, CheckError
from tutorial_lib.checks.lab06 import models

LAB = solved("lab06")
CHECKS = [value for value in vars(lab06).values() if isinstance(value, Check)]
each_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
each_model = pytest.mark.parametrize("name", models.TASKS)
each_optimizer = pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


# the claim itself: N micro-batches are the big batch


def trained(name, optimizer, num_steps, dtype=torch.float64, rows=10):
    task = models.TASKS[name](1, rows, dtype)
    made = models.make_optimizer(optimizer, task.model)
    options = {"loss_sum": task.loss_sum, "count_terms": task.count_terms}
    loss = LAB.exact_step(task.model, made, task.batch, num_steps, **options)
    return loss, observe.gradient_vector(task.model), observe.parameter_vector(task.model)


@each_model
@each_optimizer
@pytest.mark.parametrize("num_steps", [2, 3, 10])
def test_micro_batches_are_the_big_batch_in_float64(name, optimizer, num_steps):
    whole, parts = (trained(name, optimizer, n) for n in (1, num_steps))
    assert math.isclose(whole[0], parts[0], rel_tol=1e-12)
    assert expect.relative_error(parts[1], whole[1]) < 1e-12
    assert expect.relative_error(parts[2], whole[2]) < 1e-12


@each_model
@each_optimizer
def test_micro_batches_are_the_big_batch_within_rounding_in_float32(name, optimizer):
    task = models.TASKS[name](1, 10, torch.float32)
    options = {"loss_sum": task.loss_sum, "count_terms": task.count_terms}
    steps = [
        functools.partial(LAB.exact_step, batch=task.batch, num_steps=n, **options) for n in (1, 4)
    ]

    def make():
        model = models.TASKS[name](1, 10, torch.float32).model
        return model, models.make_optimizer(optimizer, model)

    assert_same_training(*steps, make=make)


def test_the_solutions_judge_agrees_with_the_courses():
    task = models.gpt_task(3, 9, torch.float64)
    options = {"loss_sum": task.loss_sum, "count_terms": task.count_terms}
    step = functools.partial(LAB.exact_step, batch=task.batch, **options)

    def slower(model, optimizer):
        optimizer.param_groups[0]["lr"] *= 0.5
        return step(model, optimizer, num_steps=1)

    make = functools.partial(models.make_optimizer, "SGD")

    def judge(a, b):
        return LAB.first_difference(a, b, task.model, lambda p: torch.optim.SGD(p, 0.1), 1e-12)

    one, four = (functools.partial(step, num_steps=n) for n in (1, 4))
    assert judge(one, four)[0] == "nothing"
    part, difference = judge(one, slower)
    assert part == "parameters"
    assert 0 < difference < 0.5
    assert make(task.model).param_groups[0]["lr"] == 0.1


# several ranks against one process


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_ranks_are_the_big_batch(num_ranks):
    generator = torch.Generator().manual_seed(5)
    windows = [models.token_window([2] * (1 + r % 3), generator) for r in range(num_ranks)]
    replicas = [models.tiny_gpt(0) for _ in range(num_ranks)]
    options = {"loss_sum": models.token_loss_sum}
    options["count_terms"] = lambda tokens, labels: models.num_targets(labels)

    def work(rank):
        model = nn.parallel.DistributedDataParallel(replicas[rank])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        return [LAB.rank_step(model, optimizer, windows[rank], **options) for _ in range(2)]

    losses, traffic = ranks.in_threads(work, num_ranks)
    alone = models.tiny_gpt(0)
    optimizer = torch.optim.AdamW(alone.parameters(), lr=1e-3)
    batch = models.whole([part for window in windows for part in window])
    wanted = [LAB.exact_step(alone, optimizer, batch, 1, **options) for _ in range(2)]
    size = sum(p.nbytes for p in alone.parameters())
    for rank in range(num_ranks):
        assert losses[rank] == pytest.approx(wanted, rel=1e-12)
        seen, expected = (observe.vector([*m.parameters()]) for m in (replicas[rank], alone))
        assert expect.relative_error(seen, expected) < 1e-12
        assert sum(n for n in traffic[rank].sizes() if n > 64) == 2 * size


# what the checks see and refuse


# slips in words that another answer has, so that they cannot stand in wrong_answers


def test_a_judge_that_keeps_grad_itself_is_refused():
    def keeps_grad(step_a, step_b, model, make_optimizer, tolerance):
        found, state = [], torch.get_rng_state()
        for step in (step_a, step_b):
            torch.set_rng_state(state)
            twin, seen = copy.deepcopy(model), []
            optimizer = make_optimizer(twin.parameters())
            optimizer.register_step_pre_hook(
                lambda *_, twin=twin, seen=seen: seen.extend(p.grad for p in twin.parameters())
            )
            loss = torch.tensor([step(twin, optimizer)], dtype=torch.float64)
            found.append([loss, LAB.vector(seen), LAB.vector(twin.parameters())])
        torch.set_rng_state(state)
        names = ("loss", "gradients", "parameters")
        differences = {n: LAB.relative(b, a) for n, a, b in zip(names, *found, strict=True)}
        beyond = [item for item in differences.items() if not item[1] <= tolerance]
        return beyond[0] if beyond else ("nothing", max(differences.values()))

    with pytest.raises(CheckError, match="copy them, for they are zeroed in place"):
        lab06.first_difference(keeps_grad)


@pytest.mark.parametrize("more", [-1, 1])
def test_a_window_of_another_length_is_named(more):
    def wrong_length(model, optimizer, micro_batches, num):
        return LAB.train_epoch(model, optimizer, micro_batches, num + more)

    with pytest.raises(CheckError, match=r"the first update has \d of the micro-batches in it"):
        lab06.train_epoch(wrong_length)


@pytest.mark.parametrize(("factor", "said"), [(1 + 3e-6, "1.000003 times"), (2, "2 times")])
def test_a_loss_is_wanted_within_float32(factor, said):
    expect.loss(2.5 * (1 + 3e-7), 2.5)
    with pytest.raises(CheckError, match=f"the loss returned is {said} that of"):
        expect.loss(2.5 * factor, 2.5)


@pytest.mark.parametrize("failure", ["nan", "raises"])
def test_the_solution_leaves_the_held_gradient_itself(failure):
    task = models.vit_task(0, 6, torch.float32)
    held = [torch.full_like(p, 7.0) for p in task.model.parameters()]
    for p, gradient in zip(task.model.parameters(), held, strict=True):
        p.grad = gradient

    def spoiled(model, *part):
        if failure == "raises":
            raise torch.OutOfMemoryError("no room")
        return task.loss_sum(model, *part) * math.nan

    optimizer = models.make_optimizer("SGD", task.model)
    with pytest.raises((ValueError, torch.OutOfMemoryError)) as caught:
        LAB.exact_step(
            task.model, optimizer, task.batch, 3, loss_sum=spoiled, count_terms=task.count_terms
        )
    assert "micro-batch 1 of 3" in str(caught.value) or "no room" in str(caught.value)
    assert all(p.grad is g for p, g in zip(task.model.parameters(), held, strict=True))
    assert all(bool((gradient == 7).all()) for gradient in held)
