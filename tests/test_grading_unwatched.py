"""Without /proc no process can be watched: limits hold memory, and an answer stays one process."""

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import toy

from solutions.grader.inside import processes

RUN = """
import sys
from pathlib import Path
from solutions.grader import grade
folder, corpus = map(Path, sys.argv[1:])
table = grade("lab90", folder / "class", folder / "report", root=folder / "course", workers=2,
              seconds=2, checks_package="toychecks", import_path=[corpus])
assert "This machine has no /proc" in table.attrs["said"][0]
"""
PRIVATE = "x = bytearray(3 * 2**30)\n"
SHARED = "import mmap\nx = mmap.mmap(-1, 3 * 2**30)\nfor i in range(0, len(x), 4096): x[i] = 1\n"
FORKS = "import os\nif not os.fork(): x = bytearray(2**30)\n"
EXPECTED = {
    "full": ("", 10, ""),
    "loop": ("while True: pass\n", 8, "was stopped after 2.00 s of CPU time"),
    "private": (PRIVATE, 8, "MemoryError"),
    "shared": (SHARED, 8, "Cannot allocate memory"),
    "forks": (FORKS, 8, "Operation not permitted"),
}

linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="for Linux with /proc")


@linux
@pytest.mark.parametrize("kind", ["VmData", "VmSize"])
def test_what_is_mapped_is_found_by_the_limits_alone(kind):
    limits = resource.getrlimit(resource.RLIMIT_AS), resource.getrlimit(resource.RLIMIT_DATA)
    by_limits = processes._lowest_limit(processes._LIMITS[kind])
    assert by_limits == pytest.approx(processes.mapped_bytes(kind), abs=2**20)
    assert limits == (
        resource.getrlimit(resource.RLIMIT_AS),
        resource.getrlimit(resource.RLIMIT_DATA),
    )


@linux
def test_a_childs_cpu_time_is_known_without_proc():
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        before = processes.cpu_seconds([], child.pid)
        give_up = time.monotonic() + 20
        while processes.cpu_seconds([], child.pid) < before + 0.1:
            assert time.monotonic() < give_up
            time.sleep(0.02)
    finally:
        child.kill()
        child.wait()
    assert processes.held_bytes(child.pid) == 0


@pytest.mark.weekly
def test_a_class_is_graded_where_proc_is_empty():
    folder = Path(tempfile.mkdtemp(prefix="u-"))
    try:
        toy.make_course(folder / "course")
        (folder / "class").mkdir()
        for name, (begin, *_) in EXPECTED.items():
            notebook = toy.submission(a11=begin + toy.AREA, a12=toy.DOUBLED, a21=toy.CUBE)
            (folder / "class" / f"{name}.ipynb").write_text(json.dumps(notebook))
        empty = 'mount -t tmpfs none /proc && exec "$@"'
        tried = subprocess.run(["unshare", "-m", "sh", "-c", empty, "sh", "true"])
        if tried.returncode:
            pytest.skip("this user may not mount over /proc")
        program = [sys.executable, "-c", RUN, str(folder), str(toy.HERE)]
        subprocess.run(["unshare", "-m", "sh", "-c", empty, "sh", *program], check=True)
        facts = json.loads((folder / "report" / "run.json").read_text())
        rows = {Path(row["name"]).stem: row["points"] for row in facts["rows"]}
        assert rows == {name: points for name, (_, points, _) in EXPECTED.items()}
        for name, (*_, said) in EXPECTED.items():
            assert said in (folder / "report" / "feedback" / f"{name}.ipynb.html").read_text()
    finally:
        shutil.rmtree(folder)
