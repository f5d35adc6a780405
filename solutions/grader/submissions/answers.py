"""Answers of a submission, as the steps by which a student's process runs them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NotRequired, TypedDict

from solutions.grader.lab import Lab

NOT_PYTHON = "not Python"  # a finding


class Step(TypedDict):
    """A cell that a student's process has: one of the course's set-up, or of the student's."""

    exercise: str | None  # which one it answers
    source: str
    file: str  # name for its lines in messages
    group: NotRequired[str]  # of a student's cell: the exercise that it is run for
    keep: NotRequired[list[str]]  # of one that answers nothing: names that it may not define anew


@dataclass(frozen=True)
class Answers:
    """What a submission says; all but the steps and notes by exercise."""

    steps: list[Step] = field(default_factory=list)  # cells of course and student, in order
    problems: dict[str, str] = field(default_factory=dict)  # why there is no answer
    notes: list[str] = field(default_factory=list)  # for the student, about the rest of the file
    # what a person should read: line, what stands there, and why
    findings: dict[str, list[tuple[int, str, str]]] = field(default_factory=dict)
    cuts: dict[str, list[str]] = field(default_factory=dict)  # what of the steps is run
    structures: dict[str, list[int]] = field(default_factory=dict)  # to find answers that are alike

    def cells(self, *, own: bool = True) -> dict[str, list[str]]:
        """Return the student's cells by exercise, with those of their own beside the answer."""
        cells: dict[str, list[str]] = {}
        for step in self.steps:
            if "group" in step and (own or step["exercise"]):
                cells.setdefault(step["group"], []).append(step["source"])
        return cells

    @property
    def sources(self) -> dict[str, str]:
        """Return the student's answer by exercise, without the cells beside it."""
        return {number: "\n\n".join(some) for number, some in self.cells(own=False).items()}


def plain_answers(lab: Lab, sources: Mapping[str, str]) -> Answers:
    """Make answers of one cell each, by exercise."""
    return Answers(student_steps(lab, {name: [(one, False)] for name, one in sources.items()}, {}))


def student_steps(
    lab: Lab, cells: Mapping[str, list[tuple[str, bool]]], edited: Mapping[str, str]
) -> list[Step]:
    """List the cells that a student's process has, in order.

    `cells` are the student's by exercise, with whether each is beside the answer; `edited` are
    changed cells of the course, by their id.
    """
    steps: list[Step] = []
    answered: set[str] = set()

    def add(source: str, what: str, keep: Iterable[str] | None = None) -> Step:
        step: Step = {"exercise": None, "source": source, "file": f"<{what} {len(steps)}>"}
        steps.append(step if keep is None else step | {"keep": sorted(keep)})
        return steps[-1]

    for cell in lab.cells:
        if cell.kind != "code":
            continue
        if cell.mark is None:
            add(cell.source, "set-up")
            if changed := edited.get(cell.names[0] if cell.names else ""):
                add(changed, "own cell", lab.setup_names | answered)
        number = cell.number or ""
        for place, (source, own) in enumerate(cells.get(number, ())):
            step = add(source, "own cell", answered if own else None)
            step["group"] = number
            if not own:
                more = f", cell {place + 1}" if place else ""
                step["exercise"], step["file"] = number, f"<exercise {number}{more}>"
        answered |= set(lab.answers[number].names) if number in cells else set()
    return steps
