"""Ranks as threads of one process, with a process group in Python that joins them.

Nothing is sent: whoever calls a collective waits until all ranks have called the same one, then
reads what the others brought. A real backend hangs when one rank leaves a collective out; here
every rank that waits in vain learns who left it alone.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from tutorial_lib.instruments.ranks import Traffic

Result = TypeVar("Result")

_BACKEND = "tutorial_threads"
_SECONDS = 30.0  # for one rank to wait for another: a loop without end is no deadlock
_here = threading.local()  # .rank, of the thread that asks


class LeftAloneError(RuntimeError):
    """A rank waits for a collective that another one never begins."""


class _Rendezvous:
    """Where all ranks come together once for each collective."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.changed = threading.Condition()
        self.calls = [0] * num_ranks
        self.rounds: dict[int, dict[int, tuple[str, Any]]] = {}  # by number: what each rank brings
        self.gone: set[int] = set()

    def leave(self, rank: int) -> None:
        with self.changed:
            self.gone.add(rank)
            self.changed.notify_all()

    def exchange(self, name: str, value: Any) -> list[Any]:
        """Bring a value, wait for the others, and read all values by rank.

        Raises:
            LeftAloneError: When another rank has ended, or calls another collective.
        """
        rank, give_up = _here.rank, time.monotonic() + _SECONDS
        with self.changed:
            brought = self.rounds.setdefault(self.calls[rank], {})
            brought[rank] = (name, value)
            self.calls[rank] += 1
            self.changed.notify_all()
            while len(brought) < self.num_ranks:
                if self.gone:
                    raise LeftAloneError(
                        f"rank {rank} waits in {name}, and rank {min(self.gone)} has come to its "
                        "end without it: real ranks would hang here. Does every rank make the "
                        "same collectives, whatever its data?"
                    )
                if not self.changed.wait(max(0.0, give_up - time.monotonic())):
                    raise LeftAloneError(
                        f"rank {rank} has waited {_SECONDS:.0f} s in {name} for the others."
                    )
            self.rounds.pop(self.calls[rank] - 1, None)
        for other, (theirs, _) in sorted(brought.items()):
            if theirs != name:
                raise LeftAloneError(
                    f"rank {rank} calls {name} while rank {other} calls {theirs}: all ranks must "
                    "make the same collectives in the same order."
                )
        return [brought[other][1] for other in range(self.num_ranks)]


class _Done(dist.Work):
    """A collective that has ended before it is waited for."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.future: torch.futures.Future[Any] = torch.futures.Future()
        self.future.set_result(value)

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        return self.future


class _ThreadGroup(dist.ProcessGroup):
    """The group of all ranks, one object for all threads; which rank it is depends on who asks."""

    def __init__(self, num_ranks: int) -> None:
        super().__init__(0, num_ranks)  # type: ignore[call-arg]
        self.num_ranks = num_ranks
        self.rendezvous = _Rendezvous(num_ranks)
        self.traffic = [Traffic() for _ in range(num_ranks)]

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return _BACKEND

    def rank(self) -> int:
        return int(_here.rank)

    def size(self) -> int:
        return self.num_ranks

    def allreduce(self, tensors: Any, opts: Any = None) -> _Done:  # type: ignore[override]
        mine = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        operation = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
        for tensor, all_of_it in self._exchange_all("all_reduce", mine):
            tensor.copy_(_reduced(torch.stack(all_of_it), operation))
        return _Done(mine)

    def broadcast(self, tensors: Any, opts: Any) -> _Done:  # type: ignore[override]
        for tensor, all_of_it in self._exchange_all("broadcast", tensors):
            tensor.copy_(all_of_it[opts.rootRank])
        return _Done(list(tensors))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> _Done:
        for parts, (_, all_of_it) in zip(
            outputs, self._exchange_all("all_gather", inputs), strict=True
        ):
            for part, theirs in zip(parts, all_of_it, strict=True):
                part.copy_(theirs)
        return _Done(outputs)

    def reduce(self, tensors: Any, opts: Any) -> _Done:  # type: ignore[override]
        for tensor, all_of_it in self._exchange_all("reduce", tensors):
            if _here.rank == opts.rootRank:
                tensor.copy_(_reduced(torch.stack(all_of_it), opts.reduceOp))
        return _Done(list(tensors))

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> _Done:
        [(_, all_of_it)] = self._exchange_all("all_gather", [input])
        output.copy_(torch.cat([theirs.flatten() for theirs in all_of_it]).view_as(output))
        return _Done([output])

    _allgather_base = all_gather_single  # its name before PyTorch 2.13

    def barrier(self, opts: Any = None) -> _Done:
        self._exchange_all("barrier", [])
        return _Done([])

    def _refuse(self, *args: Any, **kwargs: Any) -> _Done:
        raise RuntimeError(
            "ranks in threads know all_reduce, reduce, broadcast, all_gather and barrier, and no "
            "other collective: try one of these."
        )

    send = recv = gather = scatter = reduce_scatter = alltoall = _refuse
    reduce_scatter_single = _reduce_scatter_base = all_to_all_single = alltoall_base = _refuse

    def _exchange_all(self, name: str, tensors: Any) -> list[tuple[Tensor, list[Tensor]]]:
        """Return each tensor with what every rank brought in its place."""
        parts = self.num_ranks if name == "all_gather" else 1
        num_bytes = parts * sum(tensor.nbytes for tensor in tensors)
        self.traffic[_here.rank].calls.append((name, num_bytes))
        copies = [tensor.detach().clone() for tensor in tensors]
        brought = self.rendezvous.exchange(name, copies)
        shapes = [[tuple(tensor.shape) for tensor in theirs] for theirs in brought]
        if any(theirs != shapes[0] for theirs in shapes):
            raise LeftAloneError(f"the ranks call {name} with different shapes: {shapes}.")
        return list(zip(tensors, map(list, zip(*brought, strict=True)), strict=True))


def _reduced(stacked: Tensor, operation: Any) -> Tensor:
    if operation == dist.ReduceOp.SUM:
        return stacked.sum(0)
    if operation == dist.ReduceOp.AVG:
        return stacked.sum(0) / len(stacked)
    if operation == dist.ReduceOp.MAX:
        return stacked.amax(0)
    if operation == dist.ReduceOp.MIN:
        return stacked.amin(0)
    raise RuntimeError(f"ranks in threads sum, average, take max and min, and not {operation}.")


@contextlib.contextmanager
def _group(num_ranks: int) -> Iterator[_ThreadGroup]:
    if dist.is_initialized():
        raise RuntimeError(
            "this process belongs to a process group already, and ranks in threads need one of "
            "their own: call torch.distributed.destroy_process_group() first."
        )
    if _BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(_BACKEND, _new_group, devices=["cpu"])
    _here.rank = 0
    try:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(_BACKEND, store=store, rank=0, world_size=num_ranks)
        yield _groups[-1]
    finally:
        _groups.clear()
        if dist.is_initialized():
            dist.destroy_process_group()


_groups: list[_ThreadGroup] = []


def _new_group(store: Any, rank: int, size: int, timeout: Any) -> _ThreadGroup:
    _groups.append(_ThreadGroup(size))
    return _groups[-1]


def in_threads(
    function: Callable[[int], Result], num_ranks: int
) -> tuple[list[Result], list[Traffic]]:
    """Run a function once for each rank, at the same time, in one process group of threads.

    Args:
        function: Called with its rank. `torch.distributed` and DistributedDataParallel work in
            it, on CPU tensors: all_reduce, reduce, broadcast, all_gather, barrier. Random numbers
            come from one generator that all threads share, so draw what matters before.
        num_ranks: How many.

    Returns:
        What the function returned, and the collectives, each by rank.

    Raises:
        RuntimeError: When this process is in a process group already.
        Exception: What the function raised, in the lowest rank that raised; `LeftAloneError` when
            nothing but waiting went wrong.
    """
    results: dict[int, Result] = {}
    errors: dict[int, BaseException] = {}

    def work(rank: int) -> None:
        _here.rank = rank
        try:
            results[rank] = function(rank)
        except BaseException as error:
            errors[rank] = error
        finally:
            group.rendezvous.leave(rank)

    with _group(num_ranks) as group:
        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(num_ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for _, error in sorted(errors.items(), key=lambda item: (_is_left_alone(item[1]), item[0])):
        raise error
    return [results[rank] for rank in range(num_ranks)], group.traffic


def _is_left_alone(error: BaseException) -> bool:
    return isinstance(error, LeftAloneError) or "LeftAloneError" in str(error)
