"""Results that outlive their run: of one that was stopped, and of an older report."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import secrets
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tutorial_lib.school.grading.errors import GradingError
from tutorial_lib.school.grading.judging.judge import Verdict
from tutorial_lib.school.grading.lab import Lab
from tutorial_lib.school.grading.results import Graded

_LIBRARY = Path(__file__).resolve().parents[2]


def library_version(import_path: Sequence[Path]) -> str:
    """Name the version of the code that grades: of torch, of this library and of other checks."""
    digest = hashlib.sha256(torch.__version__.encode())
    for folder in (_LIBRARY, *import_path):
        for file in sorted(folder.rglob("*.py")):
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def course_version(lab: Lab, import_path: Sequence[Path]) -> str:
    """Name the version of all that a result depends on, besides the submission and the seed."""
    digest = hashlib.sha256(library_version(import_path).encode())
    for file in (lab.path, lab.path.parents[1] / "labs" / lab.path.name):
        if file.is_file():
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _from_data(data: Mapping[str, Any]) -> Graded:
    verdicts = {name: Verdict(**verdict) for name, verdict in data["verdicts"].items()}
    return Graded(**{**data, "verdicts": verdicts})


def _results(facts: Mapping[str, Any]) -> list[Graded]:
    return [_from_data(entry) for entry in facts.get("submissions", ())]


def digest_of(content: bytes) -> str:
    """Name a file by its content."""
    return hashlib.sha256(content).hexdigest()


class Journal:
    """The results that a run need not find again, and its own so far, in a file beside its report.

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
        drawn = secrets.randbelow(2**31)
        seeds = [one.seed for one in lines[::-1] if one.seed is not None]
        self.seed: int = seed if seed is not None else (seeds or [drawn])[0]
        report = self._report("limits", "lab", "version")
        self.layers: Sequence[str] = report.get("layers", ())  # of the older report's run
        earlier = [*([] if again else _results(report)), *lines]
        self._done = {one.file: one for one in earlier if one.file and seed in (None, one.seed)}
        self._open = True
        self._lock = threading.Lock()

    def _lines(self) -> Iterator[Graded]:
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            return
        for line in lines:
            # the last one may have been cut off
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                data = json.loads(line)
                if data["order"] == self._order:
                    yield _from_data(data["result"])

    def _report(self, *alike: str) -> Mapping[str, Any]:
        """Read the older report's facts; empty unless it agrees in these parts of the order."""
        try:
            facts: dict[str, Any] = json.loads((self._out / "run.json").read_text("utf-8"))
            if all(facts[name] == self._order[name] for name in alike) and _results(facts):
                return facts
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        return {}

    def kept(self, names: Collection[str]) -> list[Graded]:
        """Give the results of the older report that a run of a few submissions leaves alone.

        Args:
            names: What is graded anew.

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

    def earlier(self, content: bytes) -> Graded | None:
        """Find the result of a file that an earlier run has graded."""
        return self._done.get(digest_of(content))

    def add(self, content: bytes, result: Graded) -> Graded:
        """Write a result down, and give it back with the name of the file's content.

        One that says more of the machine than of the file has no such name, and is not written.
        """
        if result.status != "graded" or (result.ran_out_of_time and not result.alone):
            return result
        result = replace(result, file=digest_of(content))
        # a line feed first: what an earlier run wrote last may have been cut off
        text = (
            f"\n{json.dumps({'order': self._order, 'result': dataclasses.asdict(result)})}".encode()
        )
        # a full disk is no reason to stop: the report will say so
        with self._lock, contextlib.suppress(OSError):
            if self._open:
                file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                try:
                    os.write(file, text)
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
