"""Results that outlive their run: of one that was stopped, and of an older report."""

import contextlib
import hashlib
import json
import os
import secrets
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from solutions.grader.errors import GradingError
from solutions.grader.lab import Lab
from solutions.grader.results import Graded, Submission

_COURSE = Path(__file__).resolve().parents[2]
_FOLDERS = ("tutorial_lib", "labs/checks", "solutions/grader", "course/recorded/rows")
_CODE = [_COURSE / name for name in _FOLDERS]
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)


def _digest(files: Sequence[Path], *, first: str) -> str:
    digest = hashlib.sha256(first.encode())
    for file in files:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def library_version(import_path: Sequence[Path]) -> str:
    """Name the version of the code that grades: of torch, of this library and of other checks."""
    folders = (*_CODE, *import_path)
    kinds = ("*.py", "*.toml")  # tables of the code are data beside it
    files = [file for folder in folders for kind in kinds for file in sorted(folder.rglob(kind))]
    return _digest(files, first=torch.__version__)


def course_version(lab: Lab, import_path: Sequence[Path]) -> str:
    """Name the version of all that a result depends on, besides the submission and the seed."""
    twins = (lab.path, lab.path.parents[1] / "labs" / lab.path.name)
    return _digest([file for file in twins if file.is_file()], first=library_version(import_path))


class Journal:
    """Results that a run need not find again, and its own so far, in a file beside its report.

    A run takes over what an earlier one of the same order found out about the same content, be it
    in its report or, if it was stopped, in that file. A result keeps its own seed.

    Args:
        out: The folder of the report.
        order: What a result depends on besides the submission and the seed.
        seed: Of all results; None for that of the run that was stopped, else a new and secret one.
        again: Whether what stands in the report is graded once more.
    """

    def __init__(
        self, out: Path, order: Mapping[str, Any], seed: int | None, *, again: bool = False
    ) -> None:
        self.path = out.with_name(f"{out.name}.unfinished.jsonl")
        self._out, self._order = out, dict(order)
        lines = list(self._lines())
        seeds = [seed, *(one.seed for one in lines[::-1]), secrets.randbelow(2**31)]
        self.seed: int = next(one for one in seeds if one is not None)
        report = self._report("limits", "lab", "version")
        self.layers: Sequence[str] = report.get("layers", ())  # of the older report's run
        earlier = [*([] if again else _results(report)), *lines]
        self._done = {one.file: one for one in earlier if one.file and seed in (None, one.seed)}
        self.taken_over = 0
        self._open = True
        self._lock = threading.Lock()

    def _lines(self) -> Iterator[Graded]:
        with contextlib.suppress(OSError, ValueError):
            for line in self.path.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(*_UNREADABLE):  # the last one may have been cut off
                    data = json.loads(line)
                    if data["order"] == self._order:
                        yield Graded.from_json(data["result"])

    def _report(self, *alike: str) -> Mapping[str, Any]:
        """Read the older report's facts; empty unless it agrees in these parts of the order."""
        with contextlib.suppress(*_UNREADABLE):
            facts: dict[str, Any] = json.loads((self._out / "run.json").read_text("utf-8"))
            if all(facts[name] == self._order[name] for name in alike) and _results(facts):
                return facts
        return {}

    def facts(self) -> dict[str, Any]:
        """Return what `run.json` says about the order."""
        return self._order | {"seed": self.seed, "taken_over": self.taken_over}

    def kept(self, names: Collection[str]) -> list[Graded]:
        """Return the results of the older report that a run of a few submissions leaves alone.

        Raises:
            GradingError: When the older report cannot go on in the new one.
        """
        if not (self._out / "run.json").exists():
            return []
        results = _results(self._report("lab", "version"))
        if not results:
            raise GradingError(
                f"{self._out} holds a report of another lab or another version of the course, and "
                "only some submissions were asked for: grade all, or give another folder."
            )
        return [result for result in results if result.name not in names]

    def take_over(self, submissions: Sequence[Submission]) -> list[Submission]:
        """Return each submission with the result of an earlier run that graded the same content."""

        def earlier(one: Submission) -> Submission:
            done = self._done.get(one.digest)
            return replace(one, result=replace(done, name=one.name) if done else None)

        found = [one.through(earlier) for one in submissions]
        self.taken_over = sum(1 for one in found if one.result and one.result.file)
        if self.taken_over:
            print(f"Graded before, and unchanged: {self.taken_over}.", file=sys.stderr)
        return found

    def add(self, digest: str, result: Graded) -> Graded:
        """Write a result down, and give it back with the digest of the file's content.

        One that says more of the machine than of the file gets no digest, and is not written.
        """
        if result.status != "graded" or (result.ran_out_of_time and not result.alone):
            return result
        result = replace(result, file=digest)
        line = json.dumps({"order": self._order, "result": asdict(result)})
        # a full disk is no reason to stop: the report will say so
        with self._lock, contextlib.suppress(OSError):
            if self._open:
                file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                try:
                    # a line feed first: what an earlier run wrote last may have been cut off
                    os.write(file, f"\n{line}".encode())
                finally:
                    os.close(file)
        return result

    def close(self) -> None:
        """Write no more: what ends from now on was stopped."""
        with self._lock:
            self._open = False

    def remove(self) -> None:
        """Delete the file, since the report is written."""
        self.close()
        self.path.unlink(missing_ok=True)


def _results(facts: Mapping[str, Any]) -> list[Graded]:
    return [Graded.from_json(entry) for entry in facts.get("submissions", ())]
