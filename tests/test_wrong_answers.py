"""Every lab's checks against plausible answers: see solutions/answers for their form."""

import ast
import contextlib
import functools
import importlib
import io
import os
import re
import zlib
from collections import defaultdict
from dataclasses import dataclass
from unittest import mock

import nbformat
import pytest

from solutions.answers import ROOT, Change, solved
from solutions.answers.known import changed, marked_in
from solutions.grader.inside.student import find_half
from solutions.grader.wire import decode, encode
from tutorial_lib.checks import CheckError
from tutorial_lib.checks.given.half import run_in_place
from tutorial_lib.checks.vocabulary import expect
from tutorial_lib.checks.vocabulary.exercise import SEED_VARIABLE
from tutorial_lib.school import authoring
from tutorial_lib.school.marks import cell_mark

SEEDS = range(5)
FEWEST_WRONG, FEWEST_RIGHT = 4, 2
DAILY_WRONG, DAILY_RIGHT = 2, 1  # of each exercise; the others weekly, or when it changes


@dataclass(frozen=True)
class Exercise:
    """An exercise of a built solution: its answer cell, and the cells that check it."""

    notebook: str
    number: str

    def __str__(self):
        return f"{self.lab}-{self.number}"

    @property
    def lab(self):
        return self.notebook.split("_")[0]

    def cells(self, kinds):
        marked = [(cell_mark(cell.source), cell) for cell in code_cells(self.notebook)]
        return [
            c for mark, c in marked if mark and mark.number == self.number and mark.kind in kinds
        ]

    @functools.cached_property
    def checks(self):
        return self.cells({"check", "hidden check"})

    @functools.cached_property
    def asked(self):
        """The name that the checks ask for, of those that the answer cell defines."""
        (answer,) = self.cells({"exercise"})
        defined = {getattr(node, "name", None) for node in ast.parse(answer.source).body}
        tree = ast.walk(ast.parse("\n".join(cell.source for cell in self.checks)))
        (name,) = {node.id for node in tree if isinstance(node, ast.Name)} & defined
        return name

    @property
    def line(self):
        """What the checks print on success, as the built solution shows it."""
        return "".join(output.text for cell in self.checks for output in cell.outputs)

    @property
    def file(self):
        return ROOT / "solutions/answers" / self.lab / f"ex{self.number.replace('.', '_')}.py"

    @functools.cached_property
    def names(self):
        """The names of all answers in the exercise's file, by mark; read, and not imported."""
        tree = ast.parse(self.file.read_text(encoding="utf-8")) if self.file.exists() else None
        marked = marked_in(tree.body) if tree else ()
        return {name: ast.unparse(mark).partition("(")[0] for name, mark in marked}

    @functools.cached_property
    def answers(self):
        """The answers themselves, by name."""
        module = importlib.import_module(f"solutions.answers.{self.lab}.{self.file.stem}")
        return {name: self.whole(getattr(module, name)) for name in self.names}

    def whole(self, answer):
        """Return the function or class of a changed solution; another answer is one already."""
        if not isinstance(answer, Change):
            return answer
        (cell,) = self.cells({"exercise"})
        namespace = dict(vars(solved(self.lab)))
        exec(changed(cell.source, *answer.parts), namespace)
        namespace[self.asked].refused_with = answer.refused_with
        return namespace[self.asked]

    def wrong(self):
        return [name for name, mark in self.names.items() if mark == "wrong"]

    def right(self):
        return [name for name, mark in self.names.items() if mark == "right"]


@functools.cache
def code_cells(notebook):
    cells = nbformat.read(ROOT / "solutions" / f"{notebook}.ipynb", as_version=4).cells
    return [cell for cell in cells if cell.cell_type == "code"]


@functools.cache
def blanks(notebook):
    return authoring.load_definitions(ROOT / "labs" / f"{notebook}.ipynb")


NOTEBOOKS = sorted(path.stem for path in ROOT.glob("labs/*.ipynb"))
EXERCISES = [
    Exercise(notebook, mark.number)
    for notebook in NOTEBOOKS
    for mark in map(cell_mark, (cell.source for cell in code_cells(notebook)))
    if mark and mark.kind == "exercise"
]
each_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=str)


def each_answer(kind, daily=0):
    """Parametrise with the exercises' answers of a kind, the first few daily, the rest weekly."""
    answers = [
        pytest.param(
            exercise,
            name,
            id=f"{exercise}-{name}",
            marks=[] if place < daily else [pytest.mark.weekly],
        )
        for exercise in EXERCISES
        for place, name in enumerate(kind(exercise))
    ]
    return pytest.mark.parametrize(("exercise", "name"), answers)


class Elsewhere:
    """An answer in another process, as far as a check can tell: all that passes is written out."""

    def __init__(self, answer):
        self.answer = answer

    def run_remotely(self, check, case):
        half = find_half("tutorial_lib.checks", check)
        return decode(encode(run_in_place(half, self.answer, decode(encode(case)))))


def here(answer):
    return answer


PLACES = (here, Elsewhere, here)  # a seed each


def one_of(seeds, exercise, name):
    """Choose an answer's seed: always the same one, and all of them over an exercise's answers."""
    return seeds[zlib.crc32(f"{exercise}-{name}".encode()) % len(seeds)]


def verdict(exercise, answer, seed):
    """Run the exercise's check cells with an answer; gives what they print, and the refusal."""
    namespace = {**vars(solved(exercise.lab)), exercise.asked: answer}
    printed = io.StringIO()
    with (
        mock.patch.dict(os.environ, {SEED_VARIABLE: str(seed)}),
        contextlib.redirect_stdout(printed),
    ):
        try:
            for cell in exercise.checks:
                exec(cell.source, namespace)
        except CheckError as error:
            return printed.getvalue(), str(error)
    return printed.getvalue(), None


@each_exercise
def test_every_exercise_has_wrong_and_right_answers(exercise):
    wrong, right = len(exercise.wrong()), len(exercise.right())
    wanted = f"{FEWEST_WRONG} wrong and {FEWEST_RIGHT} right answers are wanted at least"
    assert min(wrong - FEWEST_WRONG, right - FEWEST_RIGHT) >= 0, (
        f"exercise {exercise.number} has {wrong} wrong and {right} right ones, and {wanted}: write "
        f"them into {exercise.file.relative_to(ROOT)}."
    )


@each_exercise
def test_every_marked_answer_is_found(exercise):
    module = importlib.import_module(f"solutions.answers.{exercise.lab}.{exercise.file.stem}")
    marked = {name for name, value in vars(module).items() if hasattr(value, "refused_with")}
    assert marked == set(exercise.names)
    for name, answer in exercise.answers.items():
        assert (answer.refused_with is None) == (name in exercise.right())


@each_exercise
def test_the_blank_is_refused_as_blank(exercise):
    blank = getattr(blanks(exercise.notebook), exercise.asked)
    printed, message = verdict(exercise, blank, seed=0)
    assert message.startswith(f"exercise {exercise.number} is still blank:")
    assert printed == ""


@each_answer(Exercise.wrong, DAILY_WRONG)
def test_a_wrong_answer_is_refused_in_its_own_words(exercise, name):
    refused_in_its_own_words(exercise, name, one_of(range(len(PLACES)), exercise, name))


@each_answer(Exercise.wrong)
def test_a_wrong_answer_is_refused_under_every_seed(exercise, name):
    for seed in range(len(PLACES)):
        refused_in_its_own_words(exercise, name, seed)


def refused_in_its_own_words(exercise, name, seed):
    answer = exercise.answers[name]
    others = {exercise.answers[other].refused_with for other in exercise.wrong() if other != name}
    printed, message = verdict(exercise, PLACES[seed](answer), seed)
    assert message is not None, f"passes under seed {seed}"
    assert answer.refused_with in message, f"seed {seed}"
    assert exercise.line not in printed
    assert not [words for words in others if words in message], f"seed {seed}: {message}"


@each_answer(Exercise.right, DAILY_RIGHT)
def test_a_right_answer_passes_and_the_line_stays_the_same(exercise, name):
    passes(exercise, exercise.answers[name], one_of(SEEDS, exercise, name))


# Faults that hang on more than a value: 1.5 names the nearest, 4.6 asks for the answer's own peak.
HANG_ON_MORE = {"1.5", "4.6"}
NUMBERS = re.compile(r"\[[^]]*\]|[-+]?\d[\d,.e+-]*")  # they differ from case to case


@contextlib.contextmanager
def each_fault_told(exercise):
    """Tell judges, where a right value comes, each fault's own too: it gets the fault's words.

    Wrong answers show that a mistake gives a value; this shows that the value gets the mistake's
    words, for all faults that a check knows.
    """
    close, shown = expect.close, defaultdict(bool)

    def trying(seen, wanted, faults=(), **more):
        faults, tolerance = list(faults), more.get("tolerance", expect.EXACT)
        close(seen, wanted, faults, **more)
        for words, value in faults:
            told = shown[NUMBERS.sub("#", words)]
            if not expect.is_close(value, wanted, tolerance):  # else this case tells no difference
                with pytest.raises(CheckError) as refused:
                    close(value, wanted, faults, **more)
                near = more.get("fault_tolerance") or tolerance
                same = [w for w, other in faults if expect.is_close(value, other, near)]
                assert any(other in str(refused.value) for other in same), words
                told |= words in str(refused.value)
            shown[NUMBERS.sub("#", words)] = told

    with mock.patch.object(expect, "close", trying):
        yield
    never = [words for words, was in shown.items() if not was]
    assert not never or exercise.number in HANG_ON_MORE, "no case tells these"


@each_exercise
def test_the_solution_passes_and_each_fault_is_told(exercise):
    answer = getattr(solved(exercise.lab), exercise.asked)  # in place too: see test_lab_checks
    with each_fault_told(exercise):
        assert verdict(exercise, Elsewhere(answer), seed=0) == (exercise.line, None)


@pytest.mark.weekly
@each_exercise
def test_all_right_answers_pass_under_every_seed(exercise):
    with each_fault_told(exercise):
        for seed in SEEDS:
            passes(exercise, getattr(solved(exercise.lab), exercise.asked), seed)
    for name in exercise.right():
        for seed in SEEDS:
            passes(exercise, exercise.answers[name], seed)


def passes(exercise, answer, seed):
    place = PLACES[seed % len(PLACES)]
    assert verdict(exercise, place(answer), seed) == (exercise.line, None), seed
