"""Ranks as threads and as processes: the same results, counted traffic, and no hanging."""

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tutorial_lib.instruments import ranks
from tutorial_lib.instruments.ranks.threads import LeftAloneError

ROOT = Path(__file__).resolve().parent.parent


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def step(model, rank, num=3):
    """One window of DDP: gradients, and what was sent beside them."""
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(num, 5, 4, generator=generator, dtype=torch.float64)
    parallel = DistributedDataParallel(model)
    for place in range(num):
        is_last = place == num - 1
        with contextlib.nullcontext() if is_last else parallel.no_sync():
            (parallel(x[place]).square().mean() / num).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def in_process():
    with ranks.traffic() as seen:
        gradient = step(net(), dist.get_rank())
    print("done")
    return gradient, seen.calls


def test_threads_average_as_one_process_would():
    models = [net() for _ in range(3)]
    found, traffic = ranks.in_threads(lambda rank: step(models[rank], rank), 3)
    alone = []
    for rank in range(3):
        model = net()
        x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)
        for part in x:
            (model(part).square().mean() / 3).backward()
        alone.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    wanted = torch.stack(alone).mean(0)
    assert all(torch.allclose(gradient, wanted, rtol=1e-12) for gradient in found)
    assert [of_rank.sizes() for of_rank in traffic] == [[wanted.nbytes]] * 3
    assert not dist.is_initialized()


def test_threads_have_the_usual_collectives():
    def work(rank):
        mine = torch.tensor([rank + 1.0])
        found = [(dist.get_rank(), dist.get_world_size())]
        for operation in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
            tensor = mine.clone()
            dist.all_reduce(tensor, operation)
            found.append(tensor.item())
        everything = [torch.zeros(1) for _ in range(2)]
        dist.all_gather(everything, mine)
        in_one = torch.zeros(2)
        getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(in_one, mine)
        assert in_one.tolist() == torch.cat(everything).tolist()
        summed = mine.clone()
        dist.reduce(summed, dst=1)
        dist.broadcast(mine, src=1)
        dist.barrier()
        return found, in_one.tolist(), summed.item(), mine.item()

    found, traffic = ranks.in_threads(work, 2)
    for rank in range(2):
        assert found[rank] == ([(rank, 2), 3.0, 1.5, 2.0], [1.0, 2.0], [1.0, 3.0][rank], 2.0)
    assert traffic[0].calls == traffic[1].calls
    assert traffic[0].sizes("all_gather") == [8, 8]  # two ranks bring 4 bytes each


@pytest.mark.parametrize(
    ("leaves", "said"),
    [
        (lambda rank: None, "rank 0 waits in all_reduce, and rank 1 has come to its end"),
        (lambda rank: dist.barrier(), "calls all_reduce while rank 1 calls barrier"),
        (lambda rank: dist.all_reduce(torch.zeros(3)), "with different shapes"),
    ],
)
def test_threads_that_would_hang_say_so(leaves, said):
    def work(rank):
        if rank == 1:
            return leaves(rank)
        return dist.all_reduce(torch.zeros(1))

    with pytest.raises(LeftAloneError) as caught:
        ranks.in_threads(work, 2)
    assert said in str(caught.value) or "calls barrier while rank 0 calls" in str(caught.value)
    assert not dist.is_initialized()


def test_far_more_ranks_than_cores_are_refused_before_any_starts():
    with pytest.raises(ValueError, match=r"num_ranks \(=9999\) is too many for \d+ cores"):
        ranks.start(9999)


def fail_in_one():
    if dist.get_rank() == 1:
        raise KeyError("in rank one")
    dist.barrier()


@pytest.mark.slow
def test_processes_do_as_threads_do_and_survive_nothing(monkeypatch):
    taken = socket.create_server(("127.0.0.1", 0))  # a port in use: ranks meet in a file
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
    models = [net() for _ in range(2)]
    wanted, traffic = ranks.in_threads(lambda rank: step(models[rank], rank), 2)
    with ranks.start(2) as two:
        found = two.run(in_process)
        for rank, (gradient, calls) in enumerate(found):
            assert torch.allclose(gradient, wanted[rank], rtol=1e-12)
            sizes = [n for name, n in calls if name == "all_reduce"]
            assert sizes == traffic[rank].sizes()
        outside = 3
        assert two.run(lambda x: x + outside + dist.get_rank(), 1) == [4, 5]
        processes = list(two._processes)
        with pytest.raises(RuntimeError, match="rank 1 raised KeyError: 'in rank one'"):
            two.run(fail_in_one)
        with pytest.raises(RuntimeError, match="have been stopped"):
            two.run(in_process)
    assert not [process for process in processes if process.is_alive()]
    taken.close()


def share_everything():
    whole, mine = torch.zeros(6), torch.ones(2)
    with ranks.traffic() as seen:
        dist.all_gather_into_tensor(whole, mine)
        dist.reduce_scatter_tensor(mine, whole)
    return seen.calls


def test_a_ring_sends_twice_as_much_for_an_all_reduce_as_for_a_gather():
    calls = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "send", "recv", "barrier"]
    sent = [ranks.Traffic([(name, 400)]).ring_bytes(4) for name in calls]
    assert sent == [600, 300, 300, 300, 400, 0, 0]
    assert ranks.Traffic([("all_reduce", 400)]).ring_bytes(1) == 0


def wait_for_each_other():
    if dist.get_rank() == 1:
        dist.recv(torch.zeros(1), src=0)
    dist.all_reduce(torch.zeros(1))


@pytest.mark.weekly
@pytest.mark.slow
def test_ranks_that_wait_for_each_other_are_ended_and_named():
    with ranks.start(3) as three:
        processes = list(three._processes)
        assert three.run(functools.partial(pow, 2), 3) == [8, 8, 8]
        # the bytes of a collective are those of the whole tensor, whoever has which part of it
        assert three.run(share_everything) == [[("all_gather", 24), ("reduce_scatter", 24)]] * 3
        with pytest.raises(TimeoutError) as caught:
            three.run(wait_for_each_other, seconds=2)
    said = str(caught.value)
    assert "rank 0 waits in all_reduce (line " in said
    assert "rank 1 waits in recv (line " in said
    assert "of wait_for_each_other)" in said
    assert not [process for process in processes if process.is_alive()]


def die_in_one(how):
    if dist.get_rank() == 1:
        os.kill(os.getpid(), how)
    dist.all_reduce(torch.zeros(1))


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no signals")
def test_of_the_one_that_dies_the_signal_and_the_last_words_are_said():
    with ranks.start(2) as two:
        processes = list(two._processes)
        with pytest.raises(RuntimeError) as caught:
            two.run(die_in_one, signal.SIGSEGV)
    said = str(caught.value)
    assert said.startswith("the process of rank 1 ended by SIGSEGV")  # not: rank 0 lost it
    assert "in die_in_one" in said
    assert not [process for process in processes if process.is_alive()]


@pytest.mark.weekly
@pytest.mark.slow
def test_processes_end_with_the_one_that_started_them(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import json, os\n"
        "from tutorial_lib.instruments import ranks\n"
        "if __name__ == '__main__':\n"
        "    two = ranks.start(2)\n"
        "    print(json.dumps(two.run(os.getpid)), flush=True)\n"
        "    os._exit(1)\n"  # no clean end
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=ROOT, check=False
    )
    psutil = pytest.importorskip("psutil")
    numbers = json.loads(done.stdout)
    assert len(numbers) == 2
    _, alive = psutil.wait_procs(
        [psutil.Process(n) for n in numbers if psutil.pid_exists(n)], timeout=10
    )
    assert not alive
