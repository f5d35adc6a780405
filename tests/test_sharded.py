"""Sharded tensors are counted as what a rank holds.

`test_chapter13.py` holds the counts of FSDP2 and tensor parallel against PyTorch's own tracker, and
`test_foreign.py` the predictions of these and of DDP against the counts.
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


def test_tensor_parallel_is_saved_and_capped_by_what_a_rank_holds():
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import parallel

    from tutorial_lib import memory

    with ranks.pretend(4):
        model, x = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512)), torch.randn(8, 512)
        plan = {"0": parallel.ColwiseParallel(), "1": parallel.RowwiseParallel()}
        parallel.parallelize_module(model, init_device_mesh("cpu", (4,)), plan)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        step = stepping(model, optimizer, x)
        counted = memory.measure(step, model=model, optimizer=optimizer, warmup=2)
        with memory.capped(2**40, model=model, optimizer=optimizer) as cap:
            held = cap.held_bytes
            step()
        assert held == pytest.approx(counted.baseline_bytes - x.nbytes, rel=0.001)
        assert cap.peak_bytes == pytest.approx(counted.peak_bytes, rel=0.01)
        # the second layer is given a rank's part of the columns
        saved = memory.saved(lambda: model(x), params_of=model)
        assert saved.num_bytes == x.nbytes + x.nbytes // 4


def test_pretending_refuses_what_cannot_be_and_leaves_nothing():
    import torch.distributed as dist

    with pytest.raises(ValueError, match=r"num_ranks \(=0\) must be at least 1"):
        ranks.pretend(0).__enter__()
    with ranks.pretend(2):
        assert (dist.get_rank(), dist.get_world_size()) == (0, 2)
        with pytest.raises(RuntimeError, match="rank 0 of a process group already"):
            ranks.pretend(2).__enter__()
    assert not dist.is_initialized()
