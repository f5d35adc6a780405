"""Results of grading, and those that outlive their run: it was stopped, or left a report."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from solutions.grader import GradingError, words
from solutions.grader.lab import Lab
from solutions.grader.submissions.answers import NOT_PYTHON, Answers

_COURSE = Path(__file__).resolve().parents[2]
_FOLDERS = ("tutorial_lib", "labs/checks", "solutions/grader", "course/recorded/rows")
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True)
class Verdict:
    """The judge's decision about one check cell."""

    passed: bool
    evidence: str
    timed_out: bool = False


@dataclass(frozen=True)
class Graded:
    """Result of one submission, graded or not."""

    name: str  # relative to the class's folder
    status: str  # `graded`, or why not, in a word or two
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)  # by check cell
    reason: str = ""  # one sentence when not graded
    notes: Sequence[str] = ()  # what the student should know about the notebook
    findings: Mapping[str, Sequence[str]] = field(default_factory=dict)  # for the instructor alone
    sources: Mapping[str, str] = field(default_factory=dict)  # the student's own, by exercise
    structures: Mapping[str, Sequence[int]] = field(default_factory=dict)  # of these
    seconds: float = 0.0  # what judging it took
    seed: int | None = None  # the one that the checks' cases were drawn from
    alone: bool = False  # no other submission was judged at the same time
    file: str = ""  # digest of what was graded; empty where it should be graded again

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Graded:
        """Make a result from what `dataclasses.asdict` gave, and JSON gave back."""
        verdicts = {name: Verdict(**verdict) for name, verdict in data["verdicts"].items()}
        return cls(**{**data, "verdicts": verdicts})

    @property
    def ran_out_of_time(self) -> bool:
        """Tell whether a result may say more of a busy machine than of the submission."""
        return self.status == "timed out" or any(one.timed_out for one in self.verdicts.values())

    def with_findings(self, lab: Lab, answers: Answers) -> Graded:
        """Add what a person should read in the answers."""
        lines: dict[str, list[str]] = {}
        for number, found in answers.findings.items():
            for line, what, why in found:
                # a slip that cost all points is nothing to read
                if what != NOT_PYTHON or self.points(lab, number):
                    place = f"line {line}" if line else "a cell beside the answer"
                    lines.setdefault(number, []).append(f"{place}: {what} {why}.")
        return replace(self, findings=lines, structures=answers.structures)

    def points(self, lab: Lab, exercise: str | None = None) -> int:
        """Sum the points of the checks that passed, of one exercise or of all."""
        checks = [one for one in lab.checks if exercise in (None, one.exercise)]
        passed = {name for name, verdict in self.verdicts.items() if verdict.passed}
        return sum(check.points for check in checks if check.id in passed)

    def grade(self, lab: Lab, exercise: str | None = None) -> int | None:
        """Return the points for a score sheet: None where nothing was graded, which isn't 0."""
        return self.points(lab, exercise) if self.status == "graded" else None

    def message(self, lab: Lab, exercise: str) -> str:
        """Return what the first check of an exercise said that did not pass; empty when all did."""
        checks = [check.id for check in lab.checks if check.exercise == exercise]
        said = [self.verdicts[name] for name in checks if name in self.verdicts]
        failed = [verdict.evidence for verdict in said if not verdict.passed]
        return (failed[0] or "The check did not pass.") if failed else ""


def course_version(import_path: Sequence[Path], lab: Lab | None = None) -> str:
    """Name the version of what a result depends on: the code, torch, and both twins of a lab."""
    folders = (*(_COURSE / name for name in _FOLDERS), *import_path)
    kinds = ("*.py", "*.toml")  # tables of the code are data beside it
    files = [file for folder in folders for kind in kinds for file in sorted(folder.rglob(kind))]
    if lab:
        files += [lab.path, lab.path.parents[1] / "labs" / lab.path.name]
    digest = hashlib.sha256(torch.__version__.encode())
    for file in filter(Path.is_file, files):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


class Journal:
    """Results that a run need not find again, and its own so far, in a file beside its report.

    A run takes over what an earlier one of the same `order` found out about the same content, be it
    in its report in `out` or, if it was stopped, in that file, whose lines are made as `run.json`
    is. A result keeps its own seed. Without one it's that of the stopped run, else new and secret.
    `again` grades once more what stands in the report.
    """

    def __init__(
        self, out: Path, order: Mapping[str, Any], seed: int | None, *, again: bool = False
    ) -> None:
        self.path = out.with_name(f"{out.name}.unfinished.jsonl")
        self._report, self.order = out / "run.json", dict(order)
        lines = [one for line in _read(self.path).split("\n") for one in _results(line, order)]
        seeds = [seed, *(one.seed for one in lines[::-1]), secrets.randbelow(2**31)]
        self.seed: int = next(one for one in seeds if one is not None)
        older = [] if again else _results(_read(self._report), order)
        self.done = {one.file: one for one in [*older, *lines] if seed in (None, one.seed)}
        self._open, self._lock = True, threading.Lock()

    @property
    def layers(self) -> Sequence[str]:
        """Return what held a submission back in the older report's run; empty without one."""
        text = _read(self._report)
        layers: Sequence[str] = json.loads(text)["layers"] if _results(text, self.order) else ()
        return layers

    def kept(self, names: Collection[str]) -> list[Graded]:
        """Return the results of the older report that a run of a few submissions leaves alone.

        It's a GradingError when that report cannot go on in the new one.
        """
        alike = {name: self.order[name] for name in ("lab", "version")}
        results = _results(_read(self._report), alike)
        if self._report.exists() and not results:
            raise GradingError(words("other report", folder=self._report.parent))
        return [result for result in results if result.name not in names]

    def earlier(self, name: str, digest: str) -> Graded | None:
        """Return what is known of a file with this content."""
        return replace(self.done[digest], name=name) if digest in self.done else None

    def add(self, digest: str, result: Graded) -> Graded:
        """Write a result down, and return it with the digest of the file's content.

        One that says more of the machine than of the file gets no digest, and is not written.
        """
        if result.status != "graded" or (result.ran_out_of_time and not result.alone):
            return result
        result = replace(result, file=digest)
        line = json.dumps(self.order | {"submissions": [asdict(result)]})
        # a full disk is no reason to stop: the report will say so
        with self._lock, contextlib.suppress(OSError):
            if self._open:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
                with os.fdopen(os.open(self.path, flags, 0o600), "w") as file:
                    # a line feed first: what an earlier run wrote last may have been cut off
                    file.write(f"\n{line}")
        return result

    def close(self, *, remove: bool = False) -> None:
        """Write no more: what ends from now on was stopped. Delete the file behind a report."""
        with self._lock:
            self._open = False
        if remove:
            self.path.unlink(missing_ok=True)


def _read(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return path.read_text(encoding="utf-8")
    return ""


def _results(text: str, order: Mapping[str, Any]) -> list[Graded]:
    """List the results that a run has written; none of another order, or where it was cut off."""
    with contextlib.suppress(*_UNREADABLE):
        facts = json.loads(text)
        if all(facts[name] == value for name, value in order.items()):
            return [Graded.from_json(one) for one in facts["submissions"]]
    return []
