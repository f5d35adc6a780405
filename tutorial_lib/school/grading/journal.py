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
from pathlib import Path
from typing import Any

import torch

from tutorial_lib.school.grading.errors import GradingError
from tutorial_lib.school.grading.judge import Verdict
from tutorial_lib.school.grading.lab import Lab
from tutorial_lib.school.grading.results import Graded

_LIBRARY = Path(__file__).resolve().parents[2]


def course_version(lab: Lab, import_path: Sequence[Path]) -> str:
    """Name the version of all that a result depends on, besides the submission and the seed."""
    digest = hashlib.sha256(torch.__version__.encode())
    files = [lab.path, lab.path.parents[1] / "labs" / lab.path.name]
    for folder in (_LIBRARY, *import_path):
        files += sorted(folder.rglob("*.py"))
    for file in files:
        if file.is_file():
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def as_data(result: Graded) -> dict[str, Any]:
    """Turn a result into what JSON can hold."""
    return dataclasses.asdict(result)


def _from_data(data: Mapping[str, Any]) -> Graded:
    verdicts = {name: Verdict(**verdict) for name, verdict in data["verdicts"].items()}
    return Graded(**{**data, "verdicts": verdicts})


def results_to_keep(out: Path, lab: Lab, version: str, names: Collection[str]) -> list[Graded]:
    """Read the results of an older report that a new run leaves as they are.

    Args:
        out: The folder of the report, which may not exist yet.
        lab: The lab of the new run.
        version: Of the course, in the new run.
        names: What is graded anew.

    Raises:
        GradingError: When the older report cannot go on in the new one.
    """
    facts = out / "run.json"
    if not facts.exists():
        return []
    try:
        older = json.loads(facts.read_text(encoding="utf-8"))
        same = (older["lab"], older["version"]) == (lab.name, version)
        results = [_from_data(entry) for entry in older["submissions"]] if same else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        results = None
    if results is None:
        raise GradingError(
            f"{out} holds a report of another lab or another version of the course, and only some "
            "submissions were asked for: grade all, or give another folder."
        )
    return [result for result in results if result.name not in names]


class Journal:
    """The results of a run so far, in a file beside its report, a line each.

    A run takes over what an earlier one of the same order left there, and its seed.

    Args:
        out: The folder of the report.
        order: What a result depends on besides the submission and the seed.
        seed: None for that of the earlier run; without one, a secret one is drawn.
    """

    def __init__(self, out: Path, order: Mapping[str, Any], seed: int | None) -> None:
        self.path = out.with_name(f"{out.name}.unfinished.jsonl")
        self._order = dict(order)
        lines = [line for line in self._lines() if line["order"] == self._order]
        if seed is None:
            seed = lines[-1]["seed"] if lines else secrets.randbelow(2**31)
        self.seed: int = seed
        self._done = {line["file"]: line["result"] for line in lines if line["seed"] == seed}
        self.taken_over = 0
        self._open = True
        self._lock = threading.Lock()

    def _lines(self) -> Iterator[dict[str, Any]]:
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            return
        for line in lines:
            # the last one may have been cut off
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                data = json.loads(line)
                data["result"] = _from_data(data["result"])
                yield {name: data[name] for name in ("order", "seed", "file", "result")}

    def earlier(self, content: bytes) -> Graded | None:
        """Find the result of a file that was graded before the earlier run was stopped."""
        result = self._done.get(hashlib.sha256(content).hexdigest())
        with self._lock:
            self.taken_over += result is not None
        return result

    def add(self, content: bytes, result: Graded) -> None:
        """Write a result down; one that says more of the machine than of the file is left out."""
        if result.status != "graded" or (result.ran_out_of_time and not result.alone):
            return
        line = {"order": self._order, "seed": self.seed}
        line |= {"file": hashlib.sha256(content).hexdigest(), "result": as_data(result)}
        # a line feed first: what an earlier run wrote last may have been cut off
        text = f"\n{json.dumps(line)}".encode()
        # a full disk is no reason to stop: the report will say so
        with self._lock, contextlib.suppress(OSError):
            if self._open:
                file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                try:
                    os.write(file, text)
                finally:
                    os.close(file)

    def close(self) -> None:
        """Write no more: what ends from now on was stopped."""
        with self._lock:
            self._open = False

    def remove(self) -> None:
        """Delete the file, since the report is written."""
        self.close()
        self.path.unlink(missing_ok=True)
