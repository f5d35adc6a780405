"""Lab 06: the solution's steps against whole batches, its ranks, and what its checks forbid."""

import copy

import pytest
import torch
from torch import nn

from solutions.answers import solved
from tutorial_lib.checks import CheckError, lab06
from tutorial_lib.checks.given import observe
from tutorial_lib.checks.lab06.given import models
from tutorial_lib.checks.vocabulary import expect
from tutorial_lib.instruments import ranks

LAB = solved("lab06")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


# several ranks against one process


@pytest.mark.parametrize("num_ranks", [1, 4])
def test_ranks_are_the_big_batch(num_ranks):
    generator = torch.Generator().manual_seed(5)
    windows = [models.token_window([2] * (1 + r % 3), generator) for r in range(num_ranks)]
    replicas = [models.tiny_gpt(0) for _ in range(num_ranks)]
    options = {"loss_sum": models.token_loss_sum, "count_terms": models.num_targets}

    def work(rank):
        model = nn.parallel.DistributedDataParallel(replicas[rank])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        return [LAB.rank_step(model, optimizer, windows[rank], **options) for _ in range(2)]

    losses, traffic = ranks.in_threads(work, num_ranks)
    alone = models.tiny_gpt(0)
    optimizer = torch.optim.AdamW(alone.parameters(), lr=1e-3)
    parts = [part for window in windows for part in window]
    batch = tuple(map(torch.cat, zip(*parts, strict=True)))
    wanted = [LAB.exact_step(alone, optimizer, batch, 1, **options) for _ in range(2)]
    size = sum(p.nbytes for p in alone.parameters())
    for rank in range(num_ranks):
        assert losses[rank] == pytest.approx(wanted, rel=1e-12)
        seen, expected = (observe.vector([*m.parameters()]) for m in (replicas[rank], alone))
        assert expect.relative_error(seen, expected) < 1e-12
        assert sum(n for n in traffic[rank].sizes() if n > 64) == 2 * size


# slips in words that another answer has, so that they cannot stand in solutions/answers


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
