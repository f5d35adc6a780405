"""What a student's process can do, and cannot: sessions without nbval, so that many are cheap."""

import ast
import contextlib
import csv
import itertools
import os
import re
import socket
import time
from pathlib import Path

import answers
import psutil
import pytest
import toy
from toychecks import lab90

from solutions.grader import bench, judge, launch, wire
from solutions.grader.inside import sandbox, view, watch
from solutions.grader.lab import load_lab
from solutions.grader.report.report_class import isolation
from solutions.grader.submissions.answers import plain_answers
from tutorial_lib.checks import CheckError

ROOT = Path(__file__).resolve().parents[1]
NUMBERS = itertools.count()
SECONDS = 3.0
MEMORY = 512 * 1024**2
GOOD = {"1.1": toy.AREA, "1.2": toy.DOUBLED, "2.1": toy.CUBE}


class Course:
    """A toy course with a running fork server; `session(answers)` opens a judge's connection."""

    def __init__(self, folder, server, lab, monkeypatch_context):
        self.folder, self.server, self.lab = folder, server, lab
        self.patch = monkeypatch_context

    def session(self, **changed):
        self.open(GOOD | {"1.1": changed.pop("area", toy.AREA)} | changed)

    def open(self, answers):
        folder = self.folder / f"s{next(NUMBERS)}"
        bench.prepare(folder, self.lab, plain_answers(self.lab, answers))
        os.close(self.server.fork(folder)[1])
        judge._connection.cache_clear()
        self.patch.setenv(judge.SOCKET_VARIABLE, str(folder / "socket"))

    def says(self, check, exercise, name):
        """What a check says about an answer; empty when it passes."""
        try:
            check(judge.RemoteFunction(exercise, name))
        except CheckError as error:
            return str(error)
        return ""

    def area(self):
        return self.says(lab90.area, "1.1", "area")

    def doubled(self):
        return self.says(lab90.doubled, "1.2", "doubled")

    def slope(self):
        return self.says(lab90.slope, "2.1", "cube")


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with start(tmp_path_factory) as everything:
        yield everything


@contextlib.contextmanager
def start(tmp_path_factory, seconds=SECONDS, *more):
    root = toy.make_course(tmp_path_factory.mktemp("course"))
    with start_lab(root, "lab90", "toychecks", [str(toy.HERE)], seconds, more) as everything:
        yield everything


@contextlib.contextmanager
def start_lab(root, lab, package, import_path, seconds, more):
    lab = load_lab(root, lab)
    order = {"seconds": seconds, "memory_bytes": MEMORY, "package": package}
    order |= {"import_path": import_path, "preload": [*bench.preload(lab), *more]}
    with launch.run_directory() as folder:
        order |= {"forbidden": str(lab.path), "view": str(folder.parent / "view")}
        with launch.open_server("inside.view", folder, order) as server:
            yield folder, server, lab, server.ready


@pytest.fixture
def course(running, monkeypatch):
    with using(running, monkeypatch) as course:
        yield course


@contextlib.contextmanager
def using(running, monkeypatch):
    folder, server, lab, _ = running
    yield Course(folder, server, lab, monkeypatch)
    if judge._connection.cache_info().currsize:
        judge._connection().close()
    judge._connection.cache_clear()


def test_what_sets_arithmetic_reaches_an_answer_and_nothing_else(tmp_path_factory, monkeypatch):
    settings = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"}
    for name, value in (settings | {"OMP_NUM_THREADS": "2", "TOKEN": "secret"}).items():
        monkeypatch.setenv(name, value)
    looks = f"import os, torch\nseen = {{name: os.environ.get(name) for name in {[*settings]}}}\n"
    looks += "def area(w, h):\n    assert torch.backends.cpu.get_cpu_capability() == 'DEFAULT'\n"
    looks += f"    assert seen == {settings}, seen\n"
    looks += "    assert 'TOKEN' not in os.environ\n    return w * h"
    with start(tmp_path_factory) as running, using(running, monkeypatch) as course:
        course.session(area=looks)
        assert course.area() == ""


WROTE = "cannot be read: it is not what the check sent: your code wrote something else there"


TEXTS = {one[2]: one[4][0] for one in answers.read("../session") if one[1] == "text"}
LEAVES, SEES = TEXTS["leaves"], TEXTS["sees"]


def answers_of(kind):
    """Return the answers of one kind, in grading_corpus/session.txt, with their words."""
    found = [one for one in answers.read("../session") if one[1].split("-")[0] == kind]
    return pytest.mark.parametrize(
        ("answer", "words"),
        [
            pytest.param(cell, words, marks=[pytest.mark.weekly] * how.endswith("-weekly"), id=name)
            for _, how, name, words, (cell,) in found
        ],
    )


@answers_of("fails")
def test_a_wrong_or_hostile_answer_fails_alone(course, answer, words):
    course.session(area=answer)
    said = course.area()
    assert re.search(WROTE if words == "WROTE" else words, said, re.DOTALL), said
    assert len(said) < 20_000
    assert course.doubled() == ""  # the next exercise of the same submission is judged as ever


@answers_of("spoiler")
def test_patching_in_the_students_process_gives_no_points(course, answer, words):
    course.session(area=answer)
    assert course.area()


@answers_of("exchange")
def test_a_right_answer_that_exchanges_what_a_check_works_with_is_refused(course, answer, words):
    course.session(area=answer)
    assert (f"{words}, which the check works with" in course.area()) == bool(words)


@answers_of("harmless")
def test_what_is_put_back_or_only_added_costs_nothing(course, answer, words):
    course.session(area=answer)
    assert course.area() == ""


def test_a_patch_in_one_exercise_cannot_make_a_wrong_later_answer_right(course):
    course.session(
        area="import torch\ntorch.allclose = lambda *a, **k: True\n" + toy.AREA,
        **{"1.2": "def doubled(x):\n    return x"},
    )
    assert "torch.allclose" in course.area()
    assert "differs" in course.doubled()


def test_the_cases_of_a_check_share_a_process_and_nothing_goes_further(course):
    for _ in range(2):  # another submission, and another check of it
        course.session(area=TEXTS["remembers"], **{"1.2": f"assert not calls\n{toy.DOUBLED}"})
        assert [course.area(), course.doubled(), course.area()] == [""] * 3


def test_what_grows_while_the_judge_thinks_is_stopped(monkeypatch):
    limits = sandbox.Limits(seconds=99, memory_bytes=2**20)
    seen = watch.Watch((), None, wire.Marks(), 0, 1, watch.Time(), limits)
    seen.started_with = 0
    monkeypatch.setattr(watch, "descendants", lambda _: [psutil.Process()])
    asks, other = socket.socketpair()  # nobody ever does
    with asks, other:
        seen.wait_for(asks)
    assert "was stopped: it used" in seen.broken


def test_a_cell_that_hangs_costs_its_time_once(course):
    course.session(area="while True: pass")
    assert "stopped" in course.area()
    assert "left out" in course.area()
    course.session(area="while True: pass", **{"1.2": "def doubled(x): return area(x, FACTOR)"})
    assert "Left out above it: exercise 1.1" in course.doubled()
    assert course.slope() == ""


@answers_of("escape")
def test_the_sandbox_refuses(course, running, answer, words):
    layers = running[3]
    if "landlock" not in layers:
        pytest.skip(f"this machine grants only {layers}")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        source = answer.format(
            solution=str(course.lab.path),
            root=str(course.lab.path.parents[1]),
            pid=os.getpid(),
            port=listener.getsockname()[1],
        )
        course.session(area=source)
        said = course.area()
    assert "your function raised" in said
    assert any(word in said for word in ("PermissionError", "OSError", "ProcessLookup", "Connect"))
    assert course.lab.path.exists()
    assert not Path("/tmp/written-by-a-student").exists()


# Numbers on x86_64 and aarch64, and arguments that a kernel without a filter takes where it can.
with (toy.HERE / "calls.csv").open(encoding="utf-8") as _file:
    CALLS = list(csv.DictReader(_file))


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call["call"])
def test_system_calls_that_no_answer_needs_are_refused(course, running, call):
    if "seccomp" not in running[3]:
        pytest.skip(f"this machine grants only {running[3]}")
    tried = (
        "import ctypes, os\n"
        "long = ctypes.c_ulong\n"
        "def area(w, h):\n"
        "    libc = ctypes.CDLL(None, use_errno=True)\n"
        "    room, pipe = ctypes.create_string_buffer(128), os.pipe()[0]\n"
        f"    granted = libc.syscall({call[os.uname().machine]}, {call['arguments']})\n"
        "    assert granted == -1, f'granted: {granted}'\n"
        "    assert ctypes.get_errno() in (1, 38), os.strerror(ctypes.get_errno())\n"
        "    return w * h"
    )
    course.session(area=tried)
    assert course.area() == ""


@answers_of("starts")
def test_nothing_is_done_where_no_meter_looks(course, answer, words):
    course.session(**{"1.2": answer})
    said = course.doubled()
    words = ("your code starts another thread or process", "can't start new thread")
    assert any(word in said for word in words), said
    assert course.slope() == ""


def test_an_answer_may_ask_pytorch_for_threads(course):
    asks = "import torch\ntorch.set_num_threads(4)\ndef doubled(x):\n    torch.set_num_threads(3)\n"
    asks += "    torch.ones(999, 999) @ torch.ones(999, 999)\n    return 2 * x"
    course.session(**{"1.2": asks})
    assert course.doubled() == ""


@answers_of("honest")
def test_what_an_honest_answer_may_use_works(course, answer, words):
    course.session(area=answer)
    assert course.area() == ""


def test_the_session_of_another_submission_cannot_be_reached(course, running):
    """Its answers would tell what to answer, and its judge would wait in vain."""
    if "namespaces" not in running[3]:
        pytest.skip(f"this machine grants only {running[3]}")
    course.session()
    other = Path(os.environ[judge.SOCKET_VARIABLE])
    connect = f"import socket\n    socket.socket(socket.AF_UNIX).connect({str(other)!r})"
    course.session(area=f"def area(w, h):\n    {connect}\n    return w * h")
    assert "PermissionError" in course.area() or "FileNotFoundError" in course.area()
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(other))  # from outside it is there


def test_a_submission_finds_nothing_of_the_one_before_it(course):
    course.session(area=LEAVES + SEES + TEXTS["says"])  # in one process, all of it is seen
    said = course.area()
    kinds = re.findall(r'^    "(\w+)":', SEES, re.MULTILINE)
    assert [kind for kind in kinds if kind not in said] == []
    course.session(area=LEAVES + toy.AREA)
    assert course.area() == ""
    course.session(area=SEES + TEXTS["says"])
    assert course.area() == ""


def test_no_process_is_left_by_daemons_and_fork_bombs(course):
    course.session(area=TEXTS["daemon"], **{"2.1": TEXTS["bomb"]})
    assert course.area() == ""
    assert "2.1" in course.slope()
    assert course.doubled() == ""
    assert_nothing_runs(course)


def assert_nothing_runs(course):
    judge._connection().close()
    give_up = time.monotonic() + 10  # the session's own two processes end when the judge hangs up
    while (
        left := psutil.Process(course.server.process.pid).children(True)
    ) and time.monotonic() < give_up:
        time.sleep(0.02)
    assert not left
    judge._connection.cache_clear()


def test_what_an_answer_tries_out_below_itself_is_not_charged_to_its_function(course):
    tried = "\nfrom time import process_time\nwhile process_time() < {}: pass"
    course.session(**{"1.2": toy.DOUBLED + tried.format(0.7 * SECONDS)})  # for each of its cases
    assert course.doubled() == ""
    course.session(**{"1.2": toy.DOUBLED + tried.format(1.2 * SECONDS)})
    assert "runs anew for each check" in course.doubled()


def test_a_right_answer_that_sleeps_keeps_its_points(course):
    course.session(area=f"from time import sleep\nsleep(9999)\n{toy.AREA}")
    assert course.area() == ""
    body = toy.AREA.replace("return", f"import time; time.sleep({SECONDS})\n    return")
    course.session(area=body)
    assert course.area() == ""


@answers_of("burns")
def test_the_time_of_threads_and_of_other_processes_counts(course, answer, words):
    course.session(area=answer)
    assert "was stopped after 3.00 s of CPU time" in course.area()
    assert course.doubled() == ""


# What waits is stopped after two seconds, where an answer has three of CPU time.
SHORT_CLOCK = "import solutions.grader.inside.watch as w; w._CLOCK_MORE = -13.0"


def with_patch(monkeypatch, patch):
    """Have the fork server run a line as soon as it has entered its view."""
    line = "import solutions.grader.inside.view as v; enter = v.enter; "
    line += f"patch = {patch!r}; "
    line += "v.enter = lambda *asked: (enter(*asked), exec(patch))[0]"
    monkeypatch.setattr(launch, "_START", f"{line}; {launch._START}")


def test_what_waits_for_ever_is_stopped_by_the_clock(tmp_path_factory, monkeypatch):
    with_patch(monkeypatch, SHORT_CLOCK)
    wait = "import threading\ndef area(w, h):\n    threading.Event().wait()"
    with start(tmp_path_factory) as running, using(running, monkeypatch) as course:
        course.session(area=wait)
        assert "was stopped after 2.00 s on the clock, before its CPU time" in course.area()
        course.session(area="import threading\nthreading.Event().wait(99)")
        assert "answer cell of exercise 1.1 was stopped after 2.00 s on the clock" in course.area()
        assert course.doubled() == ""


def test_what_ran_out_of_time_is_told_from_other_failures(course):
    course.session(area="while True: pass", **{"1.2": f"area(2, 3)\n{toy.DOUBLED}"})
    for check, exercise, name in ((lab90.area, "1.1", "area"), (lab90.doubled, "1.2", "doubled")):
        for _ in range(2):  # when it happens, and when it is remembered
            with pytest.raises(judge.OutOfTime):
                check(judge.RemoteFunction(exercise, name))
    course.session(area="import os; os._exit(0)")
    with pytest.raises(CheckError) as caught:
        lab90.area(judge.RemoteFunction("1.1", "area"))
    assert type(caught.value) is CheckError


def test_layers_that_were_found_are_named(running):
    layers = running[3]
    assert "limits" in layers
    if sandbox.landlock_version() >= 1:
        assert "landlock" in layers
        assert "solutions readable" not in layers
        assert "files writable" not in layers


def test_without_landlock_and_namespaces_grading_still_works_and_says_so(
    tmp_path_factory, monkeypatch
):
    weak = "import solutions.grader.inside.sandbox as s; "
    with_patch(monkeypatch, weak + "s.landlock_version = lambda: 0; s.NAMESPACE_CHOICES = (0,)")
    with start(tmp_path_factory) as running, using(running, monkeypatch) as course:
        layers = running[3]
        assert isolation(layers) == "limits only"
        assert {"solutions readable", "files writable"} <= set(layers)
        course.session(area=TEXTS["daemon"], **{"1.2": "import os\nos._exit(1)"})
        assert course.area() == ""
        assert "exit code 1" in course.doubled()
        assert course.slope() == ""
        course.session(**{"2.1": TEXTS["bomb"]})
        assert "2.1" in course.slope()
        assert course.area() == ""
        assert_nothing_runs(course)


@answers_of("unseen")
def test_the_process_of_an_answer_sees_no_judge_and_no_grader(course, running, answer, words):
    if "landlock" not in running[3]:
        pytest.skip(f"this machine grants only {running[3]}")
    original = repr(lab90.area._judge.__code__.co_filename)
    course.session(area=answer.replace("{original!r}", original))
    said = course.area()
    assert re.search("ImportError|AttributeError|Assertion|Permission|ModuleNotFound", said)


def names_in(tree):
    """All names that code defines, uses or imports; prose may hold the same words."""
    words = ("id", "attr", "name", "module", "asname")
    texts = (getattr(node, word, None) for node in ast.walk(tree) for word in words)
    return {part for text in texts if isinstance(text, str) for part in text.split(".")}


def is_check(node):
    return any(ast.unparse(each).startswith("check(") for each in node.decorator_list)


def test_the_view_of_a_lab_names_no_judge_no_oracle_and_no_case(tmp_path):
    original = ROOT / "labs/checks"
    view.copy_shown(original, tmp_path, "tutorial_lib.checks")
    labs = [path for path in tmp_path.iterdir() if re.fullmatch(r"lab\d\d", path.name)]
    assert labs
    for lab in labs:
        shown = [path.relative_to(tmp_path) for path in lab.rglob("*.py")]
        used = set().union(*(names_in(ast.parse((tmp_path / path).read_text())) for path in shown))
        hidden = {path.relative_to(original) for path in original.glob(f"{lab.name}/*.py")}
        trees = [ast.parse((original / path).read_text()) for path in hidden.difference(shown)]
        nodes = [node for tree in trees for node in tree.body]
        # a check has the name of what it runs, which the answer's process may see
        defined = {node.name for node in nodes if hasattr(node, "name") and not is_check(node)}
        assert len(defined) > 2
        stems = {path.stem for path in hidden.difference(shown)}
        assert not (defined | stems | {"Exercise", "Faults", "vocabulary"}) & used
