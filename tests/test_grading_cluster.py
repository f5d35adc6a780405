"""A class on a Dask cluster: the scores of this machine, though a worker dies."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

CORPUS = Path(__file__).parent / "grading_corpus"
sys.path.insert(0, str(CORPUS))

import toy  # noqa: E402

from tutorial_lib.school.grading import GradingError, cluster, grade  # noqa: E402

distributed = pytest.importorskip("distributed")


def class_of(folder, answers):
    toy.make_course(folder / "course")
    (folder / "class").mkdir()
    for name, notebook in answers.items():
        (folder / "class" / f"{name}.ipynb").write_text(json.dumps(notebook))


def scores(folder, out, **options):
    table = grade(
        "lab90",
        folder / "class",
        folder / out,
        root=folder / "course",
        seed=3,
        checks_package="toychecks",
        import_path=[CORPUS],
        **options,
    )
    return table[["name", "status", "points", "1.1", "1.2", "2.1", "review"]].to_csv()


def kill_when_busy(worker, folder):
    """Kill a worker's process as soon as a submission is judged anywhere."""

    def wait():
        give_up = time.monotonic() + 60
        while time.monotonic() < give_up and not list(folder.glob("*.unfinished.jsonl")):
            time.sleep(0.05)
        os.kill(worker, signal.SIGKILL)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


@pytest.mark.weekly
def test_one_worker_two_and_a_cluster_that_loses_one_give_the_same_scores(tmp_path):
    answers = {"full": toy.full(), "blank": toy.submission(), "area": toy.submission(a11=toy.AREA)}
    answers |= {f"cube{i}": toy.submission(a21=toy.CUBE + f"\n# {i}") for i in range(5)}
    class_of(tmp_path, answers)
    wanted = scores(tmp_path, "one", workers=1)
    assert scores(tmp_path, "two", workers=2) == wanted
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as local:
        lost = local.workers[0].pid
        killer = kill_when_busy(lost, tmp_path)
        assert scores(tmp_path, "cluster", dask=local.scheduler_address) == wanted
        killer.join()
        assert not psutil.pid_exists(lost)
    left = [c for c in psutil.Process().children(recursive=True) if c.pid not in before]
    left = [child for child in left if "grading" in " ".join(child.cmdline())]
    assert left == []


def test_a_scheduler_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setattr(cluster, "_CONNECT_SECONDS", 0.2)
    with (
        pytest.raises(GradingError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"),
        cluster.open_cluster("tcp://127.0.0.1:9", None),
    ):
        pass


def test_without_dask_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(cluster, "distributed", None)
    with pytest.raises(GradingError, match=r"\[dask\]"), cluster.open_cluster("x", None):
        pass
