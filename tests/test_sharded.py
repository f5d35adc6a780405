"""Sharded tensors are counted as what a rank holds: DDP, FSDP2 and tensor parallel.

`test_chapter13.py` holds the counts of FSDP2 and tensor parallel against PyTorch's own tracker.
"""

import pytest

from tutorial_lib.instruments import ranks


def stepping(model, optimizer, x):
    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def gpt2_loss(num_ranks, shard=None):
    import torch

    from tutorial_lib.instruments.training import Recipe

    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_head": 4, "n_embd": 64, "vocab_size": 97}
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    recipe = Recipe("gpt2", 2, 32, overrides=sizes | dropouts, ranks=num_ranks, shard=shard)
    loss, model = recipe.make_loss()
    value = loss()
    value.backward()
    return value.item(), model.transformer.wte.weight.grad.norm().item()


@pytest.mark.weekly
def test_gpt2_divided_over_two_ranks_is_the_same_function():
    alone = pytest.approx(gpt2_loss(1), rel=1e-5)
    with ranks.start(2) as two:
        assert [alone == of_rank for of_rank in two.run(gpt2_loss, 2, "tp")] == [True, True]


# ---- ranks that are not there ----


def llama_sized(shard):
    """One rank of four: four layers of 512, sharded in one of three ways."""
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import parallel

    def make_step():
        model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)])
        mesh = init_device_mesh("cpu", (4,))
        if shard == "fsdp":
            for layer in (*model, model):
                fully_shard(layer, mesh=mesh)
        elif shard == "tp":
            ways = (parallel.ColwiseParallel(), parallel.RowwiseParallel())
            plan = {str(place): ways[place % 2] for place in range(4)}
            parallel.parallelize_module(model, mesh, plan)
        else:
            model = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        return stepping(model, optimizer, torch.randn(8, 512)), model, optimizer

    return make_step


@pytest.fixture(params=["ddp", "fsdp", "tp"])
def one_of_four(request):
    with ranks.pretend(4):
        yield request.param, llama_sized(request.param)


def test_one_rank_of_four_is_predicted_as_counted_and_as_the_formula_says(one_of_four):
    import torch

    from tutorial_lib import memory

    shard, make_step = one_of_four
    step, model, optimizer = make_step()
    counted = memory.measure(step, model=model, optimizer=optimizer, warmup=2)
    if shard == "tp":  # every second layer is given a rank's part of the columns
        with memory.capped(2**40, model=model, optimizer=optimizer) as cap:
            held = cap.held_bytes
            step()
        assert held == pytest.approx(counted.baseline_bytes, rel=0.01)
        assert cap.peak_bytes == pytest.approx(counted.peak_bytes, rel=0.01)
        saved = memory.saved(lambda: model(torch.randn(8, 512)), params_of=model)
        assert saved.num_bytes == 2 * 4 * 8 * (512 + 512 // 4)
    predicted = memory.predict(make_step, kernels="cpu")
    assert predicted.at_peak == counted.at_peak
    assert predicted.phases == pytest.approx(counted.phases, rel=0.01)
    weights = 4 * 4 * (512 * 512 + 512)
    share = {"ddp": weights, "fsdp": weights / 4, "tp": weights / 4}[shard]
    buckets = weights if shard == "ddp" else 0  # a second copy of the gradients
    assert predicted.baseline_bytes == pytest.approx(4 * share + buckets, rel=0.02)
    assert predicted.at_peak["gradients"] <= 1.02 * (share + buckets)


def test_pretending_refuses_what_cannot_be_and_leaves_nothing():
    import torch.distributed as dist

    with pytest.raises(ValueError, match=r"num_ranks \(=0\) must be at least 1"):
        ranks.pretend(0).__enter__()
    with ranks.pretend(2):
        assert (dist.get_rank(), dist.get_world_size()) == (0, 2)
        with pytest.raises(RuntimeError, match="rank 0 of a process group already"):
            ranks.pretend(2).__enter__()
    assert not dist.is_initialized()
