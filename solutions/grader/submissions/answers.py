"""Answers of a submission, written by anybody: matched with the exercises, as steps to be run."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NotRequired, TypedDict

from solutions.grader import NotGradable, words
from solutions.grader.lab import MOST_CHARACTERS, AnswerCell, Cell, Lab, split_at_marks
from solutions.grader.submissions.slice_cells import possible_names

NOT_PYTHON = "not Python"  # a finding
# By lines, without parsing: parsing hostile text can end the process.
_DEFINITION = re.compile(r"(?:async )?(?:def|class) +(\w+)")
_IMPORT = re.compile(r"(?:import|from) .+")
_ASSIGNMENT = re.compile(r"(\w+(?:[ \t]*,[ \t]*\w+)*)[ \t]*(?::[^=\n]*)?=(?!=)")
_MOST_NOTES = 20
_MOST_OWN_CHARACTERS = 4 * MOST_CHARACTERS  # of cells that answer no exercise, together


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


@dataclass(frozen=True)
class _Placed:
    """A code cell of a submission, and what it is: an answer, a cell of the course, or neither."""

    cell: Cell
    exercise: str | None
    course: Cell | None


def match_answers(lab: Lab, cells: Sequence[Cell]) -> Answers:
    """Find the student's answers, and the cells of their own that go before them.

    A cell belongs to an exercise by its cell id, nbgrader's grade_id, Colab's id, or the mark in
    its first line, also where cells were merged. All that are filled in are run, in their order.
    Where none of them defines what is asked for, the last other cell that does is the answer.
    Before it go all cells of the student's own above it, and up to the next cell of the course. A
    cell that is too long is not read. NotGradable is raised when no cell belongs to any exercise.
    """
    cells = [part for cell in cells for part in split_at_marks(cell)]
    placed, answers = list(_placed(lab, cells)), Answers()
    own, parts = _own_cells(placed), dict[str, list[tuple[str, bool]]]()
    for number, answer in lab.answers.items():
        found = _answering(answer, placed)
        if not found:
            answers.problems[number] = _what_is_missing(number, lab, cells)
            continue
        if all(placed[i].exercise != number for i in found):
            answers.notes.append(words("found by its name", number=number))
        elif len(found) > 1:
            answers.notes.append(words("several cells", number=number, count=len(found)))
        rest = range(max(found) + 1, len(placed))
        end = next((i for i in rest if placed[i].exercise or placed[i].course), len(placed))
        beside = [i for i in own if i < end and i not in found]
        own = [i for i in own if i >= end]
        if any(_defines(answer, placed[i].cell) for i in own):
            answers.notes.append(words("defined below", number=number))
        parts[number] = [(placed[i].cell.source, i in beside) for i in sorted([*beside, *found])]
    if not parts and not any(one.exercise for one in _placed(lab, cells, kinds=None)):
        others, said = list(dict.fromkeys(cell.number for cell in cells if cell.number)), ""
        if others:
            this = int(others[0].partition(".")[0])
            said = f": this is lab {this:02}, with answers to {', '.join(others)}"
        raise NotGradable("nothing to grade", words("other lab", lab=lab.name, others=said))
    edited = _compare_with_the_course(placed, answers.notes)
    answers.steps.extend(student_steps(lab, parts, edited))
    return answers


def _placed(
    lab: Lab, cells: Iterable[Cell], kinds: Sequence[str] | None = ("code",)
) -> Iterable[_Placed]:
    """Say of each cell what it is; of those of all kinds when None."""
    exercises = {answer.id: answer.exercise for answer in lab.answers.values()}
    both = [*lab.cells, *lab.given]  # a set-up cell names its notebook's own folder
    of_course = [cell for cell in both if cell.kind == "code" and not cell.number]
    pristine = {name: cell for cell in of_course for name in cell.names}
    unmarked = {_words(cell.source): cell for cell in of_course if cell.mark is None}
    for cell in cells:
        if kinds is None or cell.kind in kinds:
            by_name = (exercises[name] for name in cell.names if name in exercises)
            number = next(by_name, cell.number)
            course = None if cell.is_too_long else unmarked.get(_words(cell.source))
            named = (pristine[name] for name in cell.names if name in pristine)
            course = course or next(named, cell if cell.mark and not cell.number else None)
            known = number in lab.answers
            yield _Placed(cell, number if known else None, None if known else course)


def _words(source: str) -> tuple[str, ...]:
    return tuple(source.split())


def _own_cells(placed: Sequence[_Placed]) -> list[int]:
    """List the student's own cells, by place; not more of them than are worth reading."""
    own, characters = [], 0
    for i, one in enumerate(placed):
        is_own = not one.exercise and not one.course and not one.cell.is_too_long
        if is_own and one.cell.source.strip():
            characters += len(one.cell.source)
            if characters <= _MOST_OWN_CHARACTERS:
                own.append(i)
    return own


def _answering(answer: AnswerCell, placed: Sequence[_Placed]) -> list[int]:
    """List the cells that answer an exercise, by place; of blank ones the last, if no other."""
    readable = [i for i, one in enumerate(placed) if not one.cell.is_too_long]
    marked = [i for i in readable if placed[i].exercise == answer.exercise]
    blank = None if answer.blank is None else _words(answer.blank)
    filled = [i for i in marked if _words(placed[i].cell.source) != blank]
    if any(_defines(answer, placed[i].cell) for i in filled):
        return filled
    unmarked = [
        i
        for i in readable
        if not placed[i].course
        # the answer to another exercise only where cells were merged, or their texts exchanged
        and (not placed[i].exercise or filled or not marked)
        and _defines(answer, placed[i].cell)
    ]
    return sorted({*filled, *unmarked[-1:]}) or marked[-1:]


def _defines(answer: AnswerCell, cell: Cell) -> bool:
    """Tell whether a cell seems to define what an exercise asks for: by its lines, not parsed."""
    names: set[str] = set()
    for line in cell.source.splitlines():
        if found := _DEFINITION.match(line) or _ASSIGNMENT.match(line):
            names |= possible_names(found[1])
        elif _IMPORT.match(line):
            names |= possible_names(line)
    return not names.isdisjoint(answer.names)


def _what_is_missing(number: str, lab: Lab, cells: Sequence[Cell]) -> str:
    found = [one.cell for one in _placed(lab, cells, kinds=None) if one.exercise == number]
    if found and found[-1].kind == "code":
        return words("too long", number=number, most=MOST_CHARACTERS)
    return words("not code" if found else "no answer", number=number, kind=found and found[-1].kind)


def _compare_with_the_course(placed: Sequence[_Placed], said: list[str]) -> dict[str, str]:
    """Collect changed set-up cells by their id, and say what was not read or not used."""
    edited, notes, checks_differ = dict[str, str](), list[str](), False
    for one in placed:
        if one.cell.is_too_long and not one.exercise:
            notes.append(words("long cell", most=MOST_CHARACTERS))
        elif one.course and _words(one.cell.source) != _words(one.course.source):
            if one.course.mark:
                checks_differ = True
            elif one.course.names:
                edited[one.course.names[0]] = one.cell.source
    if checks_differ:
        notes.append(words("other checks"))
    said.extend(notes[:_MOST_NOTES])
    return edited
