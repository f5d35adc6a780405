"""A hundred hostile, broken, copied and honest submissions at once; weekly."""

from pathlib import Path

import hundred
import psutil
import pytest
import toy

pytestmark = pytest.mark.weekly
SUBMISSIONS = hundred.submissions()


def everything_below(*folders):
    return {p: p.stat().st_size for f in folders for p in f.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """The table, and what the batch left: files outside the report, and processes."""
    folder = tmp_path_factory.mktemp("hundred")
    toy.make_course(folder / "course")
    for name in ("class", "home"):
        (folder / name).mkdir()
    for name, (content, _) in SUBMISSIONS.items():
        (folder / "class" / name).write_bytes(content)
    watched = (folder / "class", folder / "course", folder / "home", toy.HERE)
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder / "home"))
        files = everything_below(*watched)
        places = folder / "course", folder / "class", folder / "report"
        table = toy.grade_toy(*places, seconds=2.0, memory_bytes=2**29)
        changed = everything_below(*watched).items() ^ files.items()
    left = [c for c in psutil.Process().children(recursive=True) if c.pid not in before]
    return table.set_index("name"), changed, left


def test_the_batch_ends_and_changes_nothing_outside(graded):
    table, changed, left = graded
    assert len(table) == len(SUBMISSIONS) > 100
    assert changed == set()
    assert left == []
    planted = Path("/tmp", "planted-by-a-submission")
    assert not planted.exists(), planted.unlink()
    assert not [p for p in psutil.process_iter() if "planted" in " ".join(_words(p))]


def _words(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.parametrize("name", SUBMISSIONS)
def test_each_gets_the_points_that_it_deserves(graded, name):
    row, deserved = graded[0].loc[name], SUBMISSIONS[name][1]
    if deserved is None:
        assert (row["status"], row["points"]) != ("graded", 10)
        assert (row["status"] == "graded", row["points"] > 0) == (False, False)
    else:
        assert (row["status"], tuple(row[["1.1", "1.2", "2.1"]])) == ("graded", deserved)
