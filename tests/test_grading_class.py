"""A class over several runs: one is stopped, one goes on from it, one is of a single file."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import toy

from solutions.grader import results as kept_results
from solutions.grader import run as grading
from solutions.grader.results import Graded, Verdict

RUN = """
import sys
from pathlib import Path
from solutions.grader.run import grade
folder, corpus = map(Path, sys.argv[1:])
grade("lab90", folder / "class", folder / "report", root=folder / "course", workers=1, seconds=50,
      checks_package="toychecks", import_path=[corpus])
"""
SLOW = "import threading; threading.Event().wait(45)\n" + toy.AREA


def grade_toy(folder, **options):
    places = folder / "course", folder / "class", folder / "report"
    return toy.grade_toy(*places, seconds=50, **options)


def processes_of(place):
    """Find the processes that were started in a folder, or name it."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(place) in " ".join(process.cmdline()) + str(process.environ().get("HOME")):
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_until(true, seconds):
    give_up = time.monotonic() + seconds
    while not true() and time.monotonic() < give_up:
        time.sleep(0.1)
    return true()


ENDS = [pytest.param(name, marks=pytest.mark.weekly) for name in ("SIGTERM", "SIGKILL")]


@pytest.fixture(scope="module", params=ENDS)
def stopped(request):
    """A run that is ended while the third of three submissions is judged."""
    folder = Path(tempfile.mkdtemp(prefix="c-"))  # a short name: sockets are made below it
    toy.make_course(folder / "course")
    for name in ("class/ann", "tmp"):
        (folder / name).mkdir(parents=True)
    for name, answer in (("a", toy.AREA), ("ann/1", toy.CUBE), ("ann/2", SLOW)):
        number = "a21" if answer == toy.CUBE else "a11"
        text = json.dumps(toy.submission(**{number: answer}))
        (folder / "class" / f"{name}.ipynb").write_text(text)
    (folder / "class" / "bob.zip").write_text("")
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, folder, toy.HERE],
        env=os.environ | {"TMPDIR": str(folder / "tmp")},
        stderr=subprocess.PIPE,
    )
    unfinished = folder / "report.unfinished.jsonl"
    try:
        two_done = wait_until(
            lambda: unfinished.exists() and unfinished.read_text().count('"file"') == 2, 100
        )
        assert two_done, "the run did not come so far"
        time.sleep(5)  # now the third one sleeps
        run.send_signal(getattr(signal, request.param))
        said = run.communicate(timeout=40)[1].decode()
        yield request.param, folder, said
    finally:
        for process in [run, *processes_of(folder / "tmp")]:
            process.kill()
        shutil.rmtree(folder)


@pytest.mark.slow
def test_a_stopped_run_leaves_no_process_and_its_results(stopped, monkeypatch):
    number, folder, said = stopped
    assert wait_until(lambda: not processes_of(folder / "tmp"), 20)
    if number == "SIGTERM":
        assert list((folder / "tmp").iterdir()) == []
        assert "keeps what is graded so far" in said
    assert not (folder / "report").exists()

    (folder / "class" / "ann" / "2.ipynb").write_text(json.dumps(toy.full()))
    table = grade_toy(folder).set_index("name")
    facts = json.loads((folder / "report" / "run.json").read_text())
    assert facts["taken_over"] == 2
    assert {one["seed"] for one in facts["submissions"]} == {facts["seed"], None}
    assert dict(table["points"].fillna(-1)) == {
        "a.ipynb": 2,
        "ann/1.ipynb": 5,
        "ann/2.ipynb": 10,
        "bob.zip": -1,
    }
    assert table.loc["bob.zip", "status"] == "unreadable"
    assert not (folder / "report.unfinished.jsonl").exists()

    if number == "SIGTERM":  # a roster that came later: nothing is started for it
        monkeypatch.setattr("solutions.grader.run.open_bench", None)
        (folder / "roster.csv").write_text("name\nann\na\n")
        again = grade_toy(folder, roster=folder / "roster.csv")
        assert list(again["student"]) == ["a", "ann", "ann", ""]
        assert list(again["points"].fillna(-1)) == [2, 5, 10, -1]
        again = json.loads((folder / "report" / "run.json").read_text())
        assert [again[name] for name in ("taken_over", "layers")] == [3, facts["layers"]]
        return
    old = (folder / "report" / "feedback" / "ann" / "2.ipynb.html").read_bytes()
    (folder / "class" / "a.ipynb").write_text(json.dumps(toy.full()))
    table = grade_toy(folder, only=["a"], seed=5).set_index("name")
    assert dict(table["points"].fillna(-1)) == {
        "a.ipynb": 10,
        "ann/1.ipynb": 5,
        "ann/2.ipynb": 10,
        "bob.zip": -1,
    }
    with (folder / "report" / "scores.csv").open(newline="") as file:
        assert [line["points"] for line in csv.DictReader(file)] == ["10", "5", "10", ""]
    assert (folder / "report" / "feedback" / "ann" / "2.ipynb.html").read_bytes() == old
    later = json.loads((folder / "report" / "run.json").read_text())
    assert [one["seed"] for one in later["submissions"]] == [5, facts["seed"], facts["seed"], None]


ORDER = {"lab": "lab90_toy", "version": "1", "limits": {"seconds": 4.0}}


def test_a_journal_gives_back_what_was_written_even_after_a_cut(lab, tmp_path):
    out = tmp_path / "report"
    done = Graded("é\udcff", "graded", {"check-1-1": Verdict(True, "\x1b")}, notes=["n"], seed=3)
    first = kept_results.Journal(out, ORDER, None)
    done = first.add("a", done)
    assert done.file
    first.add("crash", Graded("c", "crashed"))
    with first.path.open("a") as file:
        file.write('\n{"order": {"la')
    second = kept_results.Journal(out, ORDER, None)
    assert second.seed == done.seed
    assert second.earlier("é\udcff", "a") == done
    assert "crash" not in second.done
    done = second.add("b", done)
    assert "b" in kept_results.Journal(out, ORDER, done.seed).done
    assert "a" not in kept_results.Journal(out, ORDER, done.seed + 1).done
    assert "a" not in kept_results.Journal(out, ORDER | {"version": "2"}, None).done
    second.close(remove=True)
    second.add("late", done)
    assert not list(tmp_path.iterdir())


def diary(folder):
    return kept_results.Journal(folder / "out", ORDER, 1)


def test_what_ran_out_of_time_is_graded_again_alone_and_the_second_result_stands(
    lab, tmp_path, capsys
):
    active, order = [], []

    def judged(answers):
        name = answers.sources["1.1"]
        active.append(name)
        alone_at_first, again = len(active) == 1, name in order
        time.sleep(0.3)
        alone = alone_at_first and active == [name]
        active.remove(name)
        order.append(name)
        late = not again if "slow" in name else "endless" in name
        assert alone or not again
        verdict = Verdict(not late, "stopped" * late, timed_out=late)
        return Graded("", "graded", dict.fromkeys([c.id for c in lab.checks], verdict))

    names = ["endless", "right", "slow"]
    folder = tmp_path / "class"
    folder.mkdir()
    for name in names:
        (folder / name).with_suffix(".ipynb").write_text(json.dumps(toy.submission(a11=name)))
    files = [f"{name}.ipynb" for name in names]
    _, new = grading.read_class(lab, folder, files, diary(tmp_path))
    bench, pool = SimpleNamespace(judge=judged), ThreadPoolExecutor(3)
    judged_now = grading.judge_all(bench, new, diary(tmp_path), pool, alone=False)
    assert grading.read_class(lab, folder, files, diary(tmp_path)) == (judged_now, {})
    results = [judged_now[name] for name in files]
    assert [result.points(lab) for result in results] == [0, 10, 10]
    assert [result.alone for result in results] == [True, False, True]
    again = [any("second result" in note for note in result.notes) for result in results]
    assert again == [True, False, True]
    assert sorted(order[:3]) == [f"# exercise 1.1\n{name}" for name in names]
    assert order[3:] == ["# exercise 1.1\nendless", "# exercise 1.1\nslow"]
    assert "since they ran out of time: 2" in capsys.readouterr().err
