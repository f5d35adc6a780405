"""Answers of a submission, and the steps by which a student's process runs them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NotRequired, Self, TypedDict

from solutions.grader.lab import Lab

NOT_PYTHON = "not Python"  # a finding


@dataclass(frozen=True)
class Part:
    """A cell of the student's that is run for an exercise."""

    source: str
    own: bool = False  # beside the answer, such as a cell of helper functions


@dataclass(frozen=True)
class Answers:
    """What a submission says; all but the notes and changed cells by exercise."""

    # what is run, in order; absent where there is no answer
    parts: dict[str, list[Part]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)  # why there is no answer
    notes: list[str] = field(default_factory=list)  # for the student, about the rest of the file
    edited: dict[str, str] = field(default_factory=dict)  # changed cells of the course, by their id
    # what a person should read: line, what stands there, and why
    findings: dict[str, list[tuple[int, str, str]]] = field(default_factory=dict)
    cuts: dict[str, list[str]] = field(default_factory=dict)  # what of the `student_steps` is run
    structures: dict[str, list[int]] = field(default_factory=dict)  # to find answers that are alike

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Make answers from what `dataclasses.asdict` gave, and JSON gave back."""
        parts = {name: [Part(**part) for part in some] for name, some in data["parts"].items()}
        return cls(**{**data, "parts": parts})

    @property
    def sources(self) -> dict[str, str]:
        """Return the student's answer by exercise, without the cells beside it."""
        return {
            number: "\n\n".join(part.source for part in parts if not part.own)
            for number, parts in self.parts.items()
        }


class Step(TypedDict):
    """A cell that a student's process has: one of the course's set-up, or of the student's."""

    exercise: str | None  # which one it answers
    source: str
    file: str  # name for its lines in messages
    group: NotRequired[str]  # of a student's cell: the exercise that it is run for
    keep: NotRequired[list[str]]  # of one that answers nothing: names that it may not define anew


class Bundle(TypedDict):
    """What a session runs: the judge writes it, `start_session` reads it."""

    steps: list[Step]  # cells of course and student, in order
    cuts: dict[str, list[str]]  # by exercise: the steps' sources, without what it does not need
    problems: dict[str, str]  # by exercise: why there is no answer


def one_part_each(sources: dict[str, str]) -> Answers:
    """Make answers of one cell each, by exercise."""
    return Answers({number: [Part(source)] for number, source in sources.items()})


def student_steps(lab: Lab, answers: Answers) -> list[Step]:
    """List the cells that a student's process has, in order."""
    steps: list[Step] = []
    answered: set[str] = set()
    for cell in lab.cells:
        if cell.kind != "code":
            continue
        if cell.mark is None:
            steps.append(_step(cell.source, f"<set-up {len(steps)}>"))
            if edited := answers.edited.get(cell.names[0] if cell.names else ""):
                steps.append(
                    _step(edited, f"<own cell {len(steps)}>", keep=lab.setup_names | answered)
                )
        number = cell.number or ""
        for place, part in enumerate(answers.parts.get(number, ())):
            if part.own:
                step = _step(part.source, f"<own cell {len(steps)}>", keep=answered)
            else:
                more = f", cell {place + 1}" if place else ""
                step = _step(part.source, f"<exercise {number}{more}>", number)
            steps.append(step | {"group": number})
        answered |= set(lab.answers[number].names) if number in answers.parts else set()
    return steps


def _step(
    source: str, file: str, exercise: str | None = None, keep: Iterable[str] | None = None
) -> Step:
    step: Step = {"exercise": exercise, "source": source, "file": file}
    return step if keep is None else step | {"keep": sorted(keep)}
