"""`test --changed`: which tests a change concerns."""

import subprocess

import pytest

from tutorial_lib.school import changed
from tutorial_lib.school.bootstrap import SetupError


def runs(root, *files):
    return changed.pytest_runs(root, files)


@pytest.mark.parametrize(
    ("path", "concerned", "not_concerned"),
    [
        ("tutorial_lib/units.py", "tests/test_units.py", "tests/test_plan_fit.py"),
        ("tutorial_lib/instruments/cap.py", "tests/test_cap.py", "tests/test_units.py"),
        ("tutorial_lib/checks/given/half.py", "tests/test_lab_checks.py", "tests/test_vit.py"),
        (
            "tutorial_lib/instruments/ranks/__init__.py",
            "tests/test_ranks.py",
            "tests/test_units.py",
        ),
        (
            "tutorial_lib/instruments/training/step.py",
            "tests/test_training.py",
            "tests/test_cap.py",
        ),
        ("tutorial_lib/memory/lines.py", "tests/test_meter.py", "tests/test_plan_fit.py"),
        (
            "solutions/grader/report/pages.py",
            "tests/test_grading_report.py",
            "tests/test_report.py",
        ),
        ("README.md", "tests/test_readme.py", "tests/test_authoring.py"),
        ("tests/test_cap.py", "tests/test_cap.py", "tests/test_units.py"),
        (
            "course/recorded/predicted.json",
            "course/06b_common_advice.ipynb",
            "course/04_checkpoint_from_scratch.ipynb",
        ),
        ("labs/lab01_ledger.ipynb", "tests/test_style.py", "tests/test_lab01.py"),
        ("course/00_start_here.ipynb", "course/00_start_here.ipynb", "tests/test_units.py"),
    ],
)
def test_the_tests_of_a_file(root, path, concerned, not_concerned):
    (found,) = runs(root, path)
    assert concerned in found
    assert not_concerned not in found


def test_a_module_has_a_test_and_few(root):
    folders = {path.parent: path for path in root.glob("tutorial_lib/*/**/*.py")}
    for path in (path.relative_to(root).as_posix() for path in folders.values()):
        found, *_ = runs(root, path)
        assert 0 < len(set(found) - {"--nbval", *changed.ALWAYS}) <= changed.FEW, path


def test_an_exercise_has_its_wrong_answers_run(root):
    first, second = runs(root, "labs/checks/lab06/ex6_3.py", "README.md")
    assert "tests/test_lab06.py" in first
    all_once = ["tests/test_wrong_answers.py", "-m", "", "-k"]
    assert second == [*all_once, "(lab06-6.3-) and not every_seed"]
    *_, second = runs(root, "solutions/answers/lab01/ex1_2.py")
    assert second[-1] == "(lab01-1.2-) and not every_seed"


def test_nothing_changed_leaves_the_tests_that_read_every_file(root):
    assert runs(root) == [["--nbval", *sorted(changed.ALWAYS)]]


def test_a_file_that_was_deleted_is_not_run(root):
    assert runs(root, "tests/test_gone.py") == runs(root)


def test_git_says_what_differs(tmp_path):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    (tmp_path / "kept.py").write_text("1")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    assert changed.changed_files(tmp_path) == []
    (tmp_path / "kept.py").write_text("2")
    (tmp_path / "new.py").write_text("3")
    assert changed.changed_files(tmp_path) == ["kept.py", "new.py"]


def test_each_day_a_handful_of_notebooks_is_run_and_those_that_changed(tmp_path):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    (tmp_path / "course").mkdir()
    names = ("04_a", "09_b", "10_c", "11_d")
    for name in names:
        (tmp_path / f"course/{name}.ipynb").write_text("1")
    assert changed.daily_notebooks(tmp_path) == ["course/04_a.ipynb"]  # no git
    for number, name in enumerate(names[1:]):
        (tmp_path / f"course/{name}.ipynb").write_text("2")
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", str(number)]):
            subprocess.run([*git, *words], cwd=tmp_path, check=True)
    (tmp_path / "course/09_b.ipynb").write_text("3")
    assert changed.daily_notebooks(tmp_path) == [
        f"course/{name}.ipynb" for name in ("04_a", "09_b", "11_d")
    ]
    for folder in ("recorded", "source"):
        (tmp_path / "course" / folder).mkdir()
    (tmp_path / "course/source/10_c.py").write_text(
        "from tutorial_lib.instruments import recorded, segments"
    )
    (tmp_path / "course/recorded/rows.csv").write_text("4")
    assert "course/10_c.ipynb" in changed.daily_notebooks(tmp_path)


def test_a_folder_without_git_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(SetupError, match="asks git what differs"):
        changed.changed_files(tmp_path)
