"""Matching the cells of a submission with the exercises: cells written by anybody."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tutorial_lib.school.grading.cells import MOST_CHARACTERS, Cell
from tutorial_lib.school.grading.errors import NotGradable
from tutorial_lib.school.grading.lab import AnswerCell, Lab
from tutorial_lib.school.grading.needs import possible_names
from tutorial_lib.school.grading.review import unusual_words

_ALMOST_A_MARK = re.compile(r"#+[ \t]*exercise[ \t]*(\d+(?:\.\d+)*)[ \t]*[:.]?", re.IGNORECASE)
# By lines, without parsing: parsing hostile text can end the process.
_DEFINITION = re.compile(r"(?:async )?(?:def|class) +(\w+)")
_IMPORT = re.compile(r"(?:import|from) .+")
_ASSIGNMENT = re.compile(r"(\w+(?:[ \t]*,[ \t]*\w+)*)[ \t]*(?::[^=\n]*)?=(?!=)")
_NOT_DEFINED = re.compile(r"name '(\w+)' is not defined")
_MOST_NOTES, _MOST_NAMES = 20, 1000


@dataclass(frozen=True)
class Answers:
    """What a submission says.

    Args:
        sources: The student's answer by exercise; absent where there is none.
        problems: Why there is none, by exercise.
        notes: What the student should know about the rest of the notebook.
        review: Exercises whose answer a person should read.
        elsewhere: Names that cells define which were not graded, with how that cell begins.
    """

    sources: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    review: list[str] = field(default_factory=list)
    elsewhere: dict[str, str] = field(default_factory=dict)


def match_answers(lab: Lab, cells: Sequence[Cell]) -> Answers:
    """Find the student's answers; every other cell of the submission is ignored.

    A cell belongs to an exercise by its cell id, else by nbgrader's grade_id, else by Colab's
    id, else by the mark in its first line. Where several cells belong to one exercise, the last
    one that is filled in and defines what is asked for counts, as it would when the notebook is
    run from the top. Where none does, a single cell with a misspelt mark is taken. A code cell
    that is too long is not read, and as an answer it is named for a person to read.

    Raises:
        NotGradable: When no cell belongs to any exercise.
    """
    by_name = {answer.id: answer for answer in lab.answers.values()}
    candidates: dict[str, list[Cell]] = {number: [] for number in lab.answers}
    for cell in cells:
        named = next((by_name[name] for name in cell.names if name in by_name), None)
        number = named.exercise if named else cell.number
        if number in candidates:
            candidates[number].append(cell)
    misspelt = _misspelt(lab, cells)
    answers = Answers()
    for number, found in candidates.items():
        if not found and len(misspelt.get(number, ())) == 1:
            found += misspelt[number]
            first = found[0].source.strip().splitlines()[0]
            answers.notes.append(
                f"The first line {first!r} was read as `# exercise {number}`: write it like that."
            )
    if not any(candidates.values()):
        raise NotGradable("nothing to grade", f"No answer cell of {lab.name} is in this file.")
    for number, found in candidates.items():
        code = [cell for cell in found if cell.kind == "code" and not cell.is_too_long]
        if code:
            answers.sources[number] = _one_that_counts(lab.answers[number], code).source
        elif found and found[-1].kind == "code":
            answers.problems[number] = (
                f"the answer cell of exercise {number} has more than {MOST_CHARACTERS:,} "
                "characters, and no more are read: keep only what the exercise asks for."
            )
        elif found:
            answers.problems[number] = (
                f"the answer cell of exercise {number} is {found[-1].kind} and not code: "
                "change the type of the cell back."
            )
        else:
            answers.problems[number] = (
                f"no answer cell of exercise {number} is in this file: it is found by its cell "
                f"id, or by the first line `# exercise {number}`."
            )
    _note(lab, cells, candidates, answers)
    _review(lab, candidates, answers)
    return answers


def _misspelt(lab: Lab, cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Collect the code cells whose first line is almost a mark, by exercise."""
    known = {name for cell in lab.cells for name in cell.names}
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.kind == "code" and cell.mark is None and known.isdisjoint(cell.names):
            match = _ALMOST_A_MARK.fullmatch(cell.source.strip().split("\n", 1)[0].rstrip())
            if match:
                found.setdefault(match[1], []).append(cell)
    return found


def _one_that_counts(answer: AnswerCell, code: Sequence[Cell]) -> Cell:
    filled = [cell for cell in code if not _is_blank(answer, cell)]
    wanted = set(answer.names)
    defining = [cell for cell in filled if wanted & _defined_in(cell.source.splitlines())]
    return (defining or filled or code)[-1]


def _is_blank(answer: AnswerCell, cell: Cell) -> bool:
    return answer.blank is not None and cell.source.split() == answer.blank.split()


def _defined_in(lines: Iterable[str]) -> set[str]:
    """List the names that lines define at the top level, by their looks: a few too many."""
    names: set[str] = set()
    for line in lines:
        if found := _DEFINITION.match(line) or _ASSIGNMENT.match(line):
            names |= possible_names(found[1])
        elif _IMPORT.match(line):
            names |= possible_names(line) - {"import", "from", "as"}
    return names


def _is_lasting(line: str) -> bool:
    """Tell whether a line defines something that other cells are meant to use."""
    constant = (found := _ASSIGNMENT.match(line)) and found[1].isupper()
    return bool(constant or _DEFINITION.match(line) or _IMPORT.match(line))


def _review(lab: Lab, candidates: dict[str, list[Cell]], answers: Answers) -> None:
    for number, cells in candidates.items():
        sources = [cell.source for cell in cells if cell.kind == "code" and cell.is_too_long]
        sources.append(answers.sources.get(number, ""))
        found: set[str] = set().union(*map(unusual_words, sources))
        found -= unusual_words(lab.answers[number].reference)
        if found:
            answers.review.append(number)
            answers.notes.append(
                f"The answer to exercise {number} uses {', '.join(sorted(found))}, which few "
                "answers need: the instructor is asked to read it."
            )


def _note(
    lab: Lab, cells: Sequence[Cell], candidates: dict[str, list[Cell]], answers: Answers
) -> None:
    notes = [
        f"{len(found)} cells belong to exercise {number}: the last one that is filled in counts, "
        "among those that define what is asked for."
        for number, found in candidates.items()
        if len(found) > 1
    ]
    own = {id(cell) for found in candidates.values() for cell in found}
    pristine = {name: cell for cell in lab.cells for name in cell.names}
    known_sources = {cell.source.strip() for cell in lab.cells}
    checks_differ = False
    for cell in cells:
        if cell.kind != "code" or id(cell) in own or cell.source.strip() in known_sources:
            continue
        if cell.is_too_long:
            notes.append(f"A cell of more than {MOST_CHARACTERS:,} characters was not read.")
            continue
        course = next((pristine[name] for name in cell.names if name in pristine), None)
        if course and course.mark:
            checks_differ |= cell.source.split() != course.source.split()
            continue
        lines = cell.source.strip().splitlines()
        first = lines[0][:60] if lines else ""
        if course:
            there = set(course.source.splitlines())
            lines = [line for line in lines if line not in there]
        if len(answers.elsewhere) < _MOST_NAMES:
            answers.elsewhere.update(dict.fromkeys(_defined_in(lines), first))
        lasting = [line for line in lines if _is_lasting(line)]
        if lasting and course:
            notes.append(
                f"A cell of the course was changed ({lasting[0][:60]!r}), and the course's own "
                "was used: put imports and constants into the answer cell that uses them."
            )
        elif lasting:
            notes.append(
                f"A helper cell was not graded (it begins with {first!r}): "
                "put helpers into the answer cell that uses them."
            )
    if checks_differ:
        notes.append("Check cells of this file differ from the course's; the course's were used.")
    answers.notes.extend(notes[:_MOST_NOTES])


def explain_missing_names(evidence: Iterable[str], answers: Answers) -> list[str]:
    """Say where a name was defined that an answer missed: in a cell that was not graded.

    Args:
        evidence: What the checks said.
        answers: Of the submission.

    Returns:
        Notes for the student.
    """
    missing = dict.fromkeys(name for text in evidence for name in _NOT_DEFINED.findall(text))
    return [
        f"{name} is defined in a cell that was not graded (it begins with "
        f"{answers.elsewhere[name]!r}): put it into the answer cell that uses it."
        for name in list(missing)[:_MOST_NOTES]
        if name in answers.elsewhere
    ]
