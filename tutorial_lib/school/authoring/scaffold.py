"""The files of a new lab: they build, and their tests say what is still to be written."""

import keyword
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import Template

from tutorial_lib.school.authoring.files import AuthoringError, write_files

_LAB = re.compile(r"(lab(\d\d))_[a-z0-9_]+")

_TITLE = Template("""# %% [markdown] id="title"
# # Lab $digits: TODO a title
#
# TODO what the learner builds, and why.
#
# | exercise | you write | points |
# |---|---|---|
$rows
# %% id="imports"
from tutorial_lib import checks
""")
_EXERCISE = Template('''
# %% [markdown] id="text-$dashed"
# ## $number TODO
#
# Difficulty 2/5 · importance 3/5 · 10 minutes
#
# TODO the task, with a number to reach.


# %% id="answer-$dashed"
# exercise $number
def $name(numbers: list[int]) -> int:
    """Add up numbers: TODO."""
    ### BEGIN SOLUTION
    return sum(numbers)
    ### END SOLUTION


# %% id="check-$dashed"
# check $number (2 points)
checks.$lab.$name($name)

# %% [markdown] id="hints-$dashed"
# <details><summary>Hint 1</summary>
#
# TODO
# </details>
''')
_LAB_CHECKS = Template('''"""The checks of lab $digits: TODO."""

from tutorial_lib.checks.vocabulary.calls import exercises_of

globals().update(exercises_of(__name__))
''')
_GIVEN = Template('''"""The models of lab $digits, and the halves that run its answers: TODO."""

from tutorial_lib.checks.given import Answer, Case, Result, run_half
$halves''')
_HALF = Template("""

@run_half("$number")
def $name(answer: Answer, case: Case) -> Result:
    return {"sum": answer(case["numbers"])}
""")
_CHECK = Template('''"""The check of $number: TODO."""

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Exercise, Faults, Result, value

from . import given


def _cases(draw: Draw) -> Cases:
    for size in (3, 8):
        yield {"numbers": [draw.randint(1, 99) for _ in range(size)]}


def _judge(case: Case, result: Result) -> None:
    value(
        result["sum"],
        sum(case["numbers"]),
        _faults(case),
        name="the sum",
        otherwise=lambda seen: f"{seen} is not what the numbers add up to: TODO what to try.",
    )


def _faults(case: Case) -> Faults:
    yield "The last number is missing.", sum(case["numbers"][:-1])


$name = Exercise(
    run=given.$name,
    passed="TODO what was shown",
    cases=_cases,
    judge=_judge,
)
''')
_WRONG = Template('''"""Answers to $number."""

from solutions.answers import right, wrong


@wrong("The last number is missing")
def leaves_out_the_last(numbers):
    return sum(numbers[:-1])


@right
def in_a_loop(numbers):
    total = 0
    for number in numbers:
        total += number
    return total
''')


def new_lab(root: Path, stem: str, exercises: Sequence[str]) -> list[Path]:
    """Write source, checks and first wrong answers of a lab that is not there yet.

    Args:
        root: The course's folder.
        stem: As in `lab04_schedules`.
        exercises: The name of the function that each exercise asks for.

    Returns:
        The files that were written. The source builds as it stands; `test_wrong_answers` fails
        until each exercise has four wrong answers and two right ones.

    Raises:
        AuthoringError: For a stem or a name of another form, or a lab that is there.
    """
    found = _LAB.fullmatch(stem)
    if not found:
        raise AuthoringError(f"{stem!r} is no lab: write a number and a topic, as in lab04_plans.")
    names_right = all(n.isidentifier() and not keyword.iskeyword(n) for n in exercises)
    if not exercises or not names_right or len(set(exercises)) < len(exercises):
        raise AuthoringError(
            f"exercises (={list(exercises)}) must be different names of functions, at least one."
        )
    lab, digits = found[1], found[2]
    files = {root / path: text.encode() for path, text in _files(stem, lab, digits, exercises)}
    for folder in (root / "labs/checks" / lab, root / "solutions/answers" / lab):
        if folder.exists():
            raise AuthoringError(f"{folder.relative_to(root)} is there already: choose a number.")
    write_files(files)
    return list(files)


def _files(stem: str, lab: str, digits: str, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    exercises = []
    for place, name in enumerate(names, start=1):
        words = {"name": name, "number": f"{int(digits)}.{place}", "lab": lab}
        exercises.append({**words, "dashed": words["number"].replace(".", "-")})
    rows = "".join("# | {number} | `{name}` | 2 |\n".format(**words) for words in exercises)
    source = _TITLE.substitute(digits=digits, rows=rows)
    yield f"solutions/source/{stem}.py", source + "".join(map(_EXERCISE.substitute, exercises))
    checks = f"labs/checks/{lab}"
    yield f"{checks}/__init__.py", _LAB_CHECKS.substitute(digits=digits)
    halves = "".join(map(_HALF.substitute, exercises))
    yield f"{checks}/given.py", _GIVEN.substitute(digits=digits, halves=halves)
    yield f"solutions/answers/{lab}/__init__.py", ""
    for words in exercises:
        module = f"ex{words['number'].replace('.', '_')}"
        yield f"{checks}/{module}.py", _CHECK.substitute(words)
        yield f"solutions/answers/{lab}/{module}.py", _WRONG.substitute(words)
