"""Ranks as real processes on this machine, joined by gloo, that run a notebook's functions."""

from __future__ import annotations

import contextlib
import datetime
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

_START_SECONDS = 120.0  # each process imports torch


def start(num_ranks: int) -> Ranks:
    """Start processes that wait for work, joined into one process group by gloo.

    Args:
        num_ranks: How many, at least 1.

    Raises:
        ValueError: When there is to be none.
    """
    if num_ranks < 1:
        raise ValueError(f"num_ranks (={num_ranks}) must be at least 1.")
    return Ranks(num_ranks)


class Ranks:
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
            arguments = (theirs, str(Path(self._folder, "store")), rank, num_ranks)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._end = weakref.finalize(self, _end, self._processes, self._pipes, self._folder)
        self._answers(_START_SECONDS)

    def run(self, function: Callable[..., Any], *args: Any, seconds: float = 120.0) -> list[Any]:
        """Call a function in every rank at the same time.

        Args:
            function: Called as `function(*args)`; it may be defined in a notebook, and brings
                what it uses. What it prints is printed here, by rank.
            args: Plain data and tensors.
            seconds: How long it may take.

        Returns:
            What it returned, by rank.

        Raises:
            RuntimeError: When it raised in a rank, or a rank ended, or the ranks are stopped.
            TimeoutError: When a rank is not done in time; all ranks are ended then.
        """
        if not self._end.alive:
            raise RuntimeError("these ranks have been stopped: start new ones by ranks.start().")
        import joblib  # type: ignore[import-untyped]  # here: a check needs none of it

        work = pickle.dumps(joblib.wrap_non_picklable_objects(functools.partial(function, *args)))
        for pipe in self._pipes:
            pipe.send_bytes(work)
        return self._answers(seconds)

    def stop(self) -> None:
        """End the processes."""
        self._end()

    def __enter__(self) -> Ranks:
        """Give the ranks themselves."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the processes."""
        self.stop()

    def _answers(self, seconds: float) -> list[Any]:
        give_up = time.monotonic() + seconds
        results: dict[int, Any] = {}
        try:
            while len(results) < len(self._pipes):
                waiting = {p: rank for rank, p in enumerate(self._pipes) if rank not in results}
                ready = wait(list(waiting), max(0.0, give_up - time.monotonic()))
                if not ready:
                    raise TimeoutError(
                        f"rank {min(waiting.values())} was not done after {seconds:.0f} s: does "
                        "it wait for a collective that another rank never begins?"
                    )
                for pipe in self._pipes:
                    if pipe in ready:
                        results[waiting[pipe]] = _read(pipe, waiting[pipe])
        except BaseException:
            self.stop()  # who knows in which collective the others are
            raise
        for rank, (printed, _) in sorted(results.items()):
            for line in printed.splitlines():
                print(f"rank {rank}: {line}")
        return [results[rank][1] for rank in range(len(self._pipes))]


def _read(pipe: Connection, rank: int) -> tuple[str, Any]:
    try:
        printed, failure, result = pickle.loads(pipe.recv_bytes())
    except (EOFError, ConnectionError):
        raise RuntimeError(f"the process of rank {rank} has ended: was it killed?") from None
    if failure:
        raise RuntimeError(f"rank {rank} raised {failure}")
    return printed, result


def _end(processes: list[Any], pipes: list[Connection], folder: str) -> None:
    for process in processes:
        process.kill()
    for process, pipe in zip(processes, pipes, strict=True):
        process.join()
        pipe.close()
    shutil.rmtree(folder, ignore_errors=True)


def _serve(pipe: Connection, store: str, rank: int, num_ranks: int) -> None:
    """Join the group, then do what comes through the pipe until it is closed."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):  # gloo prints that it is connected
        os.dup2(nowhere, descriptor)
    torch.set_num_threads(1)

    def join() -> None:
        patience = datetime.timedelta(seconds=_START_SECONDS)
        shared = dist.FileStore(store, num_ranks)  # type: ignore[attr-defined]
        dist.init_process_group(
            "gloo", store=shared, rank=rank, world_size=num_ranks, timeout=patience
        )

    pipe.send_bytes(_do(join))
    while True:
        try:
            work = pipe.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)  # the process that started this one is gone
        pipe.send_bytes(_do(lambda work=work: pickle.loads(work)()))  # type: ignore[misc]


def _do(task: Callable[[], Any]) -> bytes:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            result = task()
            return pickle.dumps((printed.getvalue(), "", result))
        except BaseException as error:
            said = f"{type(error).__name__}: {error}\n\n{traceback.format_exc()}"
            return pickle.dumps((printed.getvalue(), said, None))
