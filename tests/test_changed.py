"""The notebooks that the daily tests run: a handful, and those that changed."""

import subprocess

from tutorial_lib.school.commands import test as changed


def commit(folder, message):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", message]):
        subprocess.run([*git, *words], cwd=folder, check=True)


def test_git_says_what_differs(tmp_path):
    (tmp_path / "kept.py").write_text("1")
    commit(tmp_path, "first")
    assert changed.changed_files(tmp_path, "HEAD") == []
    (tmp_path / "kept.py").write_text("2")
    (tmp_path / "new.py").write_text("3")
    assert changed.changed_files(tmp_path, "HEAD") == ["kept.py", "new.py"]


def test_each_day_a_handful_of_notebooks_is_run_and_those_that_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "course").mkdir()
    names = ("04_a", "09_b", "10_c", "11_d")
    for name in names:
        (tmp_path / f"course/{name}.ipynb").write_text("1")
    assert changed.daily_notebooks(tmp_path) == ["course/04_a.ipynb"]  # no git
    for number, name in enumerate(names[1:]):
        (tmp_path / f"course/{name}.ipynb").write_text("2")
        commit(tmp_path, str(number))
    (tmp_path / "course/09_b.ipynb").write_text("3")
    assert changed.daily_notebooks(tmp_path) == [
        f"course/{name}.ipynb" for name in ("04_a", "09_b", "11_d")
    ]
