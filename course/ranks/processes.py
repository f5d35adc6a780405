"""Ranks as real processes on this machine, joined by gloo, that run a notebook's functions."""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import functools
import io
import multiprocessing
import os
import pickle
import shutil
import tempfile
import time
import traceback
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tutorial_lib.instruments.ranks import exit_reports

_START_SECONDS = 120.0  # each process imports torch
_CORES = os.cpu_count() or 1
_RANKS_PER_CORE = 16
_GRACE_SECONDS = 0.5  # for a second rank's news, which may be the cause of the first one's


def start(num_ranks: int) -> Ranks:
    """Start processes that wait for work, joined into one process group by gloo.

    Args:
        num_ranks: How many, at least 1.

    Raises:
        ValueError: When there is to be none, or more than 16 for each core of this machine. With
            more ranks than cores a printed line says that they take turns.
    """
    if num_ranks < 1:
        raise ValueError(f"num_ranks (={num_ranks}) must be at least 1.")
    most = _RANKS_PER_CORE * _CORES
    if num_ranks > most:
        raise ValueError(
            f"num_ranks (={num_ranks}) is too many for {_CORES} cores: each rank is a process of "
            f"about 300 MB that imports PyTorch. Start at most {most}, or predict the step of one "
            "rank by memory.predict."
        )
    if num_ranks > _CORES:
        print(f"{num_ranks} ranks share {_CORES} cores: their counts are right, times are not.")
    return Ranks(num_ranks)


class Ranks(contextlib.AbstractContextManager["Ranks"]):
    """Processes that train together; they end with `stop`, with the block, or with this process.

    A process is started anew (spawned), as on every system it can be; it finds itself in the
    group `torch.distributed` has as its default, computes with one thread, and keeps nothing
    between two calls of `run` but what libraries keep.
    """

    def __init__(self, num_ranks: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.mkdtemp()
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        for rank in range(num_ranks):
            ours, theirs = context.Pipe()
            arguments = (theirs, self._folder, rank, num_ranks)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            self._stderr(rank).touch()
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._end = weakref.finalize(self, _end, self._processes, self._pipes, self._folder)
        self._answers(_START_SECONDS * max(1, num_ranks // _CORES))

    def run(self, function: Callable[..., Any], *args: Any, seconds: float = 120.0) -> list[Any]:
        """Call a function in every rank at the same time.

        Args:
            function: Called as `function(*args)`; it may be defined in a notebook, and brings
                what it uses. What it prints is printed here, by rank.
            args: Plain data, tensors, a notebook's own functions and classes; what it returns
                may be the same.
            seconds: How long it may take.

        Returns:
            What it returned, by rank.

        Raises:
            RuntimeError: When it raised in a rank, or a rank ended, or the ranks are stopped.
            TimeoutError: When a rank is not done in time: the message says what each rank waits
                for. After all three, no process is left.
        """
        if not self._end.alive:
            raise RuntimeError("these ranks have been stopped: run the cell with ranks.start.")
        work = _dumps(functools.partial(function, *args))
        for pipe in self._pipes:
            with contextlib.suppress(OSError):  # a process that has ended: the answers say so
                pipe.send((seconds, work))
        return self._answers(seconds)

    def stop(self, *_: object) -> None:
        """End the processes."""
        self._end()

    __exit__ = stop

    def _answers(self, seconds: float) -> list[Any]:
        give_up = time.monotonic() + seconds
        results: dict[int, Any] = {}
        try:
            while len(results) < len(self._pipes):
                waiting = {p: rank for rank, p in enumerate(self._pipes) if rank not in results}
                ready = wait(list(waiting), max(0.0, give_up - time.monotonic()))
                if not ready:
                    raise TimeoutError(self._who_waits(sorted(waiting.values()), seconds))
                for pipe in self._pipes:
                    if pipe in ready:
                        results[waiting[pipe]] = self._read(pipe, waiting[pipe])
        finally:
            if len(results) < len(self._pipes):
                self.stop()  # who knows in which collective the others are
        for rank, (printed, _) in sorted(results.items()):
            for line in printed.splitlines():
                print(f"rank {rank}: {line}")
        return [results[rank][1] for rank in range(len(self._pipes))]

    def _read(self, pipe: Connection, rank: int) -> tuple[str, Any]:
        try:
            printed, failure, result = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            self._processes[rank].join()
            failure = "nothing: its process has ended."
        if failure:
            # A rank that dies breaks the others' connections: its end is the cause.
            ended = wait([process.sentinel for process in self._processes], _GRACE_SECONDS)
            for dead, process in enumerate(self._processes):
                if process.sentinel in ended:
                    process.join()
                    how = exit_reports.of_the_dead(process.exitcode, self._stderr(dead))
                    raise RuntimeError(f"the process of rank {dead} ended {how}")
            raise RuntimeError(f"rank {rank} raised {failure}")
        return printed, result

    def _who_waits(self, waiting: list[int], seconds: float) -> str:
        where = []
        for rank in range(len(self._pipes)):
            is_waiting = rank in waiting
            does = exit_reports.of_the_waiting(self._stderr(rank)) if is_waiting else "is done"
            where.append(f"rank {rank} {does}")
        return (
            f"after {seconds:.0f} s {'; '.join(where)}. All ranks must make the same collectives "
            f"in the same order; if each makes progress, allow more seconds ({len(where)} ranks "
            f"share {_CORES} cores)."
        )

    def _stderr(self, rank: int) -> Path:
        return Path(self._folder, f"rank{rank}.stderr")


def _dumps(value: Any) -> bytes:
    import joblib  # type: ignore[import-untyped]  # here: a check needs none of it

    return pickle.dumps(joblib.wrap_non_picklable_objects(value, keep_wrapper=False))


def _end(processes: list[Any], pipes: list[Connection], folder: str) -> None:
    for process in processes:
        process.kill()
    for process, pipe in zip(processes, pipes, strict=True):
        process.join()
        pipe.close()
    shutil.rmtree(folder, ignore_errors=True)


def _serve(pipe: Connection, folder: str, rank: int, num_ranks: int) -> None:
    """Join the group, then do what comes through the pipe until it is closed."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)  # gloo prints that it is connected
    os.dup2(os.open(str(Path(folder, f"rank{rank}.stderr")), os.O_WRONLY | os.O_APPEND), 2)
    faulthandler.enable(2)
    torch.set_num_threads(1)

    def join() -> None:
        patience = datetime.timedelta(seconds=_START_SECONDS)
        shared = dist.FileStore(str(Path(folder, "store")), num_ranks)  # type: ignore[attr-defined]
        dist.init_process_group(
            "gloo", store=shared, rank=rank, world_size=num_ranks, timeout=patience
        )

    pipe.send_bytes(_do(join, _START_SECONDS))
    while True:
        try:
            seconds, work = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)  # the process that started this one is gone
        pipe.send_bytes(_do(lambda work=work: pickle.loads(work)(), seconds))  # type: ignore[misc]


def _do(task: Callable[[], Any], seconds: float) -> bytes:
    printed = io.StringIO()
    faulthandler.dump_traceback_later(seconds, file=2)
    with contextlib.redirect_stdout(printed):
        try:
            result = task()
            return _dumps((printed.getvalue(), "", result))
        except BaseException as error:
            said = f"{type(error).__name__}: {error}\n\n{traceback.format_exc()}"
            return _dumps((printed.getvalue(), said, None))
        finally:
            faulthandler.cancel_dump_traceback_later()
