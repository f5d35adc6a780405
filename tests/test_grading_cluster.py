"""The same scores from one worker, from two, from a Dask cluster, and from a resumed run."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import answers
import psutil
import pytest

from solutions.answers.known import handed_in, write_example
from solutions.grader import GradingError
from solutions.grader.lab import load_lab
from solutions.grader.run import grade

# Each stands before the solution's answer to 1.1.
HOSTILE = answers.by_title("../hostile", "line")
RUN = """
import sys
from pathlib import Path
from solutions.grader.run import grade
folder, root = map(Path, sys.argv[1:])
grade("lab01", folder / "class", folder / "stopped", root=root, seed=3, seconds=6.0, workers=2)
"""


@pytest.fixture
def cluster():
    """The module, imported when it is asked for: Dask's import takes a while."""
    pytest.importorskip("distributed")
    from solutions.grader import cluster

    return cluster


def scores(folder, root, out, **options):
    place = folder / out
    grade("lab01", folder / "class", place, root=root, seed=3, seconds=6.0, **options)
    return (place / "scores.csv").read_text(encoding="utf-8")


def when_so_many_are_done(number, folder, end):
    """Call a function as soon as a run has written down so many results."""

    def wait():
        give_up, done = time.monotonic() + 600, 0
        while time.monotonic() < give_up and done < number:
            time.sleep(0.05)
            done = sum(path.read_text().count('"file"') for path in folder.glob("*.jsonl"))
        end()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


@pytest.mark.weekly
def test_however_a_class_is_graded_its_scores_are_the_same(root, tmp_path):
    write_example("lab01", tmp_path / "class", root=root, num_students=24)
    lab = load_lab(root, "lab01")
    solved = {number: answer.reference for number, answer in lab.answers.items()}
    for name, line in HOSTILE.items():
        given = solved | {"1.1": f"# exercise 1.1\n{line}\n{solved['1.1']}"}
        text = json.dumps(handed_in(lab, given))
        (tmp_path / "class" / f"{name}.ipynb").write_text(text, encoding="utf-8")
    wanted = scores(tmp_path, root, "one", workers=1)
    assert wanted.count("\n") == 31
    assert scores(tmp_path, root, "two", workers=2) == wanted

    run = subprocess.Popen([sys.executable, "-c", RUN, tmp_path, root])
    when_so_many_are_done(9, tmp_path, run.terminate).join()
    assert run.wait(60)
    assert not (tmp_path / "stopped").exists()
    assert scores(tmp_path, root, "stopped", workers=2) == wanted
    facts = json.loads((tmp_path / "stopped" / "run.json").read_text())
    assert 9 <= facts["taken_over"] < 29

    before = {child.pid for child in psutil.Process().children(recursive=True)}
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as local:
        lost = local.workers[0].pid
        killer = when_so_many_are_done(1, tmp_path, lambda: os.kill(lost, signal.SIGKILL))
        assert scores(tmp_path, root, "cluster", dask=local.scheduler_address) == wanted
        killer.join()
        assert not psutil.pid_exists(lost)
    left = [c for c in psutil.Process().children(recursive=True) if c.pid not in before]
    assert [child for child in left if "grading" in " ".join(child.cmdline())] == []


def test_a_scheduler_that_does_not_answer_is_named(cluster, monkeypatch):
    monkeypatch.setattr(cluster, "_CONNECT_SECONDS", 0.2)
    with (
        pytest.raises(GradingError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"),
        cluster.open_cluster("tcp://127.0.0.1:9", None),
    ):
        pass


def test_without_dask_the_extra_is_named(cluster, monkeypatch):
    monkeypatch.setattr(cluster, "distributed", None)
    with pytest.raises(GradingError, match=r"\[dask\]"), cluster.open_cluster("x", None):
        pass
