"""One rank of many that are not there: what it holds can be predicted, and nothing is sent."""

import contextlib
from collections.abc import Iterator

import torch.distributed as dist

from tutorial_lib.instruments.private_torch import patches


@contextlib.contextmanager
def pretend(num_ranks: int) -> Iterator[None]:
    """Make this process the first rank of a group whose other ranks do not exist.

    DDP, `fully_shard` and tensor parallelism build their collectives on it, with real shapes. No
    collective moves a number, so values are wrong; bytes are right. For `memory.predict`:

        with ranks.pretend(8):
            report = memory.predict(make_step)

    Args:
        num_ranks: World size of the group, at least 1.

    Raises:
        ValueError: When `num_ranks` is below 1.
        RuntimeError: When this process is in a process group already.

    Source:
        PyTorch's `fake` backend. Unchecked: buffers that NCCL holds for itself.
    """
    if num_ranks < 1:
        raise ValueError(f"num_ranks (={num_ranks}) must be at least 1.")
    if dist.is_initialized():
        raise RuntimeError(
            f"this process is rank {dist.get_rank()} of a process group already: pretend outside "
            "it, or call torch.distributed.destroy_process_group() before."
        )
    dist.init_process_group("fake", store=patches.fake_store(), rank=0, world_size=num_ranks)
    try:
        with patches.with_ranks_on_the_fake_backend():
            yield
    finally:
        dist.destroy_process_group()
