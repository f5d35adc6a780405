"""Judging on a Dask cluster: a bench in each of its workers, a task for each submission."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from solutions.grader import GradingError, words
from solutions.grader.bench import Order, open_bench
from solutions.grader.results import Graded, course_version
from solutions.grader.submissions.answers import Answers

try:
    import distributed
    from distributed.diagnostics.plugin import WorkerPlugin
except ImportError:  # the extra `dask` is not installed
    distributed = None
    WorkerPlugin = object

_NAME, _CONNECT_SECONDS = "tutorial_lib-grading", 20


class BenchPlugin(WorkerPlugin):  # type: ignore[misc]
    """Opens a bench when a worker starts or joins, and closes it with the run."""

    name = _NAME

    def __init__(self, order: Order) -> None:
        self.order, self.version = order, course_version(order.import_path)

    def setup(self, worker: Any) -> None:
        """Start the worker's own servers."""
        if course_version(self.order.import_path) != self.version:
            raise GradingError(words("other version", address=worker.address))
        self.closing = contextlib.ExitStack()
        self.bench = self.closing.enter_context(open_bench(self.order))

    def teardown(self, worker: Any) -> None:
        """End them, and what they are still doing."""
        self.bench.stop()
        self.closing.close()


def _judge(answers: Answers) -> Graded:
    return distributed.get_worker().plugins[_NAME].bench.judge(answers)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Cluster:
    """Judges submissions on the workers of a cluster; what a lost worker had is done by another."""

    client: Any
    layers: Sequence[str]  # what holds a submission back on every worker
    workers: int  # submissions that it can judge at the same time

    def judge(self, answers: Answers) -> Graded:
        """Judge answers."""
        # not pure: what ran out of time is judged a second time
        return self.client.submit(_judge, answers, pure=False).result()  # type: ignore[no-any-return]

    def stop(self) -> None:
        """Cancel all that is under way."""
        threading.Thread(target=self.client.close, daemon=True).start()


@contextlib.contextmanager
def open_cluster(address: str, order: Order) -> Iterator[Cluster]:
    """Open a bench on every worker of a Dask cluster, and close them afterwards.

    It's a GradingError when Dask is missing, nobody answers there, or a bench cannot be opened.
    """
    if distributed is None:
        raise GradingError(words("no dask"))
    try:
        client = distributed.Client(address, timeout=_CONNECT_SECONDS)
    except (OSError, ValueError) as error:
        raise GradingError(words("no scheduler", address=address, error=error)) from error
    with client:
        threads = client.nthreads()
        if not threads:
            raise GradingError(words("no worker", address=address))
        try:
            client.register_plugin(BenchPlugin(order))
        except Exception as error:  # whatever a worker could not do
            raise GradingError(words("bad worker", error=error)) from error
        found = client.run(lambda dask_worker: dask_worker.plugins[_NAME].bench.layers)
        first, *others = found.values()
        common = [one for one in first if all(one in some for some in others)]
        try:
            yield Cluster(client, common, sum(threads.values()))
        finally:
            with contextlib.suppress(Exception):  # the client of a stopped run is closed
                client.unregister_worker_plugin(_NAME)
