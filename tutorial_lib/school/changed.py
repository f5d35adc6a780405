"""Tests that a change concerns: for `test` and `test --changed`. Standard library only."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tutorial_lib.school.bootstrap import SetupError

ALWAYS = ("tests/test_architecture.py", "tests/test_style.py")  # both read every file
# `test --changed` runs `build --check` first, which names each stale notebook on its own line.
SAME_AS_CHECK = "tests/test_architecture.py::test_every_notebook_is_what_its_source_gives"
# Where learners begin, what they build, and the labs of both; the others run when they change.
HANDFUL = ("course/0[04]_*.ipynb", "solutions/lab0[13]_*.ipynb")
FEW = 2  # files of tests for a module without one of its own
_NOTEBOOK = re.compile(r"(course|solutions)/[^/]+\.ipynb")
_READS_RECORDINGS = re.compile(r"^from tutorial_lib\.instruments.*\brecorded\b", re.MULTILINE)
_ANSWERS = re.compile(r"(?:labs/checks|solutions/answers)/(lab\d\d)/(?:ex(\d+)_(\d+))?.*")


def daily_notebooks(root: Path) -> list[str]:
    """List the notebooks that `test` runs: a handful, and those that differ from HEAD's parent.

    Where a recording differs, those that read recordings too. Without git, or at a first commit,
    the handful alone.
    """
    found = {path.relative_to(root).as_posix() for name in HANDFUL for path in root.glob(name)}
    with contextlib.suppress(SetupError):
        for path in changed_files(root, "HEAD~1"):
            found |= {path} if _NOTEBOOK.fullmatch(path) else _readers(root, path)
    return sorted(path for path in found if (root / path).exists())


def _readers(root: Path, path: str) -> set[str]:
    """Name the notebooks that read recordings, if the path is one of those."""
    sources = root.glob("course/source/*.py") if path.startswith("course/recorded/") else ()
    reading = [p.stem for p in sources if _READS_RECORDINGS.search(p.read_text("utf-8"))]
    return {f"course/{name}.ipynb" for name in reading}


def changed_files(root: Path, since: str = "HEAD") -> list[str]:
    """List the files that differ from a commit, new ones too, as paths from the root; asks git."""
    listed: list[str] = []
    for words in (["diff", "--name-only", since], ["ls-files", "--others", "--exclude-standard"]):
        try:
            done = subprocess.run(
                ["git", *words], cwd=root, capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise SetupError("--changed asks git what differs, and git cannot say.") from error
        listed += done.stdout.splitlines()
    return sorted(set(listed))


def pytest_runs(root: Path, files: Iterable[str]) -> list[list[str]]:
    """Arguments of the pytest runs that some changed files concern, paths from the root.

    A module's tests are the file that has its name, else the few that import it by name and use it
    most, else its package's; another file's are the few that name it most. An exercise's are its
    wrong answers and its lab's file. A notebook is executed.
    """
    files, there = list(files), sorted(root.glob("tests/test_*.py"))
    tests = {p.relative_to(root).as_posix(): p.read_text(encoding="utf-8") for p in there}
    concerned, exercises = set(ALWAYS), set()
    for path in files:
        if found := _ANSWERS.fullmatch(path):
            lab, *number = found.groups()
            exercises.add(f"{lab}-{'.'.join(number)}-" if all(number) else f"{lab}-")
            concerned.add(f"tests/test_{lab}.py")
        concerned |= {*_concerned(root, path, tests), *_readers(root, path)}
    paths = sorted(path for path in concerned if (root / path).exists())
    runs = [["--nbval", *paths]]
    if exercises:
        mine = f"({' or '.join(sorted(exercises))}) and not every_seed"
        runs.append(["tests/test_wrong_answers.py", "-m", "", "-k", mine])
    return runs


def _concerned(root: Path, path: str, tests: dict[str, str]) -> list[str]:
    """Name the tests of one file: few, since all that import a common module take minutes."""
    if path in tests or _NOTEBOOK.fullmatch(path):
        return [path]
    package, _, stem = path.removesuffix(".py").removesuffix("/__init__").rpartition("/")
    if not path.startswith("tutorial_lib/") or path.endswith(".md"):
        own = f"tests/test_{Path(path).stem.lower()}.py"
        saying = {test: text for test, text in tests.items() if stem in text}
        return [own] if own in tests else _most(saying, stem) if (root / path).exists() else []
    while package:  # a module that no test names is tested by its package's
        own = f"tests/test_{stem}.py"
        bearers = [*root.glob(f"tutorial_lib/**/{stem}.py"), *root.glob(f"tutorial_lib/**/{stem}")]
        its_room = re.search(rf"\b{package.rpartition('/')[2]}\b", tests.get(own, ""))
        if own in tests and (len(bearers) == 1 or its_room):  # else it may be a namesake's
            return [own]
        dotted = re.escape(package.replace("/", "."))
        imports = re.compile(
            rf"^ *(from {dotted}\.{stem} import|import {dotted}\.{stem}\b|"
            rf"from {dotted} import [^#\n]*\b{stem}\b)",
            re.MULTILINE,
        )
        using = {test: text for test, text in tests.items() if imports.search(text)}
        if using:
            return _most(using, f"{stem}.")
        package, _, stem = package.rpartition("/")
    return []


def _most(tests: dict[str, str], words: str) -> list[str]:
    """Name the few tests in which some words stand most often."""
    return sorted(tests, key=lambda test: -tests[test].count(words))[:FEW]
