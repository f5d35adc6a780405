"""The notebooks that the daily tests run. Standard library only."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

# Where learners begin, what they build, and the labs of both; the others run when they change.
HANDFUL = ("course/0[04]_*.ipynb", "solutions/lab0[13]_*.ipynb")
_NOTEBOOK = re.compile(r"(course|solutions)/[^/]+\.ipynb")
_READS_RECORDINGS = re.compile(r"^from tutorial_lib\.instruments.*\brecorded\b", re.MULTILINE)


def daily_notebooks(root: Path) -> list[str]:
    """List the notebooks that `test` runs: a handful, and those that differ from HEAD's parent.

    Where a recording differs, those that read recordings too. Without git, or at a first commit,
    the handful alone.
    """
    found = {path.relative_to(root).as_posix() for name in HANDFUL for path in root.glob(name)}
    for path in changed_files(root, "HEAD~1"):
        found |= {path} if _NOTEBOOK.fullmatch(path) else _readers(root, path)
    return sorted(path for path in found if (root / path).exists())


def _readers(root: Path, path: str) -> set[str]:
    """Name the notebooks that read recordings, if the path is one of those."""
    sources = root.glob("course/source/*.py") if path.startswith("course/recorded/") else ()
    reading = [p.stem for p in sources if _READS_RECORDINGS.search(p.read_text("utf-8"))]
    return {f"course/{name}.ipynb" for name in reading}


def changed_files(root: Path, since: str) -> list[str]:
    """List the files that differ from a commit, new ones too; none where git cannot say."""
    listed: list[str] = []
    for words in (["diff", "--name-only", since], ["ls-files", "--others", "--exclude-standard"]):
        try:
            done = subprocess.run(
                ["git", *words], cwd=root, capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            return []
        listed += done.stdout.splitlines()
    return sorted({*listed})
