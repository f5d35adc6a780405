"""One rank of many that are not there: what it holds can be predicted, and nothing is sent."""

import contextlib
from collections.abc import Iterator

import torch.distributed as dist

from tutorial_lib.instruments.private_torch import patches


@contextlib.contextmanager
def pretend(num_ranks: int, *, rank: int = 0) -> Iterator[None]:
    """Make this process one rank of a group whose other ranks do not exist.

    DDP, `fully_shard` and tensor parallelism build their collectives on it, with real shapes. No
    collective moves a number, so values are wrong; bytes are right. For `memory.predict`:

        with ranks.pretend(8):
            report = memory.predict(make_step)

    Args:
        num_ranks: World size of the group, at least 1.
        rank: Which of the ranks this process is.

    Raises:
        ValueError: When there is no such rank.
        RuntimeError: When this process is in a process group already.

    Source:
        PyTorch's `fake` backend. Unchecked: buffers that NCCL holds for itself.
    """
    if not 0 <= rank < num_ranks:
        raise ValueError(f"rank (={rank}) must be between 0 and num_ranks - 1 (={num_ranks - 1}).")
    if dist.is_initialized():
        raise RuntimeError(
            f"this process is rank {dist.get_rank()} of a process group already: pretend outside "
            "it, or call torch.distributed.destroy_process_group() before."
        )
    store = patches.fake_store()
    dist.init_process_group("fake", store=store, rank=rank, world_size=num_ranks)
    try:
        with patches.with_ddp_on_the_fake_backend():
            yield
    finally:
        dist.destroy_process_group()
